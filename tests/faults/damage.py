"""Kinds of damage to the bytes of a file. Each function returns a damaged copy of `data`."""

from random import Random

PAGE = 4096
"""Number of bytes that `zero_page` overwrites."""


def truncate(data: bytes, rng: Random) -> bytes:
    """Cut off a random number of bytes at the end, among them at least one byte that is not white space."""
    return data[: rng.randrange(max(len(data.rstrip()), 1))]


def flip(data: bytes, rng: Random) -> bytes:
    """Invert one random bit."""
    position = rng.randrange(len(data))
    return data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :]


def zero_page(data: bytes, rng: Random) -> bytes:
    """Overwrite a random page with zeros."""
    start = PAGE * rng.randrange(-(-len(data) // PAGE))
    return data[:start] + bytes(min(PAGE, len(data) - start)) + data[start + PAGE :]


def zero_all(data: bytes, rng: Random) -> bytes:
    return bytes(len(data))


def empty(data: bytes, rng: Random) -> bytes:
    return b""


def prolong(data: bytes, rng: Random) -> bytes:
    """Append 1 to 98 random bytes."""
    return data + rng.randbytes(rng.randrange(1, 99))


def exchange(data: bytes, rng: Random) -> bytes:
    """Swap two neighbouring pieces of random lengths."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def insert(data: bytes, rng: Random) -> bytes:
    """Insert 1 to 8 random bytes at a random position."""
    position = rng.randrange(len(data) + 1)
    return data[:position] + rng.randbytes(rng.randrange(1, 9)) + data[position:]


ALL = {
    function.__name__: function
    for function in (truncate, flip, zero_page, zero_all, empty, prolong, exchange, insert)
}  # fmt: skip
"""Name of a kind of damage -> its function."""
