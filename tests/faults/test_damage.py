"""Damaged artefacts of every kind: each is refused by name, and none harms the process that reads it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import damage
import pytest

MEMORY, SECONDS = 4 << 30, 20
UNREAD = {".md", ".svg", ".html", ".yaml"}
"""Endings of what people read, which no reader of ours takes and nothing vouches for."""


def examine_damage(run: Path, tasks: list[tuple[str, str, int]]) -> list[tuple[tuple[str, str, int], str]]:
    """What becomes of each task; a child that dies or hangs is replaced, and its last task's outcome says so."""
    outcomes: list[str] = []
    while len(outcomes) < len(tasks):
        lines = "".join(json.dumps(task) + "\n" for task in tasks[len(outcomes) :])
        sound = {path: path.read_bytes() for path in files_of(run)}
        child = subprocess.run(
            [sys.executable, Path(__file__).with_name("readers.py"), run, str(MEMORY), str(SECONDS)],
            input=lines, capture_output=True, text=True,
        )  # fmt: skip
        ended = [line.split(" ", 2)[2] for line in child.stdout.splitlines() if line.startswith("end")]
        outcomes += ended
        if child.returncode or not ended:
            outcomes.append(f"the child ended with {child.returncode}: {child.stderr[-500:]}")
            for path, data in sound.items():
                path.write_bytes(data)
    return list(zip(tasks, outcomes, strict=True))


def files_of(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and path.suffix not in UNREAD)


def tasks_for(run: Path, count: int, seed: int) -> list[tuple[str, str, int]]:
    """`count` damages, every file and every kind of damage in turn."""
    rng = Random(seed)
    names = [path.relative_to(run).as_posix() for path in files_of(run)]
    kinds = list(damage.ALL)
    pairs = [(name, kind) for kind in kinds for name in names]
    rng.shuffle(pairs)
    return [(*pairs[number % len(pairs)], rng.randrange(1 << 30)) for number in range(count)]


def check(outcomes: list[tuple[tuple[str, str, int], str]]) -> Counter[str]:
    bad = [(task, outcome) for task, outcome in outcomes if outcome not in ("refused", "harmless", "unchanged")]
    assert not bad, bad[:20]
    return Counter(outcome for _, outcome in outcomes)


def test_damage_of_every_kind_is_refused_by_name(run: Path) -> None:
    counts = check(examine_damage(run, tasks_for(run, 250, seed=1)))
    assert counts["refused"] > 225


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3])
def test_a_thousand_damages(run: Path, seed: int) -> None:
    counts = check(examine_damage(run, tasks_for(run, 1000, seed)))
    print(dict(counts))
    assert counts["refused"] > 900


def test_a_child_that_dies_is_told_from_one_that_refuses(run: Path) -> None:
    """The harness itself: a task that cannot be run is an outcome of its own, and the next one is still done."""
    name = "models/ncca/model.safetensors"
    outcomes = examine_damage(run, [(name, "no such damage", 0), (name, "empty", 0)])
    assert "KeyError" in outcomes[0][1] and outcomes[1][1] == "refused"
