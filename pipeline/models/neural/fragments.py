"""Networks with one vector a region of an image and one vector a fragment of a sentence: a word, or a relation of its
dependency tree (Karpathy and Fei-Fei 2015; Karpathy et al. 2014)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.compute.ragged import offsets_of
from pipeline.metrics.multivector_scores import multivector_scores, score_products
from pipeline.models.neural.losses import ScoredFragments
from pipeline.models.neural.recurrence import Packed, pack
from pipeline.text.sequences import Tokens
from pipeline.text.trees import Trees


def by_sentence(words: Tensor, packed: Packed) -> MultiVectors:
    """The packed rows `words` (total, c) sentence after sentence, each in its own order."""
    return MultiVectors(words[packed.rows], packed.offsets)


def uniform(rows: int, columns: int, reach: float) -> nn.Parameter:
    """(rows, columns) uniform in [-reach, reach]."""
    return nn.Parameter(torch.empty(rows, columns).uniform_(-reach, reach))


class RegionMap(nn.Module):
    """v = W_m x + b_m of Karpathy and Fei-Fei 2015, eq. 1: W_m `weight` (h, D), b_m `bias`.

    x is the stacked features of a region minus the training regions' mean, times `scale`, which brings them, and
    initially v too, to a root mean square length of 1, so that one learning rate suits all encoders.
    """

    def __init__(self, mean: Tensor, scale: Tensor, dimensions: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.weight = uniform(dimensions, len(mean), (3 / dimensions) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(dimensions))
        self.dropout, self.precision = dropout, torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """(total, h) float32 from stacked features (total, D)."""
        x = functional.dropout((x - self.mean) * self.scale, self.dropout, self.training).to(self.precision)
        return (x @ self.weight.to(self.precision).T).float() + self.bias


class RectifiedBRNN(nn.Module):
    """The bidirectional network of Karpathy and Fei-Fei 2015, eq. 2 to 6, f the rectifier; dropout is outside the
    recurrence.

    Paper to code: W_w `words` (V + 1, d), the unknown word's vector last; W_e `e`, W_f `f`, W_b `b`, W_d `d`, and
    their biases b_e ... b_d.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, hidden: int) -> None:
        super().__init__()
        self.words, self.dropout, self.hidden = nn.Parameter(words), dropout, hidden
        inner = (hidden, hidden)
        shapes = {"e": (hidden, words.shape[1]), "f": inner, "b": inner, "d": (dimensions, hidden)}
        for name, (rows, columns) in shapes.items():
            self.register_parameter(name, uniform(rows, columns, columns**-0.5))
            self.register_parameter(f"b_{name}", nn.Parameter(torch.zeros(rows)))

    def arrange(self, tokens: Tokens) -> Packed:
        """The words that `forward` takes; a sentence without words is the unknown one."""
        return pack(tokens, len(self.words) - 1)

    def forward(self, packed: Packed) -> MultiVectors:
        """s_t of every word, float32."""
        x = self._drop(functional.embedding(packed.ids, self.words))
        e = self._drop(functional.linear(x, self.e, self.b_e).relu())
        back = packed.mirrored
        forwards = self._run(e, packed.sizes, self.f, self.b_f)
        backwards = self._run(e[back], packed.sizes, self.b, self.b_b)[back]
        return by_sentence(functional.linear(self._drop(forwards + backwards), self.d, self.b_d).relu(), packed)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def _run(self, e: Tensor, sizes: list[int], u: Tensor, bias: Tensor) -> Tensor:
        """h_t = f(e_t + U h_{t-1} + bias), (total, hidden), position by position."""
        state, states = e.new_zeros(sizes[0] if sizes else 0, len(u)), []
        for part in e.split(sizes):
            state = (part + functional.linear(state[: len(part)], u, bias)).relu()
            states.append(state)
        return torch.cat(states) if states else e


class FragmentNetwork(nn.Module):
    """Scores of images by sentences from the vectors of regions and those of `sentences`, one a word or a relation,
    which `sentences.arrange` takes sentences to.

    `precision` is the dtype of the products of regions with W_m and, in training, with words.
    """

    def __init__(self, regions: RegionMap, sentences: nn.Module, rule: ScoreRule) -> None:
        super().__init__()
        self.regions, self.sentences, self.rule, self.precision = regions, sentences, rule, torch.float32

    def set_precision(self, precision: torch.dtype) -> None:
        """Compute the heaviest products in `precision`."""
        self.precision = self.regions.precision = precision

    def embed_images(self, regions: MultiVectors, whole: Tensor | None) -> MultiVectors:
        """From the stacked features of regions; `whole` is unused, since the first region is the whole image."""
        return replace(regions, vectors=self.regions(regions.vectors))

    def embed_sentences(self, sentences: Any) -> MultiVectors:
        return self.sentences(sentences)

    def fragments(
        self, regions: MultiVectors, whole: Tensor | None, sentences: Any
    ) -> tuple[MultiVectors, MultiVectors]:
        """The vectors of both sides, in `precision`."""
        sides = self.embed_images(regions, whole), self.embed_sentences(sentences)
        images, fragments = (replace(side, vectors=side.vectors.to(self.precision)) for side in sides)
        return images, fragments

    def forward(self, regions: MultiVectors, whole: Tensor | None, sentences: Any) -> Tensor:
        """(n, n) float32 scores."""
        return multivector_scores(*self.fragments(regions, whole, sentences), self.rule)


class AlignedNetwork(FragmentNetwork):
    """The same, with the products behind the scores, for objectives that use them."""

    def forward(self, regions: MultiVectors, whole: Tensor | None, sentences: Any) -> ScoredFragments:
        images, fragments = self.fragments(regions, whole, sentences)
        products = images.vectors @ fragments.vectors.T
        scores = score_products(products, images, fragments, self.rule.sum)
        return ScoredFragments(scores, products, images.owners, fragments.owners)


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
    matrices = np.append(np.asarray(matrix_of, np.int64), -1)
    kinds = np.where(trees.parents < 0, ROOT, matrices[np.minimum(trees.labels, len(matrix_of))])
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
        pairs = functional.dropout(pairs, self.dropout, self.training)
        weights, biases = self.weight.unbind(), self.bias.unbind()  # one gradient for all, not one as large for each
        parts = [
            functional.linear(pairs[start:stop], weights[kind], biases[kind]) for kind, start, stop in edges.groups
        ]
        vectors = torch.cat(parts).relu() if parts else pairs.new_zeros(0, self.bias.shape[1])
        return MultiVectors(vectors[edges.rows], edges.offsets)
