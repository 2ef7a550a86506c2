"""Networks with one vector per region of an image and one per fragment of a sentence.

A fragment is a word (Karpathy and Fei-Fei 2015) or a relation of a dependency tree (Karpathy et al. 2014).
"""

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
from pipeline.text.trees import Trees
from pipeline.text.vocabulary import Tokens


def by_sentence(words: Tensor, packed: Packed) -> MultiVectors:
    """Return the packed vectors `words` (total, c) grouped by sentence, in the order of the sentences and of their
    words, without global vectors."""
    return MultiVectors(words[packed.rows], packed.offsets)


def uniform(rows: int, columns: int, reach: float) -> nn.Parameter:
    """Draw a parameter (rows, columns) from the uniform distribution on [-reach, reach]."""
    return nn.Parameter(torch.empty(rows, columns).uniform_(-reach, reach))


class RegionMap(nn.Module):
    """The map of regions v = W_m x + b_m (Karpathy and Fei-Fei 2015, eq. 1). W_m is `weight` (h, D), b_m is `bias`
    (h,), and h is `dimensions`.

    x is (f - `mean`) times `scale`, where f (D,) are the stacked features of a region, and `mean` (D,) is the mean of f
    over the training regions. The number `scale` gives x, and initially also v, a root mean square length of 1, so that
    one learning rate suits all encoders.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, dimensions: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.weight = uniform(dimensions, len(mean), (3 / dimensions) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(dimensions))
        self.dropout = dropout
        self.precision = torch.float32

    def forward(self, x: Tensor) -> Tensor:
        """Map the stacked features (total, D) of regions to (total, h) float32."""
        x = functional.dropout((x - self.mean) * self.scale, self.dropout, self.training).to(self.precision)
        return (x @ self.weight.to(self.precision).T).float() + self.bias


class FragmentEncoder(nn.Module):
    """The base class of networks that map a sentence to several vectors.

    `words` (V + 1, d) are the word vectors, of which the last belongs to the unknown word.
    """

    words: nn.Parameter


class RectifiedBRNN(FragmentEncoder):
    """The bidirectional RNN of Karpathy and Fei-Fei 2015, eq. 2 to 6. The function f of the paper is the rectifier.

    In the code, W_w is `words` (V + 1, d), W_e is `e`, W_f is `f`, W_b is `b`, W_d is `d`, and the biases have the
    names of the paper, `b_e` to `b_d`. `hidden` is the number of values of a hidden state, and `dimensions` the number
    of values of a vector s_t. Dropout is applied outside the recurrence.
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
        """Pack sentences for `forward`. A sentence without words becomes the unknown word."""
        return pack(tokens, len(self.words) - 1)

    def forward(self, packed: Packed) -> MultiVectors:
        """Compute the vector s_t of each word, (total, dimensions) float32, sentence after sentence."""
        x = self._drop(functional.embedding(packed.ids, self.words))
        e = self._drop(functional.linear(x, self.e, self.b_e).relu())
        back = packed.mirrored
        forwards = self._run(e, packed.sizes, self.f, self.b_f)
        backwards = self._run(e[back], packed.sizes, self.b, self.b_b)[back]
        return by_sentence(functional.linear(self._drop(forwards + backwards), self.d, self.b_d).relu(), packed)

    def _drop(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)

    def _run(self, e: Tensor, sizes: list[int], u: Tensor, bias: Tensor) -> Tensor:
        """Compute h_t = f(e_t + U h_{t-1} + bias) for all packed words, (total, hidden) in packed order, where f is the
        rectifier and U is `u`. e_t are the rows of `e` (total, hidden), and `sizes` has the number of words at each
        position. h_0 is zero."""
        state = e.new_zeros(sizes[0] if sizes else 0, len(u))
        states = []
        for inputs in e.split(sizes):
            state = (inputs + functional.linear(state[: len(inputs)], u, bias)).relu()
            states.append(state)
        return torch.cat(states) if states else e


