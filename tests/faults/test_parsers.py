"""Fuzzing: whatever bytes a parser of outside data is given, only our own errors come out of it.

pytest -m nightly tests/faults/test_parsers.py        JOINTSPACE_FUZZ inputs for each parser, 100,000 by default
"""

import os
import warnings
from pathlib import Path
from random import Random

import damage
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parsers import PARSERS

from pipeline.errors import JointspaceError

PIECES = (
    b"\t", b"\n", b"\r\n", b"\0", b"\xff", b'"', b"(", b")", b"[", b"]", b"{", b"}", b",", b":", b"-1", b"0", b"1e999",
    b"nan", b"9" * 25, b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"../", b"null", b"true", b"[" * 1200, b"&a;",
    b"<!", b"*a",
)  # fmt: skip
"""What parsers stumble over."""


def mutate(rng: Random, sample: bytes) -> bytes:
    """One to four changes: damage, or pieces put in, put over or doubled."""
    for _ in range(rng.randrange(1, 5)):
        place = rng.randrange(len(sample) + 1)
        match rng.randrange(4):
            case 0:
                sample = sample[:place] + rng.choice(PIECES) + sample[place:]
            case 1:
                piece = rng.choice(PIECES)
                sample = sample[:place] + piece + sample[place + len(piece) :]
            case 2:
                end = rng.randrange(place, len(sample) + 1)
                sample = sample[:end] + sample[place:end] + sample[end:]
            case 3:
                sample = damage.ALL[rng.choice(list(damage.ALL))](sample, rng) if sample else b"\n"
    return sample


def give(name: str, data: bytes, folder: Path) -> bool:
    """Whether the parser takes the data; False where it refuses them with an error of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            PARSERS[name].read(data, folder)
        except JointspaceError as error:
            assert str(error)
            return False
    return True


@pytest.mark.parametrize("name", PARSERS)
def test_sound_data_is_taken(name: str, tmp_path: Path) -> None:
    assert all(give(name, sample, tmp_path) for sample in PARSERS[name].samples)


@pytest.mark.parametrize("name", PARSERS)
def test_bytes_of_any_kind(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, samples = tmp_path_factory.mktemp("fuzz"), st.sampled_from(PARSERS[name].samples)
    changed = st.builds(lambda sample, seed: mutate(Random(seed), sample), samples, st.integers(0, 2**32))
    text = st.text(st.characters(exclude_categories=()) | st.sampled_from("\t\n,(){}[]:#\"'0-"), max_size=80)
    encoded = text.map(lambda value: value.encode("utf-8", "surrogatepass"))

    @settings(max_examples=12, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(changed | encoded | st.binary(max_size=80))
    def try_one(data: bytes) -> None:
        give(name, data, folder)

    try_one()


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARSERS)
def test_many_more(name: str, tmp_path: Path) -> None:
    count, taken = int(os.environ.get("JOINTSPACE_FUZZ", "100000")), 0
    for seed in range(count):
        rng = Random(seed)
        data = mutate(rng, rng.choice(PARSERS[name].samples))
        try:
            taken += give(name, data, tmp_path)
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}: {data[:500]!r}") from error
    print(f"{name}: {count} inputs, {taken} taken")
