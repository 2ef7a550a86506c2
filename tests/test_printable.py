"""Captions, names and paths that would do something to a terminal are printed as text."""

import json
import logging
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from made_up import build_bundle, make_run

from pipeline.printable import printable, printable_json
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
