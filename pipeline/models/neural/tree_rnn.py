"""The registered global models on parsed sentences: ctrnn, dtrnn and sdtrnn (Socher et al. 2014, section 3)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from pipeline.config.models import RelationTrainSettings, TreeTrainSettings
from pipeline.models.joint_model import WordForms
from pipeline.models.neural.networks import SentenceEncoder
from pipeline.models.neural.recurrence import ACTIVATIONS
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.tree_levels import Levels, binary, forest, level, positions, word_counts
from pipeline.models.neural.word_models import GlobalModel
from pipeline.text.trees import Trees

NOISE = 0.01
"""Standard deviation of the Gaussian noise on the initial block-identity matrices."""


class KeptTrees(FunctionCtx):
    """The values that the forward pass over trees keeps for its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    levels: Levels
    linear_leaves: bool
    activation: str


class TreeRecurrence(torch.autograd.Function):
    """The states (total, K) float32 of all nodes, rows as in `levels`.

    apply(levels, linear_leaves, activation, inputs, matrices):
    h_i = f(inputs_i + sum over children j of weight_j W_kind(j) h_j)
    with `inputs` (total, K) float32 and `matrices` (M, K, K), whose dtype is that of the products; the matrix of kind
    -1 is the identity. f is one of ACTIVATIONS; with `linear_leaves` nodes of height 0 have h_i = inputs_i.

    Each height takes one product per kind, on neighbouring rows; the gradient of each matrix is one product over all
    heights.
    """

    @staticmethod
    def forward(
        ctx: KeptTrees, levels: Levels, linear_leaves: bool, activation: str, inputs: Tensor, matrices: Tensor
    ) -> Tensor:
        states, turned, apply = inputs.clone(), matrices.mT.unbind(), ACTIVATIONS[activation].apply
        for height, (start, joined, stop, groups) in enumerate(levels.levels):
            if height or not linear_leaves:
                apply(states[start:stop])
            if groups:
                messages = by_kind(states[start:joined], turned, groups, matrices.dtype) * levels.weights[start:joined]
                states.index_add_(0, levels.parents[start:joined], messages)
        ctx.save_for_backward(states, matrices)
        ctx.levels = levels
        ctx.linear_leaves = linear_leaves
        ctx.activation = activation
        return states

    @staticmethod
    def backward(ctx: KeptTrees, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d_states,) = gradients
        states, matrices = ctx.saved_tensors
        levels = ctx.levels
        d_inputs, d_messages, straight = d_states.clone(), torch.empty_like(d_states), matrices.unbind()
        for height, (start, joined, stop, groups) in reversed(list(enumerate(levels.levels))):
            if groups:
                rows = slice(start, joined)
                torch.mul(d_inputs[levels.parents[rows]], levels.weights[rows], out=d_messages[rows])
                d_inputs[rows] += by_kind(d_messages[rows], straight, groups, matrices.dtype)
            if height or not ctx.linear_leaves:
                d_inputs[start:stop] *= ACTIVATIONS[ctx.activation].slope(states[start:stop])
        d_matrices = torch.zeros_like(matrices)
        for kind, rows in levels.kinds:
            if kind >= 0:
                left, right = d_messages[rows].to(matrices.dtype), states[rows].to(matrices.dtype)
                torch.mm(left.T, right, out=d_matrices[kind])
        return None, None, None, d_inputs, d_matrices


def by_kind(rows: Tensor, matrices: Sequence[Tensor], groups: Sequence[tuple], dtype: torch.dtype) -> Tensor:
    """(k, L) float32: each of `rows` (k, K) times the matrix (K, L) of its kind; `groups` are (kind, start, stop)."""
    first, states = groups[0][1], rows.to(dtype)
    products = states.new_empty(len(states), matrices[0].shape[1] if matrices else states.shape[1])
    for kind, start, stop in groups:
        part = slice(start - first, stop - first)
        if kind < 0:
            products[part] = states[part]
        else:
            torch.mm(states[part], matrices[kind], out=products[part])
    return products.float()


def block_identity(rows: int, columns: int) -> Tensor:
    """(rows, columns) identity matrices, stacked or side by side, plus noise (Socher et al. 2014, section 6)."""
    places = torch.arange(rows)[:, None] - torch.arange(columns)
    return (places % min(rows, columns) == 0).float() + NOISE * torch.randn(rows, columns)


class TreeRNN(SentenceEncoder):
    """v = the state of a sentence's root; words enter at the leaves, in dependency trees at every node.

    Socher et al. 2014 to code: W_v `w` (K, d), the matrices W_pos or W_relation `matrices` (M, K, K), f `activation`, x
    the rows of `words`. `precision` is the dtype of the products over trees; weights are float32.
    """

    linear_leaves = False

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, matrices: int) -> None:
        """`words` (V + 1, d): the word vectors, the unknown word's last."""
        super().__init__()
        self.words = nn.Parameter(words)
        self.dropout = dropout
        self.precision = torch.float32
        self.activation = activation
        self.matrices = nn.Parameter(torch.stack([block_identity(dimensions, dimensions) for _ in range(matrices)]))

    def arrange(self, trees: Trees) -> Levels:
        """Arrange trees for `forward`."""
        raise NotImplementedError

    def inputs(self, levels: Levels) -> Tensor:
        """Compute what each node adds to its state, (total, K)."""
        raise NotImplementedError

    def vectors(self, levels: Levels) -> Tensor:
        """Look up the vectors of the words, (total, d), zero at nodes without a word."""
        rows = functional.embedding(levels.words.clamp(min=0), self.words)
        return functional.dropout(rows, self.dropout, self.training) * (levels.words >= 0)[:, None]

    def forward(self, levels: Levels) -> Tensor:
        """(n, K) float32, not of unit length."""
        parts = (self.inputs(levels), self.matrices.to(self.precision))
        states = TreeRecurrence.apply(levels, self.linear_leaves, self.activation, *parts)
        return functional.dropout(states[levels.roots], self.dropout, self.training)


