"""The objectives are compared with naive loops over the sums of Kiros et al. 2014 and Socher et al. 2014."""

import numpy as np
import pytest
import torch

from pipeline.models.neural.losses import Objective

OWNERS = torch.tensor([0, 1, 1, 2, 3, 0, 4, 1])
SCORES = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (8, 8)).astype(np.float32))
SAMPLED_NEGATIVES = 3


def naive(objective: Objective, scores: np.ndarray, owners: list[int]) -> float:
    anchors = range(len(owners) - objective.drawn)
    total = 0.0
    for s in (scores, scores.T):
        for i in anchors:
            others = range(len(anchors), len(owners)) if objective.drawn else range(len(owners))
            negatives = [float(s[i, j]) for j in others if owners[j] != owners[i]]
            if objective.loss == "info-nce":
                shares = [np.exp(value / objective.temperature) for value in (float(s[i, i]), *negatives)]
                total -= np.log(shares[0] / sum(shares))
            else:
                costs = [max(0.0, objective.margin - float(s[i, i]) + value) for value in negatives]
                total += max(costs) if objective.negatives == "hardest" else sum(costs)
    return total / len(anchors)


@pytest.mark.parametrize(
    ("loss", "negatives"),
    [("ranking", "all"), ("ranking", "hardest"), ("ranking", "sampled"), ("info-nce", "all"), ("info-nce", "sampled")],
)
def test_objectives_equal_the_sums_of_the_papers(loss: str, negatives: str) -> None:
    objective = Objective(loss, negatives, SAMPLED_NEGATIVES, margin=0.2, temperature=0.1, reduction="mean")
    assert objective(SCORES, OWNERS).item() == pytest.approx(
        naive(objective, SCORES.numpy(), OWNERS.tolist()), rel=1e-5
    )


@pytest.mark.parametrize("loss", ["ranking", "info-nce"])
def test_a_batch_of_one_image_has_nothing_to_learn(loss: str) -> None:
    objective = Objective(loss, "all", SAMPLED_NEGATIVES, margin=0.2, temperature=0.1, reduction="mean")
    scores = SCORES[:3, :3].clone().requires_grad_()
    value = objective(scores, torch.zeros(3, dtype=torch.long))
    value.backward()
    assert value.item() == 0 and not scores.grad.any()


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_squared_loss_depends_on_the_pairs_only(reduction: str) -> None:
    """The loss of Socher et al. 2014, section 5, is the sum of |v_i - y_i|^2 over the pairs i, and has no contrasts."""
    rng = np.random.default_rng(2)
    v = rng.standard_normal((5, 4))
    y = rng.standard_normal((5, 4))
    scores = torch.from_numpy(-np.square(v[:, None] - y).sum(axis=2))
    objective = Objective("squared", "all", 0, margin=1.0, temperature=1.0, reduction=reduction)
    expected = sum((v[i, k] - y[i, k]) ** 2 for i in range(5) for k in range(4)) / (5 if reduction == "mean" else 1)
    assert objective(scores, OWNERS[:5]).item() == pytest.approx(expected)


def equation_5(v: np.ndarray, y: np.ndarray, image_of: list[int], margin: float) -> float:
    """Compute the objective J of Socher et al. 2014, eq. 5, without its penalty, by plain loops.

    The images are `v` (N, n), the sentences are `y` (M, n), and sentence j belongs to image `image_of[j]`.
    """
    total = 0.0
    sentences = range(len(y))
    images = range(len(v))
    for j in sentences:
        i = image_of[j]
        total += sum(max(0.0, margin - v[i] @ y[j] + v[i] @ y[c]) for c in sentences if image_of[c] != i)
        total += sum(max(0.0, margin - v[i] @ y[j] + v[c] @ y[j]) for c in images if c != i)
    return total


def test_ranking_loss_of_the_whole_training_set_is_equation_5_of_socher() -> None:
    objective = Objective("ranking", "distinct", 0, margin=3.0, temperature=1.0, reduction="sum")
    rng = np.random.default_rng(1)
    image_of = [2, 0, 0, 1, 2, 2, 1, 0]
    v = rng.standard_normal((3, 4))
    y = rng.standard_normal((8, 4))
    scores = torch.from_numpy(v[image_of] @ y.T)
    assert objective(scores, torch.tensor(image_of)).item() == pytest.approx(equation_5(v, y, image_of, 3.0))
    # An example by hand with margin 1: the images are (1) and (2). The first has the sentences (1) and (2), and the
    # second has the sentence (4).
    v = np.array([[1.0], [2.0]])
    y = np.array([[1.0], [2.0], [4.0]])
    image_of = [0, 0, 1]
    one = Objective("ranking", "distinct", 0, margin=1.0, temperature=1.0, reduction="sum")
    sentences = (1 - 1 + 4) + (1 - 2 + 4) + 0 + 0
    images = (1 - 1 + 2) + (1 - 2 + 4) + 0
    assert one(torch.from_numpy(v[image_of] @ y.T), torch.tensor(image_of)).item() == sentences + images
    assert equation_5(v, y, image_of, 1.0) == sentences + images


def test_the_legal_pairs_of_the_caller_are_not_changed() -> None:
    legal = OWNERS[:, None] != OWNERS
    before = legal.clone()
    objective = Objective("ranking", "sampled", SAMPLED_NEGATIVES, margin=0.2, temperature=0.1, reduction="sum")
    found = objective(SCORES, OWNERS, legal=legal)
    assert torch.equal(legal, before) and found == objective(SCORES, OWNERS)
