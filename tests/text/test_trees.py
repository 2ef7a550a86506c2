"""Packed trees against their plain meaning, and what is refused."""

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.text.trees import Trees, pack


def random_tree(rng: np.random.Generator, size: int) -> list[tuple[int, int, int]]:
    """A random tree whose nodes stand in random order."""
    order = rng.permutation(size)
    nodes: list[tuple[int, int, int]] = [(-1, 0, 0)] * size
    for place in range(size):
        parent = order[rng.integers(place)] if place else -1
        nodes[order[place]] = (int(parent), int(rng.integers(50)), int(rng.integers(9)))
    return nodes


def unpacked(trees: Trees) -> list[list[tuple[int, int, int]]]:
    rows = list(zip(trees.parents.tolist(), trees.words.tolist(), trees.labels.tolist(), strict=True))
    return [rows[start:stop] for start, stop in zip(trees.offsets[:-1], trees.offsets[1:], strict=True)]


def test_packing_and_taking_keep_every_tree() -> None:
    rng = np.random.default_rng(0)
    plain = [random_tree(rng, int(size)) for size in rng.integers(0, 12, 40)]
    trees = pack(plain)
    trees.check()
    assert len(trees) == 40 and unpacked(trees) == plain
    assert (trees.parents.dtype, trees.words.dtype, trees.labels.dtype) == (np.int32,) * 3
    assert trees.offsets.dtype == np.int64
    rows = np.array([7, 7, 0, 39])
    assert unpacked(trees.take(rows)) == [plain[row] for row in rows]
    assert len(trees.take(np.array([], np.int64))) == 0


@pytest.mark.parametrize(
    ("parents", "fault"),
    [
        ([1, 2, 0], "exactly one root"),
        ([-1, 2, 1], "cycle"),
        ([-1, 1], "cycle"),
        ([-1, -1], "exactly one root"),
        ([-1, 2], "not in the sentence"),
        ([-1, -2], "not in the sentence"),
    ],
)
def test_what_is_not_a_tree_is_named(parents: list[int], fault: str) -> None:
    trees = pack([[(-1, 0, 0)], [(parent, 0, 0) for parent in parents], [(-1, 0, 0)] * 2])
    with pytest.raises(InputError, match=f"sentence 1 .*{fault}"):
        trees.take(np.array([0, 1])).check()


def test_a_cycle_beside_a_long_branch_is_found() -> None:
    parents = [*range(-1, 99), 102, 100, 101]
    with pytest.raises(InputError, match="sentence 0 .*cycle"):
        pack([[(parent, 0, 0) for parent in parents]]).check()


def test_arrays_that_do_not_fit_are_refused() -> None:
    trees = pack([[(-1, 0, 0)]])
    with pytest.raises(InputError, match="do not fit"):
        Trees(trees.parents, trees.words[:0], trees.labels, trees.offsets).check()
