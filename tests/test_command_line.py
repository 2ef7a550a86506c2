"""Tests of the messages of the command line about wrong arguments and options."""

import shutil
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from PIL import Image

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, UsageError
from stages import commands
from stages.catalogue import USER_COMMANDS
from stages.cli import cli

INDEX = Path(__file__).parent / "index/fixtures/868ca75c/one"
"""The folder of an index that an earlier version wrote."""


@pytest.fixture(autouse=True)
def _work_in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runtime, "configure", lambda threads: None)  # A process may call `configure` only once.


def error_of(*words: object) -> JointspaceError:
    """Call `jointspace` with the arguments `words`, and return the error with which the command ends. The test fails if
    the command does not end with a JointspaceError.
    """
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


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Make the folder `results/mine` in the current folder, with the files by which commands recognise a run and its
    index. Return the path of the folder.
    """
    folder = Path("results/mine")
    (folder / "manifest").mkdir(parents=True)
    (folder / "manifest/manifest.json").write_text("{}")
    (folder / "config.yaml").write_text("name: mine\n")
    shutil.copytree(INDEX, folder / "index/ncca")
    return folder


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (("search", "a dog", "INDEX"), "search INDEX 'a dog'"),
        (("search", "dog", "INDEX"), "search INDEX dog"),
        (("search", "a", "dog", "INDEX"), "search INDEX 'a dog'"),
        (("search", "a dog", "results/missing/index/ncca"), "search results/missing/index/ncca 'a dog'"),
        (("explain", "dog-0.png", "RUN"), "explain RUN dog-0.png"),
        (("explain", "photo.jpg", "RUN"), "explain RUN photo.jpg"),
        (("remove", "photo.jpg", "dog-0.png", "INDEX"), "remove INDEX photo.jpg dog-0.png"),
    ],
)
def test_a_folder_that_is_not_the_first_argument_is_put_first(run: Path, words: tuple[str, ...], right: str) -> None:
    Path("photo.jpg").touch()
    paths = {"RUN": str(run), "INDEX": str(run / "index/ncca")}
    message = str(error_of(*(paths.get(word, word) for word in words)))
    assert message.startswith("The arguments are in the wrong order.")
    for name, path in paths.items():
        right = right.replace(name, path)
    assert message.endswith(f": jointspace {right}")


def test_text_without_quotes_is_not_taken_for_a_folder(run: Path) -> None:
    index = run / "index/ncca"
    message = str(error_of("search", index, "a", "$5", "dog"))
    assert message == f"Put the text in quotes: jointspace search {index} 'a $5 dog'"
    assert str(error_of("search", "a", "black/white", "dog")).startswith("Put the text in quotes: ")
    assert str(error_of("search", "a", "black/white")).startswith("Put the text in quotes: ")


@pytest.mark.parametrize(
    "words", [("run", "FOLDER"), ("doctor", "FOLDER"), ("migrate", "old", "new", "FOLDER"), ("search", "-c", "FOLDER")]
)
def test_a_folder_in_place_of_a_configuration_is_refused_with_a_remedy(words: tuple[str, ...], run: Path) -> None:
    Path("my photos").mkdir()
    message = error_of(*("my photos" if word == "FOLDER" else word for word in words))
    wrong = "my photos is a folder and not a configuration."
    assert str(message) == f"{wrong} Write one with `jointspace init 'my photos'`."
    Path("my-photos.yaml").touch()
    assert str(error_of("run", "my photos")) == f"{wrong} Did you mean my-photos.yaml?"
    assert str(error_of("run", run)).endswith("Did you mean results/mine/config.yaml?")


@pytest.mark.parametrize(
    "words",
    [("verify", "CONFIG"), ("explain", "CONFIG", "a.jpg"), ("audit", "CONFIG"), ("stage", "report", "--run", "CONFIG")],
)
def test_a_configuration_in_place_of_a_run_is_refused_with_its_run(words: tuple[str, ...]) -> None:
    Path("mine.yaml").write_text("name: mine\nresults_root: elsewhere\n")
    message = str(error_of(*("mine.yaml" if word == "CONFIG" else word for word in words)))
    assert message == "mine.yaml is a configuration and not the folder of a run. Did you mean elsewhere/mine?"


def test_only_words_after_two_hyphens_reach_snakemake(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("stages.operations.run.run_workflow", lambda *arguments: started.append(arguments))
    Path("mine.yaml").write_text("name: mine\n")
    for words, message in (
        (("demo", "extra"), "`jointspace demo` does not accept the argument extra."),
        (("run", "mine.yaml", "extra"), "`jointspace run` does not accept the argument extra."),
        (("run", "mine.yaml", "--resume"), "`jointspace run` has no option --resume. Options and targets of Snakemake"),
        (("run", "mine.yaml", "--core", "2"), "`jointspace run` has no option --core. Did you mean --cores?"),
        (("demo", "-n"), "`jointspace demo` has no option -n. Options and targets of Snakemake"),
    ):
        error = error_of(*words)
        assert str(error).startswith(message) and error.exit_code == 2
    assert started == []
    words = ("run", "mine.yaml", "-j", "1", "--", "--keep-going", "target", "--", "-n")
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert started == [(Path("mine.yaml"), ("--keep-going", "target", "--", "-n"), 1, False)]


@pytest.mark.parametrize("is_found", [True, False])
def test_commands_that_init_prints_name_the_program_if_the_shell_does_not_find_it(
    is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "my clone/bin"
    programs.mkdir(parents=True)
    for name in ("jointspace", "pip"):
        (programs / name).touch(0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(programs if is_found else tmp_path))
    monkeypatch.setattr(commands, "_program", commands._program.__wrapped__)  # The function has no cache now.
    Path("photos").mkdir()
    Image.new("RGB", (40, 40)).save("photos/0.jpg")
    program = {name: name if is_found else f"'my clone/bin/{name}'" for name in ("jointspace", "pip")}
    said = CliRunner().invoke(cli, ["init", "photos"]).stdout.splitlines()
    assert said[-1] == f"{program['jointspace']} init photos --encoder clip"
    said = CliRunner().invoke(cli, ["init", "photos", "--encoder", "clip"]).stdout.splitlines()
    assert said[-1] == f"{program['jointspace']} run photos.yaml"
    assert any(line.endswith(f": {program['pip']} install 'jointspace[open-clip]'") for line in said)


def test_the_help_fits_on_one_screen() -> None:
    lines = click.Context(cli, info_name="jointspace", terminal_width=80).get_help().splitlines()
    named = [line.split()[0] for line in lines if line.startswith("  ") and line[2:3].isalpha()]
    assert len(lines) <= 40 and set(named) >= set(chain(*USER_COMMANDS.values()))
