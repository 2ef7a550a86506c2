"""Captions, names and paths that would do something to a terminal are printed as text."""

import json
import logging
import subprocess
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
from made_up import build_bundle, make_run, run_command

from pipeline.printable import printable, printable_json
from pipeline.report.page import descriptions_as_text
from pipeline.storage.bundle import Bundle
from pipeline.storage.manifest import Manifest
from stages.cli import OneLine

FOUL = "a\x1b]0;title\x07 dog\rgone\x9b2J\x7f \u202egpj.exe\u2066\u2028\n \ud800"
"""Sets a title, overwrites the line, clears the screen, turns the order of letters, and is not UTF-8."""
KEPT = 'Größe 犬 🐕 naïve e\u0301 \u200d don\'t \\ "x"'


def is_harmless(text: str) -> bool:
    """By Unicode's own categories: nothing but lines of characters that are neither controls nor change the order."""
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(one) in turning
        for line in text.split("\n")
        for one in line
    )


def test_every_character_is_printed_or_escaped() -> None:
    for code in range(sys.maxunicode + 1):
        shown = printable(chr(code))
        assert is_harmless(shown) and "\n" not in shown and shown.encode()
    assert printable(KEPT) == KEPT and printable("\x1b[31m\r") == "\\x1b[31m\\r"


def test_json_means_the_same() -> None:
    for text in (FOUL, KEPT):
        line = printable_json({"text": [text]})
        assert json.loads(line) == {"text": [text]} and is_harmless(line) and "\n" not in line
    assert KEPT.split()[1] in printable_json(KEPT)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder)
    return folder


@pytest.fixture
def foul(monkeypatch: pytest.MonkeyPatch) -> str:
    """A text in every path and sentence of a bundle and of a manifest, as Parquet holds it."""
    text = FOUL[:-1]  # it holds no surrogates
    usual = Bundle.packed_table

    class Packed:
        def __init__(self, table: pa.Table, files: Iterable = ()) -> None:
            self.table, self.num_rows, self.files = table, table.num_rows, lambda: files

        def unpack(self) -> pa.Table:
            column = "path" if "path" in self.table.column_names else "text"
            return self.table.set_column(
                self.table.column_names.index(column), column, pa.array([text] * self.num_rows)
            )

        def records(self, rows: object) -> list[dict]:
            return self.unpack().take(pa.array(rows)).to_pylist()

    monkeypatch.setattr(Bundle, "packed_table", lambda *given: Packed((one := usual(*given)).unpack(), one.files()))
    read = Manifest.table

    def table(self: Manifest, name: str, number: int) -> pa.Table:
        found = read(self, name, number)
        return Packed(found).unpack() if name in ("images", "sentences") else found

    monkeypatch.setattr(Manifest, "table", table)
    return text


def test_search_and_explain_print_what_they_found(run: Path, foul: str, tmp_path: Path) -> None:
    (tmp_path / "batch.txt").write_text("a dog\n")
    for name, *arguments in (
        ("search", "--index", run / "bundle", "a dog"),
        ("search", "--index", run / "bundle", "a dog", "--json"),
        ("search", "--index", run / "bundle", "--batch", tmp_path / "batch.txt"),
        ("explain", "3", "--run", run),
        ("explain", "3", "--run", run, "--json"),
    ):
        shown = run_command(name, *arguments)
        assert is_harmless(shown) and "title" in shown and "exe" in shown, arguments
    hits = json.loads(run_command("search", "--index", run / "bundle", "a dog", "--json"))
    assert {hit["path"] for hit in hits} == {foul}


def test_descriptions_as_text_are_harmless() -> None:
    sentence = {"score": 1, "text": FOUL, "verbatim": False, "nearest": {"text": FOUL, "cosine": 1}}
    shown = descriptions_as_text({"images": [{"image": FOUL, "box": None, "sentences": [sentence]}]})
    assert is_harmless(shown) and len(shown.splitlines()) == 2


def test_errors_and_messages_quote_what_they_were_given(run: Path, tmp_path: Path) -> None:
    name = "x\x1b]0;t\x07\r\x9b\u202e"
    (tmp_path / name).write_bytes(b"left by a writer")
    commands = [
        ("search", "--index", run / "bundle", name),
        ("search", "--index", tmp_path / name, "dog"),
        ("search", "--index", run / "bundle", "--image", tmp_path / name / "photograph"),
        ("explain", name, "--run", run),
        ("verify", tmp_path / name),
        (name,),
    ]
    code = "import sys, json; from pipeline import runtime; from stages.cli import main\n"
    code += "runtime.configure = lambda threads: None  # which is for once in a process\n"
    code += "for one in json.loads(sys.argv[1]):\n"
    code += "    sys.argv = ['jointspace', *one]\n    try: main()\n    except SystemExit as end: assert end.code, one\n"
    given = json.dumps([list(map(str, one)) for one in commands])
    result = subprocess.run([sys.executable, "-c", code, given], capture_output=True, check=False)
    told = result.stdout.decode() + result.stderr.decode()
    assert result.returncode == 0, told
    assert is_harmless(told) and told.count("\\x1b]0;t") >= len(commands), told
    record = logging.LogRecord("pipeline", logging.INFO, "", 0, "%s", (FOUL,), None)
    assert is_harmless(OneLine("%(message)s").format(record)) and "\n" not in OneLine("%(message)s").format(record)