class ConstituencyRNN(TreeRNN):
    """h = f(W [c1; c2]) on binary phrase trees, W = [matrices[0], matrices[1]]; a leaf is its word's vector, so K = d
    (Socher et al. 2014, section 3.4)."""

    linear_leaves = True

    def __init__(self, words: Tensor, dimensions: int | None, dropout: float, activation: str) -> None:
        super().__init__(words, words.shape[1], dropout, activation, matrices=2)

    @staticmethod
    def learn(trees: Trees) -> dict[str, Any]:
        return {}

    def arrange(self, trees: Trees) -> Levels:
        nodes = binary(forest(trees, len(self.words) - 1))
        return level(nodes, nodes.labels, counts=None)

    def inputs(self, levels: Levels) -> Tensor:
        return self.vectors(levels)


class DependencyRNN(TreeRNN):
    """h_i = f(1 / l(i) (W_v x_i + sum over children j of l(j) W_kind(j) h_j)), l(i) the words at and under node i
    (Socher et al. 2014, eq. 4)."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, matrices: int) -> None:
        super().__init__(words, dimensions, dropout, activation, matrices)
        self.w = nn.Parameter(block_identity(dimensions, words.shape[1]))

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the number of each node's matrix, (total,), -1 for the identity."""
        raise NotImplementedError

    def arrange(self, trees: Trees) -> Levels:
        nodes = forest(trees, len(self.words) - 1)
        return level(nodes, self.kinds(nodes.parents, nodes.labels), word_counts(nodes))

    def inputs(self, levels: Levels) -> Tensor:
        return levels.own * (self.vectors(levels).to(self.precision) @ self.w.T.to(self.precision)).float()


class PositionRNN(DependencyRNN):
    """The matrices are W_l1 ... W_l`left`, W_r1 ... W_r`right`; children further out have the identity."""

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, left: int, right: int) -> None:
        super().__init__(words, dimensions, dropout, activation, left + right)
        self.left, self.right = left, right

    @staticmethod
    def learn(trees: Trees) -> dict[str, Any]:
        """k_l and k_r: the most children that any word of the training sentences has on its left and on its right."""
        position = positions(forest(trees, 0).parents)
        return {"left": int(-position.min(initial=0)), "right": int(position.max(initial=0))}

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        position = positions(parents)
        kinds = np.where(position < 0, -position - 1, self.left + position - 1)
        return np.where((position < -self.left) | (position > self.right) | (position == 0), -1, kinds)


class RelationRNN(DependencyRNN):
    """Relation r has the matrix matrices[matrix_of[r]] (Socher et al. 2014, section 3.3). Rare relations share one;
    relations that no training sentence has take the identity."""

    def __init__(
        self, words: Tensor, dimensions: int, dropout: float, activation: str, matrix_of: Sequence[int]
    ) -> None:
        super().__init__(words, dimensions, dropout, activation, max(matrix_of, default=-1) + 1)
        self.matrix_of = np.append(np.asarray(matrix_of, np.int64), -1)

    @staticmethod
    def learn(trees: Trees, rare: int) -> dict[str, Any]:
        """The matrix of each relation; relations seen fewer than `rare` times in training share the last one."""
        counts = np.bincount(trees.labels[trees.parents >= 0])
        frequent = counts >= rare
        matrix_of = np.where(frequent, np.cumsum(frequent) - 1, np.where(counts > 0, frequent.sum(), -1))
        return {"matrix_of": matrix_of.tolist()}

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.where(parents < 0, -1, self.matrix_of[np.minimum(labels, len(self.matrix_of) - 1)])

    def norms(self) -> np.ndarray:
        """(L,) the Frobenius norm of each relation's matrix, NaN for none (Socher et al. 2014, section 6.7)."""
        norms = np.append(self.matrices.detach().norm(dim=(1, 2)).cpu().numpy(), np.nan)
        return norms[self.matrix_of[:-1]]


class TreeModel(GlobalModel):
    """A global model whose sentences are trees."""

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        activation = task.own_settings(TreeTrainSettings).activation
        return {"activation": activation, **cls.sentence_encoder.learn(task.train.sentences)}

    def anchors(self) -> dict[str, Tensor]:
        """The block identities, with which a sentence is about the mean of its words."""
        network = self.network.sentences
        return {f"sentences.{name}": p.detach().clone() for name, p in network.named_parameters() if name != "words"}

    def arrange(self, sentences: "WordForms") -> Levels:
        return self.network.sentences.arrange(sentences)


class CTRNN(TreeModel):
    """Recursive networks over binary phrase trees; like `bow`, its space has the dimension of the word vectors."""

    sentence_view = "phrase-trees"
    sentence_encoder = ConstituencyRNN
    in_word_space = True


class DTRNN(TreeModel):
    """Recursive networks over dependency trees, with a matrix for each position of a child."""

    sentence_view = "dependency-trees"
    sentence_encoder = PositionRNN


class SDTRNN(TreeModel):
    """Recursive networks over dependency trees, with a matrix for each relation of a child."""

    sentence_view = "dependency-trees"
    sentence_encoder = RelationRNN

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        settings = task.own_settings(RelationTrainSettings)
        return {"activation": settings.activation, **RelationRNN.learn(task.train.sentences, settings.rare)}
