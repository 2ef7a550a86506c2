"""The trees of a batch, arranged by height, so that all nodes of the same height are computed at once."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.ragged import offsets_of
from pipeline.text.trees import NOTHING, Trees


class Forest(NamedTuple):
    """The nodes of n trees, tree after tree, numbered from 0 over all trees.

    `parents` (total,) are the numbers of the nodes' parents, or -1 for a root. `words` (total,) are the ids of the
    nodes' words, or -1. `labels` (total,) are their labels, and `trees` (total,) the numbers of their trees.
    """

    parents: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    trees: np.ndarray

    def roots(self) -> np.ndarray:
        """Return the number of the root of each tree, (n,)."""
        return np.flatnonzero(self.parents < 0)

    def heights(self) -> list[np.ndarray]:
        """Return the numbers of the nodes of each height, from the leaves (height 0) to the highest roots.

        The height of a node is 1 more than the greatest height of its children.
        """
        inner = self.parents[self.parents >= 0]
        waiting = np.bincount(inner, minlength=len(self.parents))
        ready = np.flatnonzero(waiting == 0)
        by_height = []
        while len(ready):
            by_height.append(ready)
            above = self.parents[ready]
            above = above[above >= 0]
            np.subtract.at(waiting, above, 1)
            above = np.unique(above)
            ready = above[waiting[above] == 0]
        return by_height


def forest(trees: Trees, unknown: int) -> Forest:
    """Number the nodes of all `trees`. An empty tree becomes a single node with the word id `unknown` and the label
    -1."""
    empty = np.flatnonzero(trees.lengths == 0)
    insertions = trees.offsets[empty]
    lengths = np.maximum(trees.lengths, 1)
    parents = np.insert(trees.parents, insertions, NOTHING).astype(np.int64)
    words = np.insert(trees.words, insertions, unknown)
    labels = np.insert(trees.labels, insertions, NOTHING)
    first = np.repeat(offsets_of(lengths)[:-1], lengths)
    parents = np.where(parents < 0, NOTHING, parents + first)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    return Forest(parents, words.astype(np.int64), labels.astype(np.int64), owners)


def positions(parents: np.ndarray) -> np.ndarray:
    """Compute the position (total,) of each node of dependency trees among the children of its head. The position is
    pos(i, j) of Socher et al. 2014, eq. 4, for the node j with the head i. `parents` (total,) are as in Forest.

    The result is -1 for l1, the nearest child on the left of its head, -2 for l2, the next child on the left, and so
    on. The result is 1 for r1 and 2 for r2 on the right, and 0 for a root.
    """
    nodes = np.flatnonzero(parents >= 0)
    nodes = nodes[np.argsort(parents[nodes], kind="stable")]
    heads = parents[nodes]
    first = np.searchsorted(heads, heads, "left")
    before = np.bincount(heads[nodes < heads], minlength=len(parents))[heads]
    rank = np.arange(len(nodes)) - first - before
    position = np.zeros(len(parents), np.int64)
    position[nodes] = rank + (rank >= 0)
    return position


def word_counts(nodes: Forest) -> np.ndarray:
    """Compute l(i) of Socher et al. 2014, eq. 4: the number of words at each node and below it, (total,)."""
    counts = (nodes.words >= 0).astype(np.int64)
    for rows in nodes.heights():
        below = rows[nodes.parents[rows] >= 0]
        np.add.at(counts, nodes.parents[below], counts[below])
    return counts


def in_order(nodes: Forest) -> np.ndarray:
    """Return the numbers of all nodes that have a parent. They are sorted by parent, and the children of the same
    parent are sorted by their first words. The trees must be phrase trees."""
    parents = nodes.parents
    total = len(parents)
    first = np.where(nodes.words >= 0, np.arange(total), total)
    for rows in nodes.heights():
        below = rows[parents[rows] >= 0]
        np.minimum.at(first, parents[below], first[below])
    children = np.flatnonzero(parents >= 0)
    return children[np.lexsort((first[children], parents[children]))]


def binarise(nodes: Forest) -> Forest:
    """Convert phrase trees to binary phrase trees. In the result, `labels` is 1 for right children and 0 for all other
    nodes. The labels of the phrases are lost.

    If a phrase has more than two children, the first two are joined to a new node, then this node and the third child,
    and so on. A phrase with a single child is replaced by this child.
    """
    total = len(nodes.parents)
    children = in_order(nodes)
    phrases = nodes.parents[children]
    # Each child with a sibling on its left is the right side of a new node. The new nodes are total, total + 1, ...
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
    """Return for each of `total` nodes the node that replaces it, (total,). A node that is not replaced has its own
    number.

    The arguments have one entry for each of k children, in the order of their parents. `phrases` (k,) are the parents.
    `tops` (k,) has the new node that joins the child to its siblings on the left, or the child itself if it has no such
    siblings. A parent is replaced by the entry in `tops` of its last child. If this entry is a parent too, the parent
    is replaced by the replacement of the entry, and so on.
    """
    substitute = np.arange(total)
    is_last = np.append(phrases[1:] != phrases[:-1], True)[: len(phrases)]
    substitute[phrases[is_last]] = tops[is_last]
    while (substitute[substitute] != substitute).any():
        substitute = substitute[substitute]
    return substitute


def _select(nodes: Forest, is_kept: np.ndarray) -> Forest:
    """Return a Forest of the nodes for which `is_kept` (total,) is true, numbered again tree after tree. The parents of
    kept nodes must be kept too."""
    kept = np.flatnonzero(is_kept)
    kept = kept[np.argsort(nodes.trees[kept], kind="stable")]
    number = np.full(len(is_kept) + 1, NOTHING)  # The last entry is for the parent of a root, which stays NOTHING.
    number[kept] = np.arange(len(kept))
    return Forest(number[nodes.parents[kept]], nodes.words[kept], nodes.labels[kept], nodes.trees[kept])


class Level(NamedTuple):
    """The nodes of one height, in the rows `start` to `stop` - 1.

    The nodes in the rows before `joined` have a parent, and are divided into `groups` (kind, start, stop). The kind of
    a node is the number of the matrix by which its state is multiplied, or -1. The other rows are roots.
    """

    start: int
    joined: int
    stop: int
    groups: list[tuple[int, int, int]]


class Levels(NamedTuple):
    """The nodes of n trees as rows, sorted by height with the leaves first, and within a height by kind with roots
    last.

    `levels` has a Level for each height. `nodes` (total,) are the numbers of the nodes in Forest, `words` (total,) the
    ids of their words or -1, and `parents` (total,) the rows of their parents or -1. `weights` (total, 1) float32 are
    the weights of the nodes' states in their parents, and `own` (total, 1) float32 the weights of the nodes' words in
    the nodes themselves. `roots` (n,) are the rows of the trees' roots. `kinds` has each kind with the rows of this
    kind that have a parent.
    """

    levels: list[Level]
    nodes: Tensor
    words: Tensor
    parents: Tensor
    weights: Tensor
    own: Tensor
    roots: Tensor
    kinds: list[tuple[int, Tensor]]


def arrange_levels(nodes: Forest, kinds: np.ndarray, counts: np.ndarray | None) -> Levels:
    """Sort `nodes` into levels by their height.

    Nodes with the same kind in `kinds` (total,) are multiplied by the same matrix. Kind -1 has no matrix. `counts`
    (total,) are the numbers of words at the nodes and below them, by which children are weighted as in Socher et al.
    2014, eq. 4. If `counts` is None, all weights are 1.
    """
    parents = nodes.parents
    heights = nodes.heights()
    height = np.zeros(len(parents), np.int64)
    for number, rows_of_height in enumerate(heights):
        height[rows_of_height] = number
    is_root = parents < 0
    order = np.lexsort((kinds, is_root, height))
    row = np.empty(len(order), np.int64)
    row[order] = np.arange(len(order))
    kind = kinds[order]
    above = parents[order]
    joined = above >= 0
    changes = np.flatnonzero(np.diff(kind) != 0) + 1
    levels = []
    start = 0
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
