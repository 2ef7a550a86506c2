"""Ids kept by shard: those of a plain array, in memory that does not grow with ids that have no gaps."""

import pickle

import numpy as np
import pytest

from pipeline.storage.sharded_ids import ShardedIds

BOUNDS = np.array([0, 5, 5, 12, 40, 47])
CHOSEN = {
    "none": np.empty(0, np.int64),
    "all": np.arange(47),
    "one": np.array([39]),
    "ends of shards": np.array([0, 4, 5, 11, 12, 39, 40, 46]),
    "some": np.array([1, 2, 3, 6, 9, 20, 22, 23, 24, 41, 42, 43]),
    "every third": np.arange(0, 47, 3),
}


@pytest.mark.parametrize("ids", CHOSEN.values(), ids=CHOSEN)
def test_every_part_has_the_ids_of_its_rows(ids: np.ndarray) -> None:
    kept = ShardedIds.divide(ids, BOUNDS)
    for first in range(len(ids) + 1):
        for last in range(first, len(ids) + 1):
            part = pickle.loads(pickle.dumps(kept.part(first, last)))
            assert part[:].tolist() == ids[first:last].tolist() == kept[first:last].tolist()
            assert len(part) == last - first
