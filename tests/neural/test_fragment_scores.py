"""Scores of sets against naive loops over the paper's sums, in any blocks, with and without gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.metrics import multivector_scores as module
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.multivectors import SUMS, MultiVectors, ScoreRule

REGIONS, WORDS = [3, 1, 20, 4, 0, 2], [1, 7, 2, 0, 500, 3, 1]


def make_sets(lengths: list[int], seed: int, dtype: torch.dtype = torch.float32) -> MultiVectors:
    rng = np.random.default_rng(seed)
    vectors, wholes = rng.standard_normal((sum(lengths), 5)), rng.standard_normal((len(lengths), 3))
    return MultiVectors(
        torch.from_numpy(vectors).to(dtype), np.cumsum([0, *lengths]), torch.from_numpy(wholes).to(dtype)
    )


def naive(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """Equation 7 or 8, pair by pair and word by word."""
    scores = np.zeros((len(images), len(sentences)))
    for k in range(len(images)):
        regions = images.between(k, k + 1).vectors.numpy().astype(float)
        for j in range(len(sentences)):
            words = sentences.between(j, j + 1).vectors.numpy().astype(float)
            for s in words if len(regions) else ():
                products = [float(v @ s) for v in regions]
                scores[k, j] += sum(max(0, p) for p in products) if rule.sum == "positive" else max(products)
            if rule.sum == "mean-words":
                scores[k, j] /= max(1, len(words))
            scores[k, j] += rule.global_weight * float(images.globals[k] @ sentences.globals[j])
    return scores


@pytest.mark.parametrize("weight", [0, 0.7])
@pytest.mark.parametrize("rule", SUMS)
@pytest.mark.parametrize("products", [1, 64, 1 << 22])
def test_they_are_the_papers_sums(rule: str, weight: float, products: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PRODUCTS", products)
    monkeypatch.setattr(module, "WORDS", min(products, module.WORDS))
    images, sentences, chosen = make_sets(REGIONS, 0), make_sets(WORDS, 1), ScoreRule(rule, weight)
    scores = multivector_scores(images, sentences, chosen)
    np.testing.assert_allclose(scores, naive(images, sentences, chosen), rtol=1e-4, atol=1e-4)
    arrays = [MultiVectors(s.vectors.numpy(), s.offsets, s.globals.numpy()) for s in (images, sentences)]
    np.testing.assert_allclose(multivector_scores(*arrays, chosen), scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", SUMS)
def test_gradients_are_those_of_the_function(rule: str) -> None:
    images, sentences = make_sets(REGIONS, 0, torch.float64), make_sets([2, 1, 3], 1, torch.float64)

    def scores(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return multivector_scores(replace(images, vectors=v), replace(sentences, vectors=s), ScoreRule(rule, 0))

    parts = (images.vectors.clone().requires_grad_(), sentences.vectors.clone().requires_grad_())
    assert torch.autograd.gradcheck(scores, parts)
