"""Random damage to a run's files of every kind: `verify` finds each, and names its file or artefact."""

import json
from pathlib import Path
from random import Random

import damage
import pytest

from pipeline.storage.integrity import examine

UNREAD = {".md", ".svg", ".html", ".yaml"}
"""Endings of what people read, which no reader of ours takes and nothing vouches for."""


def missed(run: Path, count: int, seed: int) -> list[str]:
    """The damages that `verify` does not find, of `count`: every file and every kind of damage in turn."""
    rng, found = Random(seed), []
    files = sorted(path for path in run.rglob("*") if path.is_file() and path.suffix not in UNREAD)
    pairs = [(path, kind) for kind in damage.ALL for path in files]
    rng.shuffle(pairs)
    for number in range(count):
        path, kind = pairs[number % len(pairs)]
        sound = path.read_bytes()
        spoilt = damage.ALL[kind](sound, rng)
        path.write_bytes(spoilt)
        names = {fault.path.parent for fault in examine(run).faults}
        if not _is_same(path, spoilt, sound) and not names & {path.parent, *path.parents}:
            found.append(f"{path.relative_to(run)}: {kind}")
        path.write_bytes(sound)
    return found


def test_verify_finds_damage_of_every_kind(run: Path) -> None:
    assert missed(run, 60, seed=1) == []


def _is_same(path: Path, spoilt: bytes, sound: bytes) -> bool:
    """Whether a file says the same still: two keys of a JSON object may have changed places."""
    if spoilt == sound or path.suffix != ".json":
        return spoilt == sound
    try:
        return json.loads(spoilt) == json.loads(sound)
    except ValueError:
        return False


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3])
def test_verify_finds_a_thousand_damages(run: Path, seed: int) -> None:
    assert missed(run, 1000, seed) == []
