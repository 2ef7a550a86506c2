"""Exit codes 1 (failure), 2 (wrong usage) and 130 (interrupted), and the index that a command uses by default."""

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


def test_a_failure_exits_with_1_and_wrong_usage_with_2(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    os.truncate(run / "models/ncca/model.safetensors", 9)
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # A process may call `configure` only once.
    monkeypatch.setattr("gc.disable", lambda: None)  # main() calls `gc.disable` at the end of its process.
    for code, message, *words in (
        (1, "jointspace: 1 file of", "--quiet", "verify", str(run)),
        (2, "jointspace: Unknown command serch. Did you mean search?", "serch", "a dog"),
    ):
        monkeypatch.setattr("sys.argv", ["jointspace", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code and capsys.readouterr().err.startswith(message)


def test_a_full_gpu_exits_with_2_and_names_the_remedy(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(standalone_mode: bool) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr("gc.disable", lambda: None)
    monkeypatch.setattr("stages.cli.cli", fail)
    message = "CUDA out of memory. Tried to allocate 2.00 GiB."
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "set device to cpu" in capsys.readouterr().err
    message = "shapes do not agree"
    with pytest.raises(RuntimeError, match="shapes"):
        main()


def test_an_interrupt_exits_with_130(tmp_path: Path) -> None:
    """SIGINT arrives while `remove` waits for input from a pipe. The command prints one line and leaves no file."""
    os.mkfifo(tmp_path / "pipe")
    program = [sys.executable, "-m", "stages.cli", "remove", tmp_path / "index", "--from-file", tmp_path / "pipe"]
    process = subprocess.Popen(
        program, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # CI may start the tests with SIGINT ignored.
    )  # fmt: skip
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)  # The call waits until the command opens the pipe.
    for _ in range(10):  # A signal just before a blocking read has no effect in Python, so it is sent again.
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)  # A signal that follows too early would interrupt the end of the command.
            break
    message = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and message.strip() == "jointspace: interrupted"
    os.close(writer)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize(
    "words",
    [("explain", "RUN", "a.jpg"), ("verify", "RUN"), ("audit", "RUN"), ("compare", "RUN"), ("bench", "RUN"),
     ("plan", "RUN"),
     ("stage", "embed", "ncca", "--run", "RUN")],
)  # fmt: skip
def test_a_folder_that_is_not_a_run_has_one_message_and_exit_code_2(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # A process may call `configure` only once.
    with pytest.raises(UsageError, match="is not the folder of a run") as error:
        cli([str(tmp_path) if word == "RUN" else word for word in words], standalone_mode=False)
    assert str(error.value) == str(not_a_run(tmp_path)) and error.value.exit_code == 2


def test_a_command_without_an_index_uses_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="jointspace serve results/demo/index/sae. The folder results has no index"):
        only_index("jointspace serve INDEX")
    for name in ("sae", "ncca"):
        folder = tmp_path / "results/my photos/index" / name
        folder.mkdir(parents=True)
        (folder / CARD).touch()
        if name == "sae":
            assert only_index("jointspace serve INDEX") == Path("results/my photos/index/sae")
    with pytest.raises(UsageError, match="serve 'results/my photos/index/ncca'. .* results/my photos/index/sae"):
        only_index("jointspace serve INDEX")
