"""Sentences as the relations of their dependency trees (Karpathy et al. 2014, which Karpathy and Fei-Fei 2015 compares
with)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.neural.dropout import dropout
from pipeline.models.neural.fragments import uniform
from pipeline.multivectors import MultiVectors
from pipeline.ragged import offsets_of
from pipeline.text.trees import Trees

ROOT = 0
"""The matrix of a tree's root, which has no head."""


class Edges(NamedTuple):
    """The relations of n sentences, those with one matrix together: `heads` (total,) and `dependents` (total,) are
    words, a head of -1 none; `groups` are (matrix, start, stop). `rows` (total,): where each stands, sentence after
    sentence; `offsets` (n + 1,) divides these."""

    heads: Tensor
    dependents: Tensor
    groups: list[tuple[int, int, int]]
    rows: Tensor
    offsets: np.ndarray


def learn_relations(trees: Trees, least_share: float) -> list[int]:
    """The matrix of each label, 1, 2, ...; -1 for one that fewer than `least_share` of all words with a head have."""
    counts = np.bincount(trees.labels[trees.parents >= 0])
    kept = counts >= max(1, least_share * counts.sum())
    return np.where(kept, ROOT + np.cumsum(kept), -1).tolist()


def edges_of(trees: Trees, matrix_of: Sequence[int], unknown: int) -> Edges:
    """The root of each tree and its relations that have a matrix, in word order; a tree without nodes is one root,
    `unknown`."""
    known = np.append(np.asarray(matrix_of, np.int64), -1)
    kinds = np.where(trees.parents < 0, ROOT, known[np.minimum(trees.labels, len(matrix_of))])
    sentences = trees.owners
    heads = np.where(trees.parents < 0, -1, trees.words[trees.offsets[:-1][sentences] + trees.parents])
    empty = np.flatnonzero(trees.lengths == 0)
    kinds, sentences, heads, dependents = (
        np.concatenate([column, np.full(len(empty), filler)])
        for column, filler in ((kinds, ROOT), (sentences, 0), (heads, -1), (trees.words, unknown))
    )
    sentences[len(sentences) - len(empty) :] = empty
    kept = np.flatnonzero(kinds >= 0)
    order = kept[np.argsort(kinds[kept], kind="stable")]
    used, starts = np.unique(kinds[order], return_index=True)
    bounds = np.append(starts, len(order)).tolist()
    groups = list(zip(used.tolist(), bounds, bounds[1:], strict=False))
    rows = np.argsort(sentences[order] * (len(kinds) + 1) + order, kind="stable")
    offsets = offsets_of(np.bincount(sentences[order], minlength=len(trees)))
    columns = (torch.from_numpy(column[order].astype(np.int64)) for column in (heads, dependents))
    return Edges(*columns, groups, torch.from_numpy(rows), offsets)


class RelationNetwork(nn.Module):
    """s = f(W_R [W_e w1; W_e w2] + b_R) of each relation R of a head w1 and a dependent w2, f the rectifier.

    Paper to code: W_e `words` (V + 1, d), the unknown word's last; W_R `weight[matrix_of[R]]` (h, 2 d), b_R `bias`. The
    root of a sentence is a relation too, with zeros for its head.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, matrix_of: Sequence[int]) -> None:
        super().__init__()
        self.words, self.matrix_of, self.dropout = nn.Parameter(words), list(matrix_of), dropout
        count, inner = max(matrix_of, default=ROOT) + 1, 2 * words.shape[1]
        self.weight = nn.Parameter(uniform(count * dimensions, inner, inner**-0.5).data.view(count, dimensions, inner))
        self.bias = nn.Parameter(torch.zeros(count, dimensions))

    def arrange(self, trees: Trees) -> Edges:
        """The relations that `forward` takes."""
        return edges_of(trees, self.matrix_of, len(self.words) - 1)

    def forward(self, edges: Edges) -> MultiVectors:
        """One vector a relation, float32."""
        heads = functional.embedding(edges.heads.clamp(min=0), self.words) * (edges.heads >= 0)[:, None]
        pairs = torch.cat([heads, functional.embedding(edges.dependents, self.words)], dim=1)
        pairs = dropout(pairs, self.dropout, self.training)
        weights, biases = self.weight.unbind(), self.bias.unbind()  # one gradient for all, not one as large for each
        parts = [
            functional.linear(pairs[start:stop], weights[kind], biases[kind]) for kind, start, stop in edges.groups
        ]
        vectors = torch.cat(parts).relu() if parts else pairs.new_zeros(0, self.bias.shape[1])
        return MultiVectors(vectors[edges.rows], edges.offsets)
