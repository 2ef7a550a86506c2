"""Exit codes: 0 done, 1 failed, 2 wrong use, 3 done with rejects above the limit; one sentence for each."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.compute import runtime
from pipeline.errors import UsageError
from pipeline.run.run import not_a_run
from pipeline.storage.card import CARD
from stages.cli import cli, main
from stages.commands import only_index


def test_1_failed_and_2_wrong_use(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    os.truncate(run / "models/ncca/model.safetensors", 9)
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # which is for once in a process
    monkeypatch.setattr("gc.disable", lambda: None)  # as at the end of one
    for code, said, *words in (
        (1, "jointspace: 1 file of", "--quiet", "verify", str(run)),
        (2, "jointspace: unknown command serch; did you mean search?", "serch", "a dog"),
    ):
        monkeypatch.setattr("sys.argv", ["jointspace", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code and capsys.readouterr().err.startswith(said)


def test_130_interrupted(tmp_path: Path) -> None:
    """Ctrl-C while the command waits for what it reads, a pipe."""
    os.mkfifo(tmp_path / "pipe")
    program = [sys.executable, "-m", "stages.cli", "remove", tmp_path / "index", "--from-file", tmp_path / "pipe"]
    process = subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which CI may have us ignore
    )  # fmt: skip
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)  # which takes until the command opens it, too
    for _ in range(10):  # as Python does not see a signal that comes just before it waits in a read
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)  # a second signal would interrupt the end of a slow one
            break
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and said.strip() == "jointspace: interrupted"
    os.close(writer)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    "words",
    [("explain", "RUN", "a.jpg"), ("verify", "RUN"), ("audit", "RUN"), ("compare", "RUN"), ("plan", "RUN"),
     ("stage", "embed", "ncca", "--run", "RUN")],
)  # fmt: skip
def test_a_folder_that_is_not_a_run_has_one_message_and_exit_code_2(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # a process may call it only once
    with pytest.raises(UsageError, match="is not the folder of a run") as error:
        cli([str(tmp_path) if word == "RUN" else word for word in words], standalone_mode=False)
    assert str(error.value) == str(not_a_run(tmp_path)) and error.value.exit_code == 2


def test_a_command_without_an_index_uses_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="jointspace serve results/demo/index/sae. The folder results has none"):
        only_index("jointspace serve INDEX")
    for name in ("sae", "ncca"):
        folder = tmp_path / "results/mine/index" / name
        folder.mkdir(parents=True)
        (folder / CARD).touch()
        if name == "sae":
            assert only_index("jointspace serve INDEX") == Path("results/mine/index/sae")
    with pytest.raises(UsageError, match="results/mine/index/ncca, results/mine/index/sae"):
        only_index("jointspace serve INDEX")
