"""Tests of ctrnn, dtrnn and sdtrnn. The computation by heights is compared with the computation node by node."""

import numpy as np
import pytest
import torch
from recursion import recursion
from synthetic_tasks import draw_dependencies, draw_phrases

from pipeline.models.neural.tree_rnn import ConstituencyRNN, PositionRNN, RelationRNN, block_identity
from pipeline.text.trees import Trees, pack

WORDS = 20
LABELS = 6
LENGTHS = [1, 5, 0, 9, 17, 2, 30]


def make_words(seed: int = 0) -> torch.Tensor:
    return torch.randn(WORDS + 1, 7, generator=torch.Generator().manual_seed(seed))


def make_encoder(kind: str, precision: torch.dtype = torch.float32, activation: str = "tanh"):
    made = {
        "ctrnn": lambda: ConstituencyRNN(make_words(), None, 0.0, activation),
        "dtrnn": lambda: PositionRNN(make_words(), 12, 0.0, activation, left=2, right=2),
        "sdtrnn": lambda: RelationRNN(make_words(), 12, 0.0, activation, matrix_of=[0, 2, -1, 1, 2]),
    }[kind]()
    made.precision = precision
    return made


def make_trees(kind: str, seed: int = 0) -> Trees:
    draw = draw_phrases if kind == "ctrnn" else draw_dependencies
    return draw(np.random.default_rng(seed), LENGTHS, WORDS, LABELS)


@pytest.mark.parametrize("kind", ["ctrnn", "dtrnn", "sdtrnn"])
@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid", "identity"])
def test_vectors_and_gradients_by_heights_equal_those_of_the_recursion(kind: str, activation: str) -> None:
    encoder = make_encoder(kind, activation=activation)
    trees = make_trees(kind)
    found = encoder(encoder.arrange(trees))
    expected = recursion(encoder, trees)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(encoder.parameters())
    ours, theirs = (torch.autograd.grad((states * weights).sum(), parameters) for states in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_the_magnitude_of_a_relation_is_the_norm_of_its_matrix() -> None:
    """Section 6.7 of Socher et al. 2014 uses Frobenius norms. The norms are equal for relations that share a matrix,
    and relations without words have no norm."""
    encoder = make_encoder("sdtrnn")
    assert len(encoder.matrices) == 3
    squares = [sum(float(entry) ** 2 for row in matrix for entry in row) for matrix in encoder.matrices.detach()]
    np.testing.assert_allclose(
        encoder.norms(), np.sqrt([squares[i] if i >= 0 else np.nan for i in [0, 2, -1, 1, 2]]), rtol=1e-5
    )


def test_each_position_of_a_child_on_either_side_of_a_head_is_learned() -> None:
    trees = pack([[(2, 0, 0), (2, 1, 0), (-1, 2, 0), (2, 3, 0), (2, 4, 0)], [(1, 0, 0), (-1, 0, 0)]])
    assert PositionRNN.learn(trees) == {"left": 2, "right": 2}


def test_matrices_start_as_blocks_of_the_identity() -> None:
    torch.manual_seed(0)
    matrix = block_identity(12, 4)
    assert (matrix - torch.eye(4).repeat(3, 1)).abs().max() < 0.06
    torch.testing.assert_close(block_identity(4, 12).round(), torch.eye(4).repeat(1, 3), atol=1e-6, rtol=0)
