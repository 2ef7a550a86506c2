"""The objectives against naive loops over the paper's sums."""

import numpy as np
import pytest
import torch

from pipeline.models.neural.losses import Objective

OWNERS = torch.tensor([0, 1, 1, 2, 3, 0, 4, 1])
SCORES = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (8, 8)).astype(np.float32))
DRAWN = 3


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
def test_it_is_the_papers_sum(loss: str, negatives: str) -> None:
    objective = Objective(loss, negatives, DRAWN, margin=0.2, temperature=0.1)
    assert objective(SCORES, OWNERS).item() == pytest.approx(
        naive(objective, SCORES.numpy(), OWNERS.tolist()), rel=1e-5
    )


@pytest.mark.parametrize("loss", ["ranking", "info-nce"])
@pytest.mark.parametrize("negatives", ["all", "hardest", "sampled"])
def test_sentences_of_the_same_image_are_never_negatives(loss: str, negatives: str) -> None:
    objective = Objective(loss, negatives, DRAWN, margin=0.2, temperature=0.1)
    scores = SCORES.clone().requires_grad_()
    objective(scores, OWNERS).backward()
    same = (OWNERS[:, None] == OWNERS) & ~torch.eye(8, dtype=torch.bool)
    assert same.any() and not scores.grad[same].any()


@pytest.mark.parametrize("loss", ["ranking", "info-nce"])
def test_a_batch_of_one_image_has_nothing_to_learn(loss: str) -> None:
    objective = Objective(loss, "all", DRAWN, margin=0.2, temperature=0.1)
    scores = SCORES[:3, :3].clone().requires_grad_()
    value = objective(scores, torch.zeros(3, dtype=torch.long))
    value.backward()
    assert value.item() == 0 and not scores.grad.any()
