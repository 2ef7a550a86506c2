"""Stages killed with SIGKILL at random moments: nothing half-made passes for whole, and the next run makes the same."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import tiny_run

from pipeline.storage.batch import TEMPORARY
from pipeline.storage.integrity import examine

MEASURED = {"build_seconds", "queries_per_second", "recall@10", "latency_ms", "seconds", "check", "fingerprint"}
"""Keys of JSON files whose values are measured times, or follow from them."""

UNDER_WAY = ("uncommitted", "missing", "mixed")
"""What a killed stage may leave for its next run to finish: nothing truncated, nothing changed."""


class Nursery:
    """Runs commands in children that can be killed."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as its process)
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nursery.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def run(self, stage: str, arguments: list[str], seconds: float | None = None) -> dict:
        self._process.stdin.write(json.dumps({"stage": stage, "arguments": arguments, "seconds": seconds}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (stage, self._said())
        return json.loads(answer)

    def finish(self, stage: str, arguments: list[str]) -> float:
        """Run a command to its end; returns the seconds."""
        done = self.run(stage, arguments)
        assert done["code"] == 0, (stage, done, self._said())
        return done["seconds"]

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def disturbed(finished: Path, collection: Path, nursery: Nursery) -> tuple[Path, dict[str, float]]:
    """A second run to be killed, and how long each command of it takes."""
    run = collection.parent / "killed"
    tiny_run.make_encoder(run)
    seconds = {}
    for name, (calls, _) in tiny_run.stages(collection, run).items():
        for arguments in calls:
            seconds[name] = nursery.finish(name, arguments)
    compare(finished, run)
    return run, seconds


def compare(expected: Path, run: Path) -> None:
    """Every file the same, byte for byte; of what holds measured times, everything else."""
    names = {path.relative_to(expected) for path in expected.rglob("*") if path.is_file()}
    assert {path.relative_to(run) for path in run.rglob("*") if path.is_file()} == names
    for name in names:
        ours, theirs = (run / name).read_bytes(), (expected / name).read_bytes()
        if ours != theirs:
            assert name.parts[0] == "index" and name.suffix == ".json", name
            assert without_times(json.loads(ours)) == without_times(json.loads(theirs)), name


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in MEASURED and key != "files"}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def kill_at_random(
    nursery: Nursery, collection: Path, disturbed: tuple[Path, dict[str, float]], finished: Path, count: int, seed: int
) -> Counter[str]:
    """Kill `count` calls, their old artefacts there or removed, and run them again; returns the kills of each stage."""
    run, seconds = disturbed
    rng, kills = Random(seed), Counter()
    table = tiny_run.stages(collection, run)
    for number in range(50 * count):
        if sum(kills.values()) == count:
            break
        stage = list(table)[number % len(table)]
        calls, made = table[stage]
        arguments = rng.choice(calls)
        if rng.random() < 0.6:
            for path in made:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        done = nursery.run(stage, arguments, rng.uniform(0, 1.1) * seconds[stage])
        kills[stage] += done["killed"]
        # A commit that is there tells the truth; what has none does not exist.
        faults = {fault.path: fault.reason for fault in examine(run).faults}
        wrong = {path: why for path, why in faults.items() if not why.startswith(UNDER_WAY)}
        assert not wrong, (stage, wrong)
        for again in calls:
            nursery.finish(stage, again)
        compare(finished, run)
        assert not [path for path in run.rglob(".*") if TEMPORARY.match(path.name)], stage
    return kills


def test_a_handful_of_kills(nursery: Nursery, collection: Path, disturbed, finished: Path) -> None:
    kills = kill_at_random(nursery, collection, disturbed, finished, 13, seed=1)
    assert sum(kills.values()) == 13 and len(kills) > 6


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_many_kills(nursery: Nursery, collection: Path, disturbed, finished: Path, seed: int) -> None:
    kills = kill_at_random(nursery, collection, disturbed, finished, 100, seed)
    print(dict(kills))
    assert sum(kills.values()) == 100
