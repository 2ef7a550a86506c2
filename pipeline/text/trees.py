"""Rooted ordered trees over the words of sentences, packed into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import InputError
from pipeline.ragged import Ragged, offsets_of

NOTHING = -1
"""Parent of a root; word of a node without a word."""


@dataclass(frozen=True)
class Trees(Ragged):
    """n trees one after another: the nodes of tree i are rows offsets[i] to offsets[i + 1].

    `parents` (total,) int32: position of the parent among the tree's own nodes, -1 for the root.
    `words` (total,) int32: id in a vocabulary of V words, V for any other word, -1 for a node without one.
    `labels` (total,) int32: id in a table of L labels, L for any other label.
    `offsets` (n + 1,) int64.

    A dependency tree has a node per word, in word order; its labels are relations. A phrase tree has its leaves first,
    in word order, then its phrases, each after those in it; its labels are parts of speech and phrase categories.
    Children are in word order. A sentence without words has no nodes.
    """

    parents: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray

    def check(self) -> None:
        """Raises InputError naming the first faulty tree: a parent outside it, no or several roots, or a cycle."""
        total, lengths = int(self.offsets[-1]), self.lengths
        sizes = {len(self.parents), len(self.words), len(self.labels)}
        if self.offsets[0] or (lengths < 0).any() or sizes != {total}:
            raise InputError(f"packed trees: {sorted(sizes)} nodes do not fit offsets that end at {total}; parse again")
        if not total:
            return
        owners = self.owners
        outside = (self.parents < NOTHING) | (self.parents >= lengths[owners])
        self._refuse(owners[outside], "has a node whose parent is not in the sentence")
        roots = np.bincount(owners[self.parents == NOTHING], minlength=len(self))
        self._refuse(np.flatnonzero((roots != 1) & (lengths > 0)), "does not have exactly one root")
        rooted = self.parents == NOTHING
        up = np.where(rooted, np.arange(total), self.parents + self.offsets[:-1][owners])
        for _ in range(int(lengths.max()).bit_length()):  # each pass doubles the steps
            up = up[up]
        self._refuse(owners[~rooted[up]], "has a cycle")

    @staticmethod
    def _refuse(trees: np.ndarray, fault: str) -> None:
        if len(trees):
            raise InputError(f"the tree of sentence {trees[0]} (counted from 0) {fault}; correct its parse")


def pack(trees: Sequence[Sequence[tuple[int, int, int]]]) -> Trees:
    """Trees of nodes (parent, word, label)."""
    offsets = offsets_of(list(map(len, trees)))
    columns = np.array([node for tree in trees for node in tree], np.int32).reshape(-1, 3)
    return Trees(*(np.ascontiguousarray(column) for column in columns.T), offsets)
