"""The registered global models on parsed sentences: `ctrnn`, `dtrnn` and `sdtrnn` (Socher et al. 2014, section 3)."""

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
from pipeline.models.neural.tree_levels import Levels, arrange_levels, binarise, forest, positions, word_counts
from pipeline.models.neural.word_models import GlobalModel
from pipeline.text.trees import Trees

INITIAL_NOISE = 0.01
"""Standard deviation of the Gaussian noise that is added to the initial block-identity matrices."""


class KeptTrees(FunctionCtx):
    """The values that the forward pass over trees keeps for the backward pass. `linear_leaves` and `activation` are
    arguments of TreeRecurrence."""

    saved_tensors: tuple[Tensor, ...]
    levels: Levels
    linear_leaves: bool
    activation: str


class TreeRecurrence(torch.autograd.Function):
    """The recurrence h_i = f(inputs_i + sum over children j of weight_j W_kind(j) h_j) over the nodes of trees.

    `apply(levels, linear_leaves, activation, inputs, matrices)` returns the states (total, K) float32 of all nodes,
    with rows as in `levels`, which also has the weights and the kinds. `inputs` are (total, K) float32. `matrices` (M,
    K, K) are the M matrices W_kind, and products are computed in their dtype. The matrix of kind -1 is the identity. f
    is the function in ACTIVATIONS with the name `activation`. With `linear_leaves`, nodes of height 0 have h_i =
    inputs_i.

    The nodes of one height and kind are neighbouring rows, so that one product multiplies all of them. The gradient of
    each matrix is one product over all heights.
    """

    @staticmethod
    def forward(
        ctx: KeptTrees, levels: Levels, linear_leaves: bool, activation: str, inputs: Tensor, matrices: Tensor
    ) -> Tensor:
        states = inputs.clone()
        turned = matrices.mT.unbind()
        apply = ACTIVATIONS[activation].apply
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
        d_inputs = d_states.clone()
        d_messages = torch.empty_like(d_states)
        straight = matrices.unbind()
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
                left = d_messages[rows].to(matrices.dtype)
                right = states[rows].to(matrices.dtype)
                torch.mm(left.T, right, out=d_matrices[kind])
        return None, None, None, d_inputs, d_matrices


def by_kind(rows: Tensor, matrices: Sequence[Tensor], groups: Sequence[tuple], dtype: torch.dtype) -> Tensor:
    """Multiply each of `rows` (k, K) by the matrix (K, L) of its kind in `matrices`, in `dtype`. Return (k, L) float32.

    `groups` has (kind, start, stop) for each run of rows of the same kind. If s is the start of the first group, then
    the rows of a group are start - s to stop - s - 1 of `rows`. Rows of kind -1 are copied.
    """
    first = groups[0][1]
    states = rows.to(dtype)
    products = states.new_empty(len(states), matrices[0].shape[1] if matrices else states.shape[1])
    for kind, start, stop in groups:
        group = slice(start - first, stop - first)
        if kind < 0:
            products[group] = states[group]
        else:
            torch.mm(states[group], matrices[kind], out=products[group])
    return products.float()


def block_identity(rows: int, columns: int) -> Tensor:
    """Create a matrix (rows, columns) of identity blocks, stacked or side by side, plus Gaussian noise (Socher et al.
    2014, section 6)."""
    diagonals = torch.arange(rows)[:, None] - torch.arange(columns)
    return (diagonals % min(rows, columns) == 0).float() + INITIAL_NOISE * torch.randn(rows, columns)


