"""Networks with one vector a region of an image and one vector a fragment of a sentence: a word, or a relation of its
dependency tree (Karpathy and Fei-Fei 2015; Karpathy et al. 2014)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

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
    """Order the packed rows `words` (total, c) sentence after sentence, each in word order."""
    return MultiVectors(words[packed.rows], packed.offsets)


def uniform(rows: int, columns: int, reach: float) -> nn.Parameter:
    """(rows, columns) uniform in [-reach, reach]."""
    return nn.Parameter(torch.empty(rows, columns).uniform_(-reach, reach))


class RegionMap(nn.Module):
    """v = W_m x + b_m of Karpathy and Fei-Fei 2015, eq. 1: W_m `weight` (h, D), b_m `bias`.

    x is the stacked features of a region minus the training regions' mean, times `scale`, which brings them, and
    initially v too, to a root mean square length of 1, so that one learning rate suits all encoders.
    """

    mean: Tensor
    scale: Tensor

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


class FragmentEncoder(nn.Module):
    """A network from a sentence to several vectors, with word vectors `words` (V + 1, d), the unknown word's last."""

    words: nn.Parameter


class RectifiedBRNN(FragmentEncoder):
    """The bidirectional network of Karpathy and Fei-Fei 2015, eq. 2 to 6, f the rectifier; dropout is outside the
    recurrence.

    Paper to code: W_w `words` (V + 1, d), the unknown word's vector last; W_e `e`, W_f `f`, W_b `b`, W_d `d`, and
    their biases b_e ... b_d.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, hidden: int) -> None:
        super().__init__()
        self.words = nn.Parameter(words)
        self.dropout = dropout
        self.hidden = hidden
        self.e, self.b_e = _layer(hidden, words.shape[1])
        self.f, self.b_f = _layer(hidden, hidden)
        self.b, self.b_b = _layer(hidden, hidden)
        self.d, self.b_d = _layer(dimensions, hidden)

    def arrange(self, tokens: Tokens) -> Packed:
        """Pack sentences for `forward`; a sentence without words becomes the unknown word."""
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


def _layer(rows: int, columns: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Make the initial weights (rows, columns) and biases (rows,) of a layer."""
    return uniform(rows, columns, columns**-0.5), nn.Parameter(torch.zeros(rows))


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
    return Edges(
        torch.from_numpy(heads[order].astype(np.int64)),
        torch.from_numpy(dependents[order].astype(np.int64)),
        groups,
        torch.from_numpy(rows),
        offsets,
    )


ArrangedFragments = Packed | Edges
"""Sentences in the form that a fragment encoder reads: packed words, or relations."""


class FragmentNetwork(nn.Module):
    """The scores of images by sentences from vectors of regions and of the fragments that `sentences` makes.

    `precision` is the dtype of the products of regions with W_m and, in training, with words.
    """

    def __init__(self, regions: RegionMap, sentences: FragmentEncoder, rule: ScoreRule) -> None:
        super().__init__()
        self.regions = regions
        self.sentences = sentences
        self.rule = rule
        self.precision = torch.float32

    def set_precision(self, precision: torch.dtype) -> None:
        """Compute the heaviest products in `precision`."""
        self.precision = self.regions.precision = precision

    def embed_images(self, regions: MultiVectors, whole: Tensor | None) -> MultiVectors:
        """Embed the stacked features of regions; `whole` is unused, since the first region is the whole image."""
        return replace(regions, vectors=self.regions(regions.tensor))

    def embed_sentences(self, sentences: ArrangedFragments) -> MultiVectors:
        """Embed arranged sentences."""
        return self.sentences(sentences)

    def fragments(
        self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments
    ) -> tuple[MultiVectors, MultiVectors]:
        """Embed both sides, in `precision`."""
        images, fragments = self.embed_images(regions, whole), self.embed_sentences(sentences)
        return (
            replace(images, vectors=images.tensor.to(self.precision)),
            replace(fragments, vectors=fragments.tensor.to(self.precision)),
        )

    def forward(
        self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments
    ) -> "Tensor | ScoredFragments":
        """(n, n) float32 scores."""
        images, fragments = self.fragments(regions, whole, sentences)
        return multivector_scores(images, fragments, self.rule)


class AlignedNetwork(FragmentNetwork):
    """A FragmentNetwork that also returns the products behind the scores, for objectives that use them."""

    def forward(self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments) -> ScoredFragments:
        images, fragments = self.fragments(regions, whole, sentences)
        products = images.tensor @ fragments.tensor.T
        scores = score_products(products, images, fragments, self.rule.sum)
        return ScoredFragments(scores, products, images.owners, fragments.owners)


class RelationNetwork(FragmentEncoder):
    """s = f(W_R [W_e w1; W_e w2] + b_R) of each relation R of a head w1 and a dependent w2, f the rectifier.

    Paper to code: W_e `words` (V + 1, d), the unknown word's last; W_R `weight[matrix_of[R]]` (h, 2 d), b_R `bias`. The
    root of a sentence is a relation too, with zeros for its head.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, matrix_of: Sequence[int]) -> None:
        super().__init__()
        self.words = nn.Parameter(words)
        self.matrix_of = list(matrix_of)
        self.dropout = dropout
        count, inner = max(matrix_of, default=ROOT) + 1, 2 * words.shape[1]
        self.weight = nn.Parameter(uniform(count * dimensions, inner, inner**-0.5).data.view(count, dimensions, inner))
        self.bias = nn.Parameter(torch.zeros(count, dimensions))

    def arrange(self, trees: Trees) -> Edges:
        """List the relations for `forward`."""
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
