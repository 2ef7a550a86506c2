"""Fuzzing of all parsers of untrusted data: for arbitrary bytes, a parser may raise only errors of jointspace.

    pytest -m nightly tests/faults/test_parsers.py

tries as many inputs per parser as the environment variable JOINTSPACE_FUZZ says, or 100,000 if the variable is not set.
A parser of collections gets only a fiftieth of this number, because each of its inputs starts a database, which takes
10 to 50 ms of CPU time.
"""

import os
import warnings
from pathlib import Path
from random import Random

import damage
import pytest
from parsers import PARSERS, ingests

from pipeline.errors import JointspaceError

COUNT = int(os.environ.get("JOINTSPACE_FUZZ", "100000"))
PIECES = (
    b"\t", b"\n", b"\r\n", b"\0", b"\xff", b'"', b"(", b")", b"[", b"]", b"{", b"}", b",", b":", b"-1", b"0", b"1e999",
    b"nan", b"9" * 25, b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"../", b"null", b"true", b"[" * 1200, b"&a;",
    b"<!", b"*a",
)  # fmt: skip
"""Byte sequences that often break parsers."""


def invent(rng: Random, samples: list[bytes]) -> bytes:
    """Return a changed sample (half of the time), random text, or random bytes."""
    match rng.randrange(4):
        case 0:
            drawn = ("\t\n,(){}[]:#\"'0-", [chr(rng.randrange(0x110000))])
            text = "".join(rng.choice(rng.choice(drawn)) for _ in range(rng.randrange(80)))
            return text.encode("utf-8", "surrogatepass")
        case 1:
            return rng.randbytes(rng.randrange(80))
    return mutate(rng, rng.choice(samples))


def mutate(rng: Random, sample: bytes) -> bytes:
    """Change a sample one to four times: damage it, insert or overwrite a piece, or repeat a section."""
    for _ in range(rng.randrange(1, 5)):
        position = rng.randrange(len(sample) + 1)
        match rng.randrange(4):
            case 0:
                sample = sample[:position] + rng.choice(PIECES) + sample[position:]
            case 1:
                piece = rng.choice(PIECES)
                sample = sample[:position] + piece + sample[position + len(piece) :]
            case 2:
                end = rng.randrange(position, len(sample) + 1)
                sample = sample[:end] + sample[position:end] + sample[end:]
            case 3:
                sample = damage.ALL[rng.choice(list(damage.ALL))](sample, rng) if sample else b"\n"
    return sample


def parse(name: str, data: bytes, folder: Path) -> bool:
    """Return whether the parser accepts the data. False means that it raises a JointspaceError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            PARSERS[name][0](data, folder)
        except JointspaceError as error:
            assert str(error)
            return False
    return True


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("count", [40, pytest.param(COUNT, marks=pytest.mark.nightly)])
def test_samples_are_accepted_and_no_bytes_break_a_parser(name: str, count: int, tmp_path: Path) -> None:
    _, *samples = PARSERS[name]
    assert all(parse(name, sample, tmp_path) for sample in samples)
    if count == COUNT and PARSERS[name][0].__qualname__.startswith(ingests.__qualname__):
        count //= 50
    for seed in range(count):
        data = invent(Random(seed), samples)
        try:
            parse(name, data, tmp_path)
        except Exception as error:
            error.add_note(f"The input was {data!r}.")
            raise
