"""Computations of tree encoders node by node from the equations. Tests compare them with the encoders, which compute
all nodes of the same height together."""

import numpy as np
import torch
from torch import Tensor

from pipeline.models.neural.tree_rnn import ConstituencyRNN, DependencyRNN, PositionRNN, TreeRNN
from pipeline.text.trees import Trees

ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "sigmoid": torch.sigmoid, "identity": lambda h: h}


def recursion(encoder: TreeRNN, trees: Trees) -> Tensor:
    """Compute the vectors (n, K) of the roots of `trees` by recursion over the nodes."""
    compose = constituency if isinstance(encoder, ConstituencyRNN) else dependency
    found = []
    for start, stop in zip(trees.offsets[:-1], trees.offsets[1:], strict=True):
        parents, words, labels = (part[start:stop] for part in (trees.parents, trees.words, trees.labels))
        if start == stop:
            parents = np.array([-1])
            words = np.array([len(encoder.words) - 1])
            labels = np.array([0])
        children = [np.flatnonzero(parents == node) for node in range(len(parents))]
        found.append(compose(encoder, int(np.flatnonzero(parents < 0)[0]), children, words, labels))
    return torch.stack(found)


def dependency(encoder: DependencyRNN, node: int, children: list[np.ndarray], words, labels) -> Tensor:
    """Compute the vector (K,) of a node from the vectors of its children, by equation 4 of Socher et al. 2014."""

    def count(i: int) -> int:
        return 1 + sum(count(j) for j in children[i])

    total = encoder.w @ encoder.words[words[node]]
    for child in children[node]:
        state = dependency(encoder, int(child), children, words, labels)
        matrix = position_matrix(encoder, node, child, children[node]) if isinstance(encoder, PositionRNN) else None
        if matrix is None:
            known = labels[child] < len(encoder.matrix_of)
            matrix = int(encoder.matrix_of[labels[child]]) if known else -1
        total = total + count(child) * (state if matrix < 0 else encoder.matrices[matrix] @ state)
    return ACTIVATIONS[encoder.activation](total / count(node))


def position_matrix(encoder: PositionRNN, head: int, child: int, siblings: np.ndarray) -> int:
    """Return the number of the matrix for the position of a child: l1, l2, ... to the left of the head, or r1, r2, ...
    to the right, counted from the head. Return -1 if the encoder has no matrix for this position."""
    if child < head:
        nearer = int(((siblings > child) & (siblings < head)).sum())
        return nearer if nearer < encoder.left else -1
    nearer = int(((siblings < child) & (siblings > head)).sum())
    return encoder.left + nearer if nearer < encoder.right else -1


def constituency(encoder: ConstituencyRNN, node: int, children: list[np.ndarray], words, labels) -> Tensor:
    """Compute the vector of a phrase as f(W c), where c concatenates the vectors c1 and c2 of its children. The vector
    of a leaf is the vector of its word.

    If there are more than two children, the first two are composed first. A phrase with one child has the vector of
    this child.
    """

    def first_word(i: int) -> int:
        return i if len(children[i]) == 0 else min(first_word(j) for j in children[i])

    if not len(children[node]):
        return encoder.words[words[node]]
    parts = [
        constituency(encoder, int(child), children, words, labels) for child in sorted(children[node], key=first_word)
    ]
    state = parts[0]
    for part in parts[1:]:
        state = ACTIVATIONS[encoder.activation](encoder.matrices[0] @ state + encoder.matrices[1] @ part)
    return state
