"""Splits that no list asks for."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.errors import InputError


def test_a_broken_photograph_in_a_split_that_was_drawn_costs_itself_alone(tmp_path: Path, photograph, gather) -> None:
    """Of ten, the tenth is drawn for test, and is no photograph. No list asks for a test split."""
    for number in range(10):
        (tmp_path / f"{number}.jpg").write_bytes(photograph(number) if number < 9 else b"<html>")
    (tmp_path / "t.csv").write_text("file,sentence\n" + "".join(f"{number}.jpg,A dog .\n" for number in range(10)))
    result = gather(tmp_path, "table", default="divided")
    result.check(0.1, "rejects.jsonl")
    assert Counter(result.tables["images"]["split"].to_pylist()) == {"train": 8, "dev": 1}
    for number in range(9):
        (tmp_path / f"{number}.jpg").write_bytes(b"<html>")
    with pytest.raises(InputError, match="none of the 10 images can be used"):
        gather(tmp_path, "table", default="divided").check(1, "rejects.jsonl")
