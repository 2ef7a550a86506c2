"""Commands killed with SIGKILL at any of their writes: nothing half-made passes for whole, and the next run makes the
same."""

import shutil
from pathlib import Path
from random import Random

import pytest
import tiny_run
import warm
import yaml
from disks import files_of, same

from pipeline.config.loading import merge
from pipeline.storage.batch import TEMPORARY
from pipeline.storage.json_files import read_json
from pipeline.storage.verify import examine

UNDER_WAY = ("uncommitted", "missing", "mixed")
"""What a killed stage may leave for its next run to finish: nothing truncated, nothing changed."""
TIMED = ("index", "config.yaml")
"""Folders and files of a run that have measured times, or what the last command was told."""


def ask(command: str, arguments: list[str], last: int = 0) -> tuple[int, int]:
    """Has a command run in a child that kills itself at a write: its exit code, and how many writes it began."""
    done = warm.python(Path.cwd(), Path(__file__).with_name("killed.py"), last, command, *arguments)
    return done.returncode, int(done.stdout.split()[-1] if done.stdout.split() else 0)


def kill(run: Path, expected: Path, command: str, call: list[str], made: list[Path], rng: Random) -> None:
    """Kill a call of a command at one of its writes, its old artefacts there or removed, and run it again."""
    code, writes = ask(command, call)
    assert code == 0 and writes
    if rng.random() < 0.5:
        for path in made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert ask(command, call, rng.randint(1, writes))[0] == -9
    # A commit that is there tells the truth; what has none does not exist.
    wrong = [fault for fault in examine(run).faults if not fault.reason.startswith(UNDER_WAY)]
    assert not wrong, (command, wrong)
    for again in tiny_run.stages(tiny_run.root_of(call), run)[command][0]:
        assert ask(command, [word for word in again if word != "--again"])[0] == 0
    after = examine(run)
    assert not after.faults and not after.temporaries, command
    assert not [path for path in run.rglob(".*") if TEMPORARY.match(path.name)], command
    files, theirs = files_of(run), files_of(expected)
    assert files.keys() == theirs.keys()
    for name, path in files.items():
        timed = name.startswith(TIMED) and path.suffix in (".json", ".yaml")
        assert timed or path.read_bytes() == theirs[name].read_bytes(), name
        assert path.suffix != ".json" or same(path.read_bytes(), theirs[name].read_bytes()), name


@pytest.fixture(scope="module")
def killed(finished: Path, collection: Path) -> Path:
    """A second tiny run, in a folder of its own."""
    return tiny_run.copy(finished, collection.parent / "killed")


def kill_each(killed: Path, finished: Path, collection: Path, commands: list[str], seed: int) -> None:
    rng = Random(seed)
    for command in commands:
        calls, made = tiny_run.stages(collection, killed)[command]
        kill(killed, finished, command, rng.choice(calls), made, rng)


def test_a_handful_of_kills(killed: Path, finished: Path, collection: Path) -> None:
    """One for each kind of artefact: a manifest, shards, a model, a bundle; the long test kills all."""
    commands = ["ingest", "encode_sentences", "fit", "build_index"]
    kill_each(killed, finished, collection, commands, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_kills_of_every_command(killed: Path, finished: Path, collection: Path, seed: int) -> None:
    kill_each(killed, finished, collection, list(tiny_run.stages(collection, killed)), seed)


def test_a_killed_part_goes_on_at_its_first_unfinished_shard(finished: Path, tmp_path: Path) -> None:
    """One part of all shards: those that were committed before the kill are not made again."""
    run, folder = tiny_run.copy(finished, tmp_path / "run"), tmp_path / "run/embeddings/ncca"
    (run / "config.yaml").write_text(yaml.safe_dump(merge(tiny_run.CONFIG, {"parts": 1})))
    call = ["ncca", "--run", str(run)]
    _, writes = ask("embed", [*call, "--again"])
    shutil.rmtree(folder)
    assert ask("embed", call, writes // 2)[0] == -9
    made = {
        path: path.stat().st_ino for path in folder.glob("shard-*.h5") if path.with_name(f"{path.name}.json").exists()
    }
    assert 0 < len(made) < tiny_run.N_SHARDS and not (folder / "part-00000.json").exists()
    assert ask("embed", call)[0] == 0
    assert {path: path.stat().st_ino for path in made} == made
    assert list(read_json(folder / "part-00000.json")["files"]) == [f"shard-0000{n}.h5.json" for n in range(3)]
    for number in range(tiny_run.N_SHARDS):
        name = f"embeddings/ncca/shard-{number:05d}.h5"
        assert (run / name).read_bytes() == (finished / name).read_bytes()
