"""The trees of a minibatch arranged by height: all nodes of one height are computed at once."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.ragged import offsets_of
from pipeline.text.trees import NOTHING, Trees


class Forest(NamedTuple):
    """The nodes of n trees, tree after tree. `parents` (total,): each node's parent among all nodes, -1 for a root;
    `words` (total,): its word's id, -1 for none; `labels` (total,); `trees` (total,): its tree."""

    parents: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    trees: np.ndarray

    def roots(self) -> np.ndarray:
        """(n,) the root of each tree."""
        return np.flatnonzero(self.parents < 0)

    def heights(self) -> list[np.ndarray]:
        """The nodes by height: the leaves, then the nodes whose children are all leaves, and so on."""
        inner = self.parents[self.parents >= 0]
        waiting = np.bincount(inner, minlength=len(self.parents))
        ready, by_height = np.flatnonzero(waiting == 0), []
        while len(ready):
            by_height.append(ready)
            above = self.parents[ready]
            above = above[above >= 0]
            np.subtract.at(waiting, above, 1)
            above = np.unique(above)
            ready = above[waiting[above] == 0]
        return by_height


def forest(trees: Trees, unknown: int) -> Forest:
    """The nodes of `trees` under one numbering; an empty tree becomes the one word `unknown`."""
    empty = np.flatnonzero(trees.lengths == 0)
    at, lengths = trees.offsets[empty], np.maximum(trees.lengths, 1)
    parents = np.insert(trees.parents, at, NOTHING).astype(np.int64)
    words, labels = np.insert(trees.words, at, unknown), np.insert(trees.labels, at, NOTHING)
    first = np.repeat(offsets_of(lengths)[:-1], lengths)
    parents = np.where(parents < 0, NOTHING, parents + first)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return Forest(parents, words.astype(np.int64), labels.astype(np.int64), owners)


def positions(parents: np.ndarray) -> np.ndarray:
    """(total,) pos(i, j) of Socher et al. 2014, eq. 4, for every node j of dependency trees: -1 for l1, the left child
    nearest to its head, -2 for l2 further left, 1 for r1, 2 for r2; 0 for a root."""
    nodes = np.flatnonzero(parents >= 0)
    nodes = nodes[np.argsort(parents[nodes], kind="stable")]
    heads = parents[nodes]
    first = np.searchsorted(heads, heads, "left")
    before = np.bincount(heads[nodes < heads], minlength=len(parents))[heads]
    place = np.arange(len(nodes)) - first - before
    position = np.zeros(len(parents), np.int64)
    position[nodes] = place + (place >= 0)
    return position


def word_counts(nodes: Forest) -> np.ndarray:
    """(total,) l(i) of Socher et al. 2014, eq. 4: words at and under every node."""
    counts = (nodes.words >= 0).astype(np.int64)
    for rows in nodes.heights():
        below = rows[nodes.parents[rows] >= 0]
        np.add.at(counts, nodes.parents[below], counts[below])
    return counts


def in_order(nodes: Forest) -> np.ndarray:
    """The nodes of phrase trees that have a parent, ordered by parent, then by their first word."""
    parents, total = nodes.parents, len(nodes.parents)
    first = np.where(nodes.words >= 0, np.arange(total), total)
    for rows in nodes.heights():
        below = rows[parents[rows] >= 0]
        np.minimum.at(first, parents[below], first[below])
    children = np.flatnonzero(parents >= 0)
    return children[np.lexsort((first[children], parents[children]))]


def binary(nodes: Forest) -> Forest:
    """Convert phrase trees to binary phrase trees, whose `labels` are 0 for left children and roots, else 1.

    Of more than two children the first two are joined, then this pair with the third, and so on. A phrase of one child
    becomes this child.
    """
    total = len(nodes.parents)
    children = in_order(nodes)
    phrases = nodes.parents[children]
    # A child with an elder sibling is the right side of a new node: number total, total + 1, ...
    rank = np.arange(len(children)) - np.searchsorted(phrases, phrases, "left")
    joined = np.flatnonzero(rank > 0)
    new_node = np.full(len(children), NOTHING)
    new_node[joined] = total + np.arange(len(joined))
    substitute = _substitutes(total + len(joined), phrases, np.where(rank > 0, new_node, children))
    left = np.where(rank[joined] == 1, substitute[children[joined - 1]], new_node[joined - 1])
    right = substitute[children[joined]]
    parents = np.full(total + len(joined), NOTHING)
    parents[left] = new_node[joined]
    parents[right] = new_node[joined]
    sides = np.zeros(total + len(joined), np.int64)
    sides[right] = 1
    words = np.concatenate([nodes.words, np.full(len(joined), NOTHING)])
    trees = np.concatenate([nodes.trees, nodes.trees[phrases[joined]]])
    return _select(Forest(parents, words, sides, trees), np.append(nodes.words >= 0, np.ones(len(joined), bool)))


