"""Readers that end their process, or take what memory there is, cost themselves alone."""

import os
from pathlib import Path

import pytest

from pipeline.errors import InputError, UsageError
from pipeline.trial import MOST_BYTES, try_first

PATH = Path("theirs.parquet")


def complain(text: str) -> None:
    raise UsageError(text)


@pytest.mark.parametrize(
    ("read", "argument", "said"),
    [
        (os._exit, 6, "^theirs.parquet ended the process that read it for trial"),
        (bytearray, MOST_BYTES, r"^cannot read theirs.parquet \(MemoryError"),
        (int, "many", r"^cannot read theirs.parquet \(ValueError"),
        (complain, "it is a sentence", "^it is a sentence$"),
    ],
)
def test_a_failed_trial_is_a_sentence(read, argument, said: str) -> None:
    with pytest.raises(InputError, match=said):
        try_first(PATH, read, argument)
    try_first(PATH, int, "1")  # the next one has a process again


def test_a_relative_path_is_that_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the process was started elsewhere, as in a notebook that changes its folder."""
    try_first(PATH, int, "1")
    (tmp_path / PATH).write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    try_first(PATH, os.stat, PATH)
