"""Two writers at once: a reader gets one complete file or an error, and no change of an index is lost."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event, Thread, current_thread

import click
import pytest
from synthetic_run import build_bundle, make_run, open_run

from pipeline.errors import IntegrityError, JointspaceError
from pipeline.run.layout import Layout
from pipeline.run.reading import application as applied
from pipeline.run.reading import indexes as bundled
from pipeline.run.runner import run_stage
from pipeline.storage import index_changes
from pipeline.storage.batch import FileBatch
from pipeline.storage.commit import publish, read_verified
from pipeline.storage.locks import hold
from pipeline.storage.stored_index import open_index
from stages.catalogue import declared
from stages.cli import cli

WRITER = """
import sys
from pathlib import Path
from pipeline.storage.commit import publish
path, who = Path(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
while sys.stdin.readline() == "again\\n":
    publish(path, who.encode() * 5000, kind="thing", rows=1, details={"who": who})
    print("done", flush=True)
"""


def test_a_reader_sees_one_of_two_writers_whole_or_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), who], **pipes) for who in "ab"]
    seen: set[str] = set()

    def read() -> None:
        try:
            data, commit = read_verified(path, "thing")
        except IntegrityError:
            seen.add("refused")
            return
        assert data == commit.details["who"].encode() * 5000
        seen.add(commit.details["who"])

    try:
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for _ in range(500):
            for writer in writers:
                writer.stdin.write("again\n")
                writer.stdin.flush()
            waiting = [Thread(target=writer.stdout.readline) for writer in writers]
            for thread in waiting:
                thread.start()
            while any(thread.is_alive() for thread in waiting):
                read()
            read()
            if seen == {"a", "b", "refused"}:
                break
    finally:
        for writer in writers:
            writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0] and seen == {"a", "b", "refused"}
    publish(path, b"c", kind="thing", rows=1, details={"who": "c"})
    assert read_verified(path, "thing")[0] == b"c"
    assert {item.name for item in tmp_path.iterdir()} == {"x.bin", "x.bin.json"}


# --- two changes of one index

INDEXED = range(24)
"""Numbers of the photos in the index."""
IN_03 = range(30, 40)
"""Numbers of the photos in the index `03` of the same model."""
IN_04 = range(40, 50)
"""Numbers of the photos in the index `04` of the same model."""
BUSY = "is being written by "
"""Part of the message with which a change of a locked index is refused."""
Change = Callable[[Path], None]
REMOVE_OPTIONS = {"list_path": None, "where": None, "yes": False}
"""Values of the options of `remove` that these tests do not use."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the run `one`, whose index has one shard, and the run `two`, whose index has two shards.

    Both runs have more indexes of the same model in their subfolder `new`. Return the folder that contains both runs.
    """
    folder = tmp_path_factory.mktemp("changed")
    others = build_bundle(make_run(folder / "others", images=56), {"index": {"bundles": 6}})
    run = make_run(folder / "one")
    shutil.copytree(others, run / "new")
    shutil.copytree(run, folder / "two")
    for count, name in ((1, "one"), (2, "two")):
        index = build_bundle(folder / name, {"index": {"bundles": count}})
        index.rename(Layout(folder / name).index("ncca").path)
    return folder


@pytest.fixture(params=["one", "two"])
def run(request: pytest.FixtureRequest, made: Path, tmp_path: Path) -> Path:
    """Return a copy of a run whose index has one shard, or of a run whose index has two shards."""
    return shutil.copytree(made / request.param, tmp_path / request.param)


def index_of(run: Path) -> Path:
    return Layout(run).index("ncca").path


def call(name: str, **arguments: object) -> None:
    """Call the function of a command in this thread, without the argument parsing of click."""
    cli.get_command(click.Context(cli), name).callback(**{"output": None, **arguments})


def add(run: Path, source: str) -> None:
    """Add the index `03` or `04` to the index of the run."""
    call("add", index=index_of(run), source=run / "new" / source)


def remove(run: Path, number: int) -> None:
    """Remove the photo with this number from the index of the run."""
    name = next(path.name for path in (run / "data").glob(f"*-{number}.png"))
    call("remove", index=index_of(run), names=(name,), **REMOVE_OPTIONS)


def build(run: Path, shard: str = "") -> None:
    """Build the index again. In a run with several shards, a text such as `/01` builds only this shard."""
    count = {"two": 2, "three": 3}.get(run.name, 1)
    opened = open_run(run, {"index": {"bundles": count}})
    run_stage(opened, declared()["build_index"], (f"ncca{shard if count > 1 else ''}",), again=True)


CHANGES: dict[str, Change] = {
    "add 03": lambda run: add(run, "03"),
    "add 04": lambda run: add(run, "04"),
    "remove 5": lambda run: remove(run, 5),
    "remove 21": lambda run: remove(run, 21),
    "build 00": lambda run: build(run, "/00"),
    "build 01": lambda run: build(run, "/01"),
    "build 02": lambda run: build(run, "/02"),
}


def photos(run: Path) -> list[int]:
    """Check every file and row of the index, and return the numbers of its photos in ascending order."""
    index = open_index(index_of(run))
    index.check()
    index.check_rows()
    names = [name for name in index.table("images")["path"].to_pylist() if name is not None]
    return sorted(int(name.partition("-")[2].removesuffix(".png")) for name in names)


def after(*names: str) -> list[int]:
    """Return the numbers of the photos that the index must have after these changes, in ascending order."""
    numbers = {*INDEXED}
    for name in names:
        numbers |= {*(IN_03 if name == "add 03" else IN_04 if name == "add 04" else ())}
        numbers -= {int(name.partition(" ")[2])} if name.startswith("remove") else set()
    return sorted(numbers)


def attempt(run: Path, name: str) -> bool:
    """Make the change `name`, and return whether it was made. A refusal must say that another process is writing."""
    try:
        CHANGES[name](run)
    except JointspaceError as error:
        assert BUSY in str(error), error
        return False
    return True


PAIRS_OF_CHANGES = [
    ("add 03", "add 03"), ("add 03", "add 04"), ("add 03", "remove 5"), ("remove 5", "add 03"),
    ("remove 5", "remove 21"), ("add 03", "build 00"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), PAIRS_OF_CHANGES)
def test_a_change_that_begins_during_another_is_refused(
    first: str, second: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second command starts and ends just after the first command has opened the index. The second command is
    refused, and succeeds when it is run again after the first command."""
    opened = Event()
    ended = Event()
    original = index_changes.open_index

    def open_slowly(*given: object, **named: object) -> object:
        index = original(*given, **named)
        if current_thread() is thread and not opened.is_set():
            opened.set()
            assert ended.wait(60)
        return index

    monkeypatch.setattr(index_changes, "open_index", open_slowly)
    outcome: list[bool] = []
    thread = Thread(target=lambda: outcome.append(attempt(run, first)))
    thread.start()
    assert opened.wait(60)
    made = attempt(run, second)
    ended.set()
    thread.join()
    assert outcome == [True] and not made
    assert photos(run) == after(first)
    assert attempt(run, second) and photos(run) == after(first, second)


def test_an_index_is_not_changed_while_one_of_its_additions_changes(run: Path) -> None:
    """While the lock on the folder of the addition is held, as if another process changed the addition, a removal and
    another addition are refused, and the index is unchanged. Afterwards the removal is made."""
    add(run, "03")
    with hold(index_of(run) / "added/00-03"):
        assert not attempt(run, "remove 5") and not attempt(run, "add 04")
    assert photos(run) == after("add 03")
    assert attempt(run, "remove 5") and photos(run) == after("add 03", "remove 5")


@pytest.mark.parametrize("change", ["add 03", "remove 21"])
def test_an_index_is_not_changed_while_one_of_its_shards_is_built(
    change: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome: list[bool] = []
    write = bundled.write_index_shard

    def change_and_write(*given: object) -> None:
        outcome.append(attempt(run, change))
        write(*given)
        outcome.append(attempt(run, change))

    monkeypatch.setattr(bundled, "write_index_shard", change_and_write)
    build(run, "/01")
    assert outcome == [False, False] and photos(run) == after()
    assert attempt(run, change) and photos(run) == after(change)


def test_two_shards_that_are_finished_together_clean_up_one_after_the_other(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and the third of three shards are finished at the same moment.

    The new shards replace the index of an earlier configuration, which had one shard and an addition. Only one of the
    two jobs at a time updates the addition. The first of the three shards was built before, because the other two use
    its lists.
    """
    run = shutil.copytree(made / "one", tmp_path / "three")
    add(run, "03")
    build(run, "/00")
    write = bundled.write_index_shard
    refresh = applied.refresh_additions
    written = Barrier(2)
    meeting = Barrier(2)
    outcome: list[bool] = []

    def write_together(*given: object) -> None:
        write(*given)
        written.wait(60)

    def meet(stages: object, home: Path) -> None:
        with suppress(BrokenBarrierError):
            meeting.wait(0.3)
            outcome.append(False)
        refresh(stages, home)

    monkeypatch.setattr(bundled, "write_index_shard", write_together)
    monkeypatch.setattr(applied, "refresh_additions", meet)
    threads = [Thread(target=lambda name=name: outcome.append(attempt(run, name))) for name in ("build 01", "build 02")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcome == [True, True] and photos(run) == after("add 03")
    assert not (index_of(run) / "card.json").exists()


@pytest.mark.parametrize("command", ["add", "remove"])
def test_a_copy_of_an_index_that_is_changed_meanwhile_is_refused(
    command: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is changed after three files of the copy were linked. Copying an index does not lock it."""
    run = shutil.copytree(made / "one", tmp_path / "one")
    link = FileBatch.link
    links = []

    def link_and_change(batch: FileBatch, path: Path, source: Path) -> None:
        link(batch, path, source)
        links.append(path)
        if len(links) == 3:
            remove(run, 7)

    def copy() -> Path:
        output = tmp_path / "copy" / str(len(links))
        if command == "add":
            call(command, index=shutil.copytree(run / "new/03", output), source=index_of(run))
        else:
            call(command, index=index_of(run), names=("3",), output=output, **REMOVE_OPTIONS)
        return output

    monkeypatch.setattr(FileBatch, "link", link_and_change)
    with pytest.raises(JointspaceError, match=rf"{index_of(run)} was changed while it was copied\. Run the same"):
        copy()
    left = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert not [path for path in left if "added" in path.parts or path.name.startswith(".")]
    assert photos(run) == after("remove 7")
    index = open_index(copy())
    index.check()
    assert index.card.images.count == {"add": 33, "remove": 22}[command]


def begin(barrier: object) -> None:
    """Store the barrier that this process shares with the other process."""
    global together
    together = barrier


def attempt_together(run: Path, name: str) -> bool:
    """Wait until the other process is ready, too, and then make the change `name`. Return whether it was made."""
    together.wait(60)
    return attempt(run, name)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    """Provide two processes that share a barrier."""
    context = get_context("spawn")
    with ProcessPoolExecutor(2, context, begin, (context.Barrier(2),)) as pool:
        yield pool


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("first", "second"), [*PAIRS_OF_CHANGES, ("build 00", "build 01")])
def test_two_processes_lose_nothing(
    first: str, second: str, rounds: int, made: Path, processes: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """The rounds alternate between an index with one shard and an index with two shards. A refused change is repeated
    when both processes have ended, and then the index has the results of both changes."""
    for number in range(rounds):
        name = ("one", "two")[number % 2]
        run = shutil.copytree(made / name, tmp_path / str(number) / name)
        outcomes = list(processes.map(attempt_together, [run, run], [first, second]))
        assert any(outcomes)
        for change, done in zip((first, second), outcomes, strict=True):
            assert done or attempt(run, change)
        assert photos(run) == after(first, second)
        assert not list(run.rglob(".*"))
