"""What can happen to the bytes of a file."""

from random import Random

PAGE = 4096


def truncate(data: bytes, rng: Random) -> bytes:
    return data[: rng.randrange(max(len(data.rstrip()), 1))]


def flip(data: bytes, rng: Random) -> bytes:
    """One bit."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def zero_page(data: bytes, rng: Random) -> bytes:
    start = PAGE * rng.randrange(-(-len(data) // PAGE))
    return data[:start] + bytes(min(PAGE, len(data) - start)) + data[start + PAGE :]


def zero_all(data: bytes, rng: Random) -> bytes:
    return bytes(len(data))


def empty(data: bytes, rng: Random) -> bytes:
    return b""


def prolong(data: bytes, rng: Random) -> bytes:
    return data + rng.randbytes(rng.randrange(1, 99))


def exchange(data: bytes, rng: Random) -> bytes:
    """Two parts change places."""
    a, b, c = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def insert(data: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.randbytes(rng.randrange(1, 9)) + data[place:]


ALL = {
    function.__name__: function
    for function in (truncate, flip, zero_page, zero_all, empty, prolong, exchange, insert)
}  # fmt: skip