class TreeRNN(SentenceEncoder):
    """The base class of recursive networks. The vector of a sentence is the state of the root of its tree.

    In phrase trees, words are inputs of the leaves. In dependency trees, words are inputs of all nodes. In the code,
    W_v of Socher et al. 2014 is `w` (K, d), the matrices W_pos or W_relation are `matrices` (M, K, K), f is
    `activation`, and the vectors x are rows of `words`. All weights are float32. In products of matrices with states or
    with word vectors, both factors are converted to the dtype `precision`, and the product is converted to float32.
    """

    linear_leaves = False

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, matrices: int) -> None:
        """Create the encoder with word vectors `words` (V + 1, d), of which the last belongs to the unknown word.

        `dimensions` is K, `activation` is a name of ACTIVATIONS, and `matrices` is the number M of matrices. `dropout`
        is the share of entries that are zeroed in training.
        """
        super().__init__()
        self.words = nn.Parameter(words)
        self.dropout = dropout
        self.precision = torch.float32
        self.activation = activation
        self.matrices = nn.Parameter(torch.stack([block_identity(dimensions, dimensions) for _ in range(matrices)]))

    def arrange(self, trees: Trees) -> Levels:
        """Convert trees to the form that `forward` reads. Every subclass overrides this method."""
        raise NotImplementedError

    def inputs(self, levels: Levels) -> Tensor:
        """Compute for each node the term that depends on the word of this node, (total, K), with rows as in `levels`.
        TreeRecurrence reads these terms as `inputs`. Every subclass overrides this method."""
        raise NotImplementedError

    def vectors(self, levels: Levels) -> Tensor:
        """Look up the vectors of the nodes' words, (total, d). The vectors are zero for nodes without a word."""
        rows = functional.embedding(levels.words.clamp(min=0), self.words)
        return functional.dropout(rows, self.dropout, self.training) * (levels.words >= 0)[:, None]

    def forward(self, levels: Levels) -> Tensor:
        """Encode n trees as (n, K) float32, not scaled to unit length."""
        inputs = self.inputs(levels)
        matrices = self.matrices.to(self.precision)
        states = TreeRecurrence.apply(levels, self.linear_leaves, self.activation, inputs, matrices)
        return functional.dropout(states[levels.roots], self.dropout, self.training)


class ConstituencyRNN(TreeRNN):
    """The recursive network over binary phrase trees (Socher et al. 2014, section 3.4).

    The state of a phrase is h = f(W_0 c1 + W_1 c2), where c1 and c2 are the states of its children, and W_0 and W_1 are
    `matrices`. The state of a leaf is the vector of its word, so that K = d.
    """

    linear_leaves = True

    def __init__(self, words: Tensor, dimensions: int | None, dropout: float, activation: str) -> None:
        super().__init__(words, words.shape[1], dropout, activation, matrices=2)

    @staticmethod
    def learn(trees: Trees) -> dict[str, Any]:
        return {}

    def arrange(self, trees: Trees) -> Levels:
        nodes = binarise(forest(trees, len(self.words) - 1))
        return arrange_levels(nodes, nodes.labels, counts=None)

    def inputs(self, levels: Levels) -> Tensor:
        return self.vectors(levels)


class DependencyRNN(TreeRNN):
    """The base class of recursive networks over dependency trees (Socher et al. 2014, eq. 4).

    The state of a node is h_i = f(1 / l(i) (W_v x_i + sum over children j of l(j) W_kind(j) h_j)), where l(i) is the
    number of words at node i and below it.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, matrices: int) -> None:
        super().__init__(words, dimensions, dropout, activation, matrices)
        self.w = nn.Parameter(block_identity(dimensions, words.shape[1]))

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the number of the matrix of each node, (total,), or -1 for the identity.

        `parents` (total,) are the numbers of the nodes' parents, or -1 for a root. `labels` (total,) are the labels of
        the nodes. Every subclass overrides this method.
        """
        raise NotImplementedError

    def arrange(self, trees: Trees) -> Levels:
        nodes = forest(trees, len(self.words) - 1)
        return arrange_levels(nodes, self.kinds(nodes.parents, nodes.labels), word_counts(nodes))

    def inputs(self, levels: Levels) -> Tensor:
        return levels.own * (self.vectors(levels).to(self.precision) @ self.w.T.to(self.precision)).float()