def _substitutes(total: int, phrases: np.ndarray, tops: np.ndarray) -> np.ndarray:
    """Return the node that takes the place of each of `total` nodes: a phrase is replaced by the top of its last child,
    again and again until nothing changes. `phrases` (k,), in ascending order, are the parents of the children."""
    substitute = np.arange(total)
    is_last = np.append(phrases[1:] != phrases[:-1], True)[: len(phrases)]
    substitute[phrases[is_last]] = tops[is_last]
    while (substitute[substitute] != substitute).any():
        substitute = substitute[substitute]
    return substitute


def _select(nodes: Forest, is_kept: np.ndarray) -> Forest:
    """Keep some nodes, whose parents are kept too, and number them tree after tree."""
    kept = np.flatnonzero(is_kept)
    kept = kept[np.argsort(nodes.trees[kept], kind="stable")]
    number = np.full(len(is_kept) + 1, NOTHING)  # the last is the parent of roots, which is NOTHING too
    number[kept] = np.arange(len(kept))
    return Forest(number[nodes.parents[kept]], nodes.words[kept], nodes.labels[kept], nodes.trees[kept])


class Level(NamedTuple):
    """Rows `start` to `stop`; those before `joined` have a parent and form the `groups` (kind, start, stop)."""

    start: int
    joined: int
    stop: int
    groups: list[tuple[int, int, int]]


class Levels(NamedTuple):
    """The nodes of n trees as rows: by height, leaves first; within a height by kind, roots last.

    Of each row: `nodes` (total,) the node, `words` (total,) its word, -1 for none, `parents` (total,) its parent's row,
    -1 for a root, `weights` (total, 1) float32 its share in its parent, `own` (total, 1) float32 the share of its word
    in itself. `roots` (n,): the row of each tree's root. `kinds`: each kind with its rows that have a parent.
    """

    levels: list[Level]
    nodes: Tensor
    words: Tensor
    parents: Tensor
    weights: Tensor
    own: Tensor
    roots: Tensor
    kinds: list[tuple[int, Tensor]]


def level(nodes: Forest, kinds: np.ndarray, counts: np.ndarray | None) -> Levels:
    """Arrange `nodes`; those of one of the `kinds` (total,) share a matrix, kind -1 has none.

    `counts` (total,) weight children by their words as in Socher et al. 2014, eq. 4; None gives weights of 1.
    """
    parents, heights = nodes.parents, nodes.heights()
    height = np.zeros(len(parents), np.int64)
    for number, rows_of_height in enumerate(heights):
        height[rows_of_height] = number
    rooted = parents < 0
    order = np.lexsort((kinds, rooted, height))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    kind, above = kinds[order], parents[order]
    joined = above >= 0
    changes = np.flatnonzero(np.diff(kind) != 0) + 1
    levels, start = [], 0
    for rows_of_height in heights:
        stop = start + len(rows_of_height)
        end = start + int(joined[start:stop].sum())
        cuts = changes[np.searchsorted(changes, start, "right") : np.searchsorted(changes, end, "left")]
        edges = [start, *cuts.tolist(), end] if end > start else []
        groups = [(int(kind[a]), a, b) for a, b in zip(edges[:-1], edges[1:], strict=True)]
        levels.append(Level(start, end, stop, groups))
        start = stop
    weights = np.ones(len(order), np.float32)
    own = weights
    if counts is not None:
        weights = np.where(joined, counts[order] / counts[above], 1)
        own = 1 / counts[order]
    children = np.flatnonzero(joined)
    children = children[np.argsort(kind[children], kind="stable")]
    kinds_used, first = np.unique(kind[children], return_index=True)
    by_kind = np.split(children, first[1:]) if len(kinds_used) else []
    return Levels(
        levels,
        torch.from_numpy(order),
        torch.from_numpy(nodes.words[order]),
        torch.from_numpy(np.where(joined, row[above], NOTHING)),
        torch.from_numpy(weights.astype(np.float32))[:, None],
        torch.from_numpy(own.astype(np.float32))[:, None],
        torch.from_numpy(row[nodes.roots()]),
        [(int(k), torch.from_numpy(rows)) for k, rows in zip(kinds_used, by_kind, strict=True)],
    )
