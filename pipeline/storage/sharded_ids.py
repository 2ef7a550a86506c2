"""Ascending ids of images or sentences, kept by shard: those of a shard as a range, or, if some are left out, as a bit
for each of its rows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

Ids = range | np.ndarray
"""Ascending ids: a range, or an array (k,) int64."""


@dataclass(frozen=True)
class PackedIds:
    """`count` ids, the lowest of which is `first`; the `bits` say of each number from there on whether it is one."""

    first: int
    count: int
    bits: np.ndarray

    def __len__(self) -> int:
        return self.count


def pack(ids: Ids) -> range | PackedIds:
    """The ids (k,) as they are kept."""
    if isinstance(ids, range) or not len(ids):
        return ids if len(ids) else range(0)
    first, last = int(ids[0]), int(ids[-1])
    if last - first == len(ids) - 1:
        return range(first, last + 1)
    chosen = np.zeros(last - first + 1, bool)
    chosen[ids - first] = True
    return PackedIds(first, len(ids), np.packbits(chosen))


def unpack(kept: range | PackedIds) -> Ids:
    return kept.first + np.flatnonzero(np.unpackbits(kept.bits)) if isinstance(kept, PackedIds) else kept


class ShardedIds:
    """The ids of some shards, given by `(number, what pack(ids) returns)` in ascending order."""

    def __init__(self, shards: Iterable[tuple[int, range | PackedIds]]) -> None:
        self._kept = [(number, kept) for number, kept in shards if len(kept)]
        self._cuts = np.cumsum([0, *(len(kept) for _, kept in self._kept)])

    @classmethod
    def divide(cls, ids: np.ndarray, bounds: np.ndarray) -> "ShardedIds":
        """The `ids` (k,), where `bounds` (n_shards + 1,) are the first ids of the shards, and the end."""
        cuts = np.searchsorted(ids, bounds)
        shards = np.flatnonzero(np.diff(cuts)).tolist()
        return cls((number, pack(ids[cuts[number] : cuts[number + 1]])) for number in shards)

    def __len__(self) -> int:
        return int(self._cuts[-1])

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """The ids (k,) in ascending `rows`, or in a slice of them."""
        if isinstance(rows, slice):
            first, last, _ = rows.indices(len(self))
            return np.concatenate([np.empty(0, np.int64), *(ids for _, ids in self.part(first, last))])
        cuts, found = np.searchsorted(rows, self._cuts), np.empty(len(rows), np.int64)
        for at in np.flatnonzero(np.diff(cuts)).tolist():
            own = slice(cuts[at], cuts[at + 1])
            found[own] = np.asarray(unpack(self._kept[at][1]))[rows[own] - self._cuts[at]]
        return found

    def __iter__(self) -> Iterator[tuple[int, Ids]]:
        """Each shard that has some of the ids, and these."""
        return ((number, unpack(kept)) for number, kept in self._kept)

    @property
    def numbers(self) -> np.ndarray:
        """(s,) int64, the shards that have some of the ids."""
        return np.array([number for number, _ in self._kept], np.int64)

    def part(self, first: int, last: int) -> "ShardedIds":
        """The ids in the rows [first, last)."""
        start, stop = np.searchsorted(self._cuts, [first, last], "right").tolist()
        return ShardedIds(self._cut(at, first, last) for at in range(start - 1, min(stop, len(self._kept))))

    def _cut(self, at: int, first: int, last: int) -> tuple[int, range | PackedIds]:
        """What a shard has of them."""
        (number, kept), start = self._kept[at], int(self._cuts[at])
        if first <= start and start + len(kept) <= last:
            return number, kept
        return number, pack(unpack(kept)[max(first - start, 0) : max(last - start, 0)])
