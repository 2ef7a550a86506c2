"""A run in a fork of the warm process sees what its test set, whichever test started that process."""

from pathlib import Path

import pytest
import warm

RULE = """
import os, tempfile
rule all:
    output: "said"
    run:
        open(output[0], "w").write(f"{os.environ.get('COLOUR')} {tempfile.gettempdir()}")
"""


def test_a_run_has_the_environment_of_its_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Snakefile").write_text(RULE)
    for colour in ("red", None):
        if colour:
            monkeypatch.setenv("COLOUR", colour)
        else:
            monkeypatch.delenv("COLOUR")
        folder = tmp_path / f"temporary-{colour}"
        folder.mkdir()
        monkeypatch.setenv("TMPDIR", str(folder))
        result = warm.snakemake(tmp_path, "--cores", 1, "--forceall")
        assert result.returncode == 0, result.stderr
        assert (tmp_path / "said").read_text() == f"{colour} {folder}"
