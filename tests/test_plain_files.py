"""Tests of reading text files with any line ends, with and without a byte order mark."""

import gzip
import io
import re
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.foreign import files as plain_files
from pipeline.foreign.files import each_line, read_lines
from pipeline.storage.texts import text_lines


@pytest.mark.parametrize("chunk", [3, 4, 1 << 18])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"\xef\xbb\xbfa\nb", ["a", "b"]),
        (b"a\r\n\r\nb\r\n", ["a", "", "b"]),
        (b"a\rb\r", ["a", "b"]),
        (b"a\r\rb\n\nc", ["a", "", "b", "", "c"]),
        ("é\u2028x\x0b\x0c\x85y\n".encode(), ["é\u2028x\x0b\x0c\x85y"]),
        ("é\n𝄞\r\nb".encode("utf-16"), ["é", "𝄞", "b"]),
        (b"", []),
    ],
)
def test_lines_are_read_with_any_line_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, lines: list[str], chunk: int
) -> None:
    monkeypatch.setattr(plain_files, "CHUNK_BYTES", chunk)
    (tmp_path / "list.txt").write_bytes(data)
    assert read_lines(tmp_path / "list.txt") == lines


@pytest.mark.parametrize(
    ("data", "line"),
    [("a\nb".encode("utf-16")[:-1], "UTF-16"), (b"a\r\nb\r\n\xff", "line 3"), (None, "cannot be read")],
)
def test_a_file_that_is_not_text_is_named(tmp_path: Path, data: bytes | None, line: str) -> None:
    path = tmp_path / "list.txt"
    path.mkdir() if data is None else path.write_bytes(data)
    with pytest.raises(InputError, match=f"{re.escape(str(path))}.*{line}"):
        read_lines(path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    """The compressed data is wrong in one gzip file, and the end is missing in the other."""
    packed = gzip.compress(b"a line\n" * 99)
    for data in (packed[:10] + b"\xff" * 9 + packed[19:], packed[:-9]):
        (tmp_path / "text.gz").write_bytes(data)
        with pytest.raises(InputError, match=r"cannot read .*text\.gz"):
            list(text_lines(tmp_path / "text.gz"))


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_files, "CHUNK_BYTES", 8)
    monkeypatch.setattr(plain_files, "MAX_LINE_BYTES", 20)
    with pytest.raises(InputError, match=r"x\.txt: line 2"):
        list(each_line(io.BytesIO(b"a\n" + b"b" * 40), "x.txt"))
