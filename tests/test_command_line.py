"""Messages of the command line about wrong arguments and options."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, UsageError
from stages.cli import cli

INDEX = Path(__file__).parent / "index/fixtures/868ca75c/one"
"""The index of a finished run."""


@pytest.fixture(autouse=True)
def _work_in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # A process may call it only once.


def error_of(*words: object) -> JointspaceError:
    """Return the error with which the command `jointspace` ends."""
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert isinstance(result.exception, JointspaceError), result.output
    return result.exception


def test_a_log_file_that_cannot_be_written_is_named() -> None:
    error = error_of("--log", "missing/a.log", "search", INDEX, "a dog")
    assert str(error).startswith("The log file missing/a.log cannot be written (No such file or directory).")
    assert error.exit_code == 2


def test_search_refuses_a_missing_or_wrong_configuration() -> None:
    Path("wrong.yaml").write_text("no_such_key: 1\n")
    for name, message in (("nope.yaml", "nope.yaml does not exist"), ("wrong.yaml", "unknown key no_such_key")):
        error = error_of("search", INDEX, "a dog", "--config", name)
        assert isinstance(error, UsageError) and message in str(error)