class PositionRNN(DependencyRNN):
    """The DT-RNN of Socher et al. 2014, section 3.2, with a matrix for each position of a child.

    The matrices are W_l1 to W_l`left`, followed by W_r1 to W_r`right`. A child beyond these positions has the identity
    matrix.
    """

    def __init__(self, words: Tensor, dimensions: int, dropout: float, activation: str, left: int, right: int) -> None:
        super().__init__(words, dimensions, dropout, activation, left + right)
        self.left = left
        self.right = right

    @staticmethod
    def learn(trees: Trees) -> dict[str, Any]:
        """Return a dict with k_l as `left` and k_r as `right`. They are the greatest numbers of children that a word
        has on its left side and on its right side in the training sentences."""
        position = positions(forest(trees, 0).parents)
        return {"left": int(-position.min(initial=0)), "right": int(position.max(initial=0))}

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        position = positions(parents)
        kinds = np.where(position < 0, -position - 1, self.left + position - 1)
        return np.where((position < -self.left) | (position > self.right) | (position == 0), -1, kinds)


class RelationRNN(DependencyRNN):
    """The SDT-RNN of Socher et al. 2014, section 3.3, in which relation r has the matrix matrices[matrix_of[r]].

    Rare relations share a matrix. Relations that do not occur in the training sentences have the identity matrix.
    """

    def __init__(
        self, words: Tensor, dimensions: int, dropout: float, activation: str, matrix_of: Sequence[int]
    ) -> None:
        super().__init__(words, dimensions, dropout, activation, max(matrix_of, default=-1) + 1)
        self.matrix_of = np.append(np.asarray(matrix_of, np.int64), -1)

    @staticmethod
    def learn(trees: Trees, rare: int) -> dict[str, Any]:
        """Return the number of the matrix of each relation as `matrix_of`, or -1 for a relation that does not occur in
        the training sentences.

        Relations that occur, but fewer than `rare` times, share the last matrix.
        """
        counts = np.bincount(trees.labels[trees.parents >= 0])
        frequent = counts >= rare
        matrix_of = np.where(frequent, np.cumsum(frequent) - 1, np.where(counts > 0, frequent.sum(), -1))
        return {"matrix_of": matrix_of.tolist()}

    def kinds(self, parents: np.ndarray, labels: np.ndarray) -> np.ndarray:
        return np.where(parents < 0, -1, self.matrix_of[np.minimum(labels, len(self.matrix_of) - 1)])

    def norms(self) -> np.ndarray:
        """Compute the Frobenius norm of the matrix of each of L relations, (L,), or NaN for a relation without a matrix
        (Socher et al. 2014, section 6.7)."""
        norms = np.append(self.matrices.detach().norm(dim=(1, 2)).cpu().numpy(), np.nan)
        return norms[self.matrix_of[:-1]]


class TreeModel(GlobalModel):
    """The base class of global models whose sentences are trees."""

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        activation = task.own_settings(TreeTrainSettings).activation
        return {"activation": activation, **cls.sentence_encoder.learn(task.train.sentences)}

    def anchors(self) -> dict[str, Tensor]:
        """Return copies of the current matrices of the sentence encoder, name of the parameter -> copy. The method is
        called before training, when the matrices are block identities plus noise. Weight decay pulls the matrices
        towards these copies, with which the vector of a sentence is about the mean of its word vectors."""
        network = self.network.sentences
        return {f"sentences.{name}": p.detach().clone() for name, p in network.named_parameters() if name != "words"}

    def arrange(self, sentences: "WordForms") -> Levels:
        return self.network.sentences.arrange(sentences)


class CTRNN(TreeModel):
    """The model `ctrnn`: a recursive network over binary phrase trees (CT-RNN of Socher et al. 2014, section 3.4).

    As in `bow`, the joint space has the dimension of the word vectors.
    """

    sentence_view = "phrase-trees"
    sentence_encoder = ConstituencyRNN
    in_word_space = True


class DTRNN(TreeModel):
    """The model `dtrnn`: a recursive network over dependency trees with a matrix for each position of a child (DT-RNN
    of Socher et al. 2014, section 3.2)."""

    sentence_view = "dependency-trees"
    sentence_encoder = PositionRNN


class SDTRNN(TreeModel):
    """The model `sdtrnn`: a recursive network over dependency trees with a matrix for each relation (SDT-RNN of Socher
    et al. 2014, section 3.3)."""

    sentence_view = "dependency-trees"
    sentence_encoder = RelationRNN

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        settings = task.own_settings(RelationTrainSettings)
        return {"activation": settings.activation, **RelationRNN.learn(task.train.sentences, settings.rare)}