def _layer(rows: int, columns: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the initial weights (rows, columns) of a layer, which are random, and its biases (rows,), which are
    zero."""
    return uniform(rows, columns, columns**-0.5), nn.Parameter(torch.zeros(rows))


ROOT_MATRIX = 0
"""Number of the matrix of a tree's root, which has no head."""


class Edges(NamedTuple):
    """The relations of n sentences, sorted so that relations with the same matrix are neighbours.

    `heads` (total,) and `dependents` (total,) are the word ids of the head and of the dependent of each relation. The
    head of a root is -1. `groups` has (matrix, start, stop) for each matrix in use: the relations `start` to `stop` - 1
    have the matrix with this number. `rows` (total,) lists the positions of the relations sentence by sentence, and
    `offsets` (n + 1,) divides `rows` into sentences.
    """

    heads: Tensor
    dependents: Tensor
    groups: list[tuple[int, int, int]]
    rows: Tensor
    offsets: np.ndarray


def learn_relations(trees: Trees, least_share: float) -> list[int]:
    """Return the number of the matrix of each label, 1, 2, ..., or -1 for a rare label. The number 0 is left for the
    matrix of roots.

    The list has an entry for each label from 0 to the greatest label of a word with a head. A label is rare if no word
    with a head has it, or if less than the share `least_share` of all words with a head have it.
    """
    counts = np.bincount(trees.labels[trees.parents >= 0])
    kept = counts >= max(1, least_share * counts.sum())
    return np.where(kept, ROOT_MATRIX + np.cumsum(kept), -1).tolist()


def edges_of(trees: Trees, matrix_of: Sequence[int], unknown: int) -> Edges:
    """List the relations of `trees` that have a matrix, and the root of each tree, which counts as a relation.

    `matrix_of` has the matrix of each label. Relations with the matrix -1, or with a label beyond the end of
    `matrix_of`, are left out. A tree without nodes gets one root, the word with the id `unknown`.
    """
    matrices = np.append(np.asarray(matrix_of, np.int64), -1)
    kinds = np.where(trees.parents < 0, ROOT_MATRIX, matrices[np.minimum(trees.labels, len(matrix_of))])
    sentences = trees.owners
    heads = np.where(trees.parents < 0, -1, trees.words[trees.offsets[:-1][sentences] + trees.parents])
    empty = np.flatnonzero(trees.lengths == 0)
    kinds, sentences, heads, dependents = (
        np.concatenate([column, np.full(len(empty), filler)])
        for column, filler in ((kinds, ROOT_MATRIX), (sentences, 0), (heads, -1), (trees.words, unknown))
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
    """The network that scores images with sentences by the vectors of their regions and fragments.

    `regions` maps regions to vectors, and `sentences` maps sentences to the vectors of their fragments. `rule` combines
    the products of region vectors and fragment vectors to a score. `precision` is the dtype of the matrix product in
    the map of regions and, in training, of the products of region vectors and fragment vectors.
    """

    def __init__(self, regions: RegionMap, sentences: FragmentEncoder, rule: ScoreRule) -> None:
        super().__init__()
        self.regions = regions
        self.sentences = sentences
        self.rule = rule
        self.precision = torch.float32

    def set_precision(self, precision: torch.dtype) -> None:
        """Set the dtype of the most expensive matrix products. They are the product in the map of regions and, in
        training, the products of region vectors and fragment vectors."""
        self.precision = self.regions.precision = precision

    def embed_images(self, regions: MultiVectors, whole: Tensor | None) -> MultiVectors:
        """Map the stacked features of the regions of n images to one vector (h,) per region. `whole` is not used,
        because the first region is the whole image."""
        return replace(regions, vectors=self.regions(regions.tensor))

    def embed_sentences(self, sentences: ArrangedFragments) -> MultiVectors:
        """Map n sentences, in the form that `arrange` of the sentence encoder returns, to one vector per word or
        relation."""
        return self.sentences(sentences)

    def fragments(
        self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments
    ) -> tuple[MultiVectors, MultiVectors]:
        """Embed n images by the stacked features of their `regions`, and n sentences by their fragments. Return the
        images and the sentences, with vectors in the dtype `precision`. `whole` is not used, because the first region
        is the whole image."""
        images = self.embed_images(regions, whole)
        fragments = self.embed_sentences(sentences)
        return (
            replace(images, vectors=images.tensor.to(self.precision)),
            replace(fragments, vectors=fragments.tensor.to(self.precision)),
        )

    def forward(
        self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments
    ) -> "Tensor | ScoredFragments":
        """Score the n images of a batch (rows) with its n sentences (columns) by `rule`, and return (n, n) float32,
        with the pairs on the diagonal. A subclass may return more. `whole` is not used."""
        images, fragments = self.fragments(regions, whole, sentences)
        return multivector_scores(images, fragments, self.rule)


class AlignedNetwork(FragmentNetwork):
    """A FragmentNetwork that also returns the products of regions and fragments, for objectives that need these
    products."""

    def forward(self, regions: MultiVectors, whole: Tensor | None, sentences: ArrangedFragments) -> ScoredFragments:
        images, fragments = self.fragments(regions, whole, sentences)
        products = images.tensor @ fragments.tensor.T
        scores = score_products(products, images, fragments, self.rule.sum)
        return ScoredFragments(scores, products, images.owners, fragments.owners)


class RelationNetwork(FragmentEncoder):
    """The network s = f(W_R [W_e w1, W_e w2] + b_R) for each relation R between a head w1 and a dependent w2, in which
    f is the rectifier (Karpathy et al. 2014).

    In the code, W_e is `words` (V + 1, d), whose last row belongs to the unknown word, W_R is `weight[matrix_of[R]]`
    (h, 2 d), and b_R is `bias[matrix_of[R]]`. h is `dimensions`. The root of a sentence counts as a relation with the
    matrix ROOT_MATRIX, whose head is a vector of zeros.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, matrix_of: Sequence[int]) -> None:
        super().__init__()
        self.words = nn.Parameter(words)
        self.matrix_of = list(matrix_of)
        self.dropout = dropout
        count = max(matrix_of, default=ROOT_MATRIX) + 1
        inner = 2 * words.shape[1]
        self.weight = nn.Parameter(uniform(count * dimensions, inner, inner**-0.5).data.view(count, dimensions, inner))
        self.bias = nn.Parameter(torch.zeros(count, dimensions))

    def arrange(self, trees: Trees) -> Edges:
        """Convert trees to the form that `forward` reads. An empty tree has one relation, the unknown word as the
        root."""
        return edges_of(trees, self.matrix_of, len(self.words) - 1)

    def forward(self, edges: Edges) -> MultiVectors:
        """Compute one vector (h,) per relation in float32. The vectors are in the order of the sentences, and within a
        sentence in the order of the dependents."""
        heads = functional.embedding(edges.heads.clamp(min=0), self.words) * (edges.heads >= 0)[:, None]
        pairs = torch.cat([heads, functional.embedding(edges.dependents, self.words)], dim=1)
        pairs = functional.dropout(pairs, self.dropout, self.training)
        # With `unbind`, backpropagation makes one gradient for all matrices together. With indexing, it would make a
        # gradient of the size of all matrices for each matrix.
        weights = self.weight.unbind()
        biases = self.bias.unbind()
        blocks = [
            functional.linear(pairs[start:stop], weights[kind], biases[kind]) for kind, start, stop in edges.groups
        ]
        vectors = torch.cat(blocks).relu() if blocks else pairs.new_zeros(0, self.bias.shape[1])
        return MultiVectors(vectors[edges.rows], edges.offsets)
