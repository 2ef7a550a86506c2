"""Tests which show that control characters in captions, names and paths are shown as text."""

import json
import logging
import sys
import unicodedata
from pathlib import Path

import pytest

from pipeline.compute import runtime
from pipeline.printable import printable, printable_json
from stages.cli import OneLine, main

HARMFUL_TEXT = "a\x1b]0;title\x07 dog\rgone\x9b2J\x7f \u202egpj.exe\u2066\u2028\n \ud800"
"""A text that sets the title of a terminal, overwrites the line, clears the screen, reverses letters, and cannot be
encoded in UTF-8.
"""
HARMLESS_TEXT = 'Größe 犬 🐕 naïve e\u0301 \u200d don\'t \\ "x"'


def is_harmless(text: str) -> bool:
    """Return whether a text has only harmless characters and line feeds, by the categories of Unicode. Harmful
    characters are control characters, surrogates, line separators, and characters that change the direction of text.
    """
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(one) in turning
        for line in text.split("\n")
        for one in line
    )


def test_every_character_is_printed_or_escaped() -> None:
    for first in range(0, sys.maxunicode + 1, 256):
        shown = printable("".join(map(chr, range(first, first + 256))))
        assert is_harmless(shown) and "\n" not in shown and shown.encode()
    assert printable(HARMLESS_TEXT) == HARMLESS_TEXT and printable("\x1b[31m\r") == "\\x1b[31m\\r"


def test_json_means_the_same() -> None:
    for text in (HARMFUL_TEXT, HARMLESS_TEXT):
        line = printable_json({"text": [text]})
        assert json.loads(line) == {"text": [text]} and is_harmless(line) and "\n" not in line
    assert HARMLESS_TEXT.split()[1] in printable_json(HARMLESS_TEXT)


def test_errors_and_messages_quote_what_they_were_given(
    run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "x\x1b]0;t\x07\r\x9b\u202e"
    monkeypatch.setattr("gc.disable", lambda: None)  # main() calls `gc.disable` at the end of its process.
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # A process may call `configure` only once.
    commands = [("search", "--index", run / name, "dog"), ("explain", run, name), ("verify", run / name)]
    for words in [*commands, (name,)]:
        monkeypatch.setattr("sys.argv", ["jointspace", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = "".join(capsys.readouterr())
        assert ended.value.code and is_harmless(told) and "\\x1b]0;t" in told, told
    record = logging.LogRecord("pipeline", logging.INFO, "", 0, "%s", (HARMFUL_TEXT,), None)
    assert is_harmless(OneLine("%(message)s").format(record)) and "\n" not in OneLine("%(message)s").format(record)
