"""Commands killed with SIGKILL at random: nothing half-made passes for whole, and the next run makes the same."""

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import click
import pytest
import tiny_run
import yaml
from cases import REFUSING, Case, all_cases
from nurseries import Disturbed, Nursery, compare, run_all

from pipeline.config import merge
from pipeline.storage.batch import TEMPORARY
from pipeline.storage.integrity import examine
from pipeline.storage.json_files import read_json
from stages.catalogue import COMMANDS, declared
from stages.cli import cli

ROOT = Path(__file__).parents[2]
UNDER_WAY = ("uncommitted", "missing", "mixed")
"""What a killed stage may leave for its next run to finish: nothing truncated, nothing changed."""


def test_every_command_that_writes_and_every_rule_is_a_case() -> None:
    cases = all_cases(Path("root"), Path("place"))
    commands = {name: cli.get_command(click.Context(cli), name) for name in COMMANDS}
    writing = {name for name, command in commands.items() if any(one.name == "output" for one in command.params)}
    called = {case.stage for case in cases.values()}
    assert {name.replace("-", "_") for name in writing} | set(declared()) <= called
    assert called <= {name.replace("-", "_") for name in COMMANDS}
    files = [ROOT / "Snakefile", *sorted((ROOT / "stages/rules").glob("*.smk"))]
    text = "\n".join(path.read_text() for path in files)
    rules = re.split(r"^(?:rule|checkpoint) (\w+):$", text, flags=re.M)
    calling = {name for name, body in zip(rules[1::2], rules[2::2], strict=True) if "shell:" in body}
    assert len(calling) > 40 and calling - {"extract_more"} <= set(cases)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def disturbed(finished: Path, collection: Path, nursery: Nursery) -> Disturbed:
    """A second tiny run."""
    run = collection.parent / "killed"
    tiny_run.make_encoder(run)
    cases = {name: Case(name, *value) for name, value in tiny_run.stages(collection, run).items()}
    times = run_all(nursery, cases)
    compare(finished, run)
    return Disturbed(run, run, finished, cases, times)


def kill_at_random(nursery: Nursery, disturbed: Disturbed, each: int, seed: int) -> Counter[str]:
    """Kill every case `each` times, its old artefacts there or removed, and run it again; returns the kills.

    Half of the moments are drawn over all that a call takes, the others over what it takes once it begins to write.
    """
    rng, kills = Random(seed), Counter()
    cases = {name: case for name, case in disturbed.cases.items() if case.possible}
    for _ in range(50):
        for name in (name for name in cases if kills[name] < each):
            kills[name] += kill_once(nursery, disturbed, name, rng)
    return kills


def kill_once(nursery: Nursery, disturbed: Disturbed, name: str, rng: Random) -> bool:
    """Whether a call of a case was killed, and had not ended before; it is run again all the same."""
    case, which = disturbed.cases[name], rng.randrange(len(disturbed.cases[name].calls))
    calls = case.calls
    if rng.random() < 0.6 or case.stage in REFUSING:
        calls = [[word for word in call if word != "--again"] for call in calls]
        for path in case.made:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    whole, late = disturbed.times[name][which], rng.random() < 0.5
    longest = 1.1 * (whole.seconds - whole.writing * late)
    done = nursery.run(case.stage, calls[which], seconds=rng.uniform(0, longest), since_writing=late)
    # A commit that is there tells the truth; what has none does not exist.
    faults = {fault.path: fault.reason for fault in examine(disturbed.run).faults}
    wrong = {path: why for path, why in faults.items() if not why.startswith(UNDER_WAY)}
    assert not wrong, (name, wrong)
    for call in () if case.stage in REFUSING and case.made[0].exists() else calls:
        nursery.finish(case.stage, call)
    after = examine(disturbed.run)
    assert not after.faults and not after.temporaries, name
    assert not [path for path in disturbed.folder.rglob(".*") if TEMPORARY.match(path.name)], name
    for timed in compare(disturbed.expected, disturbed.folder):  # or what is made from it will differ
        shutil.copy2(disturbed.expected / timed, disturbed.folder / timed)
    return done.killed


def test_a_handful_of_kills(nursery: Nursery, disturbed: Disturbed) -> None:
    """One for each kind of artefact: a manifest, shards, a model, a bundle, a record; the long test kills all."""
    cases = {name: disturbed.cases[name] for name in ("ingest", "encode_sentences", "fit", "build_index", "evaluate")}
    kills = kill_at_random(nursery, disturbed._replace(cases=cases), 1, seed=1)
    assert set(+kills) == set(cases)


def test_a_killed_part_goes_on_at_its_first_unfinished_shard(
    nursery: Nursery, finished: Path, collection: Path, tmp_path: Path
) -> None:
    """One part of all shards: those that were committed before the kill are not made again."""
    run, folder = tiny_run.copy(finished, tmp_path / "run"), tmp_path / "run/embeddings/ncca"
    chosen = merge(tiny_run.CONFIG, {"parts": 1})
    (run / "config.yaml").write_text(yaml.safe_dump(chosen))
    call, made = ["ncca", "--run", str(run)], {}
    whole, rng = nursery.finish("embed", [*call, "--again"]), Random(1)
    for _ in range(100):
        shutil.rmtree(folder)
        span = whole.seconds - whole.writing
        nursery.run("embed", call, seconds=rng.uniform(0, span), since_writing=True)
        made = {path.with_suffix(""): path.with_suffix("").stat().st_ino for path in folder.glob("shard-*.json")}
        if 0 < len(made) < tiny_run.N_SHARDS:
            break
    assert 0 < len(made) < tiny_run.N_SHARDS and not (folder / "part-00000.json").exists()
    nursery.finish("embed", call)
    assert {path: path.stat().st_ino for path in made} == made
    assert list(read_json(folder / "part-00000.json")["files"]) == [f"shard-0000{n}.h5.json" for n in range(3)]
    for number in range(tiny_run.N_SHARDS):
        name = f"embeddings/ncca/shard-{number:05d}.h5"
        assert (run / name).read_bytes() == (finished / name).read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills_of_every_command(whole_nursery: Nursery, whole: Disturbed, seed: int) -> None:
    kills = kill_at_random(whole_nursery, whole, 3, seed)
    print(dict(kills))
    possible = {name for name, case in whole.cases.items() if case.possible}
    assert kills == dict.fromkeys(possible, 3)
