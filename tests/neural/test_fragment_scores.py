"""Scores of sets of vectors are compared with naive loops over the sums of Karpathy and Fei-Fei 2015.

The tests cover blocks of any size, gradients, hubness correction, and joined models.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.compute.multivectors import SUMS, MultiVectors, ScoreRule
from pipeline.errors import IntegrityError
from pipeline.metrics import multivector_scores as module
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.linear.corrected import HubCorrected, HubnessCorrection
from pipeline.models.linear.ensemble import join_images, join_sentences, joint_rule
from pipeline.models.linear.hubness import SIDES, Bank, Term

REGIONS = [3, 1, 20, 4, 0, 2]
WORDS = [1, 7, 2, 0, 500, 3, 1]


def make_sets(lengths: Sequence[int], seed: int, dim: int = 5, whole: int | None = 3) -> MultiVectors:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((sum(lengths), dim)).astype(np.float32)
    wholes = rng.standard_normal((len(lengths), whole)).astype(np.float32) if whole else None
    return MultiVectors(vectors, np.cumsum([0, *lengths]), wholes)


def as_tensors(sets: MultiVectors, dtype: torch.dtype = torch.float32) -> MultiVectors:
    wholes = None if sets.globals is None else torch.from_numpy(sets.globals).to(dtype)
    return MultiVectors(torch.from_numpy(sets.vectors).to(dtype), sets.offsets, wholes)


def naive(images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> np.ndarray:
    """Compute the scores of each image and sentence word by word, by eq. 7 or 8 of Karpathy and Fei-Fei 2015. As `rule`
    says, the score is divided by the number of words, and the weighted product of the global vectors is added."""
    scores = np.zeros((len(images), len(sentences)))
    for k in range(len(images)):
        regions = np.asarray(images.between(k, k + 1).vectors, float)
        for j in range(len(sentences)):
            words = np.asarray(sentences.between(j, j + 1).vectors, float)
            for s in words if len(regions) else ():
                products = [float(v @ s) for v in regions]
                scores[k, j] += sum(max(0, p) for p in products) if "positive" in rule.sum else max(products)
            if "mean" in rule.sum:
                scores[k, j] /= max(1, len(words))
            if rule.global_weight:
                scores[k, j] += rule.global_weight * float(images.globals[k] @ sentences.globals[j])
    return scores


@pytest.mark.parametrize("weight", [0, 0.7])
@pytest.mark.parametrize("rule", SUMS)
@pytest.mark.parametrize("products", [1, 64, 1 << 22])
def test_scores_equal_the_sums_of_the_paper(
    rule: str, weight: float, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PRODUCTS", products)
    monkeypatch.setattr(module, "BLOCK_WORDS", min(products, module.BLOCK_WORDS))
    images = make_sets(REGIONS, 0)
    sentences = make_sets(WORDS, 1)
    chosen = ScoreRule(rule, weight)
    scores = multivector_scores(images, sentences, chosen)
    np.testing.assert_allclose(scores, naive(images, sentences, chosen), rtol=1e-4, atol=1e-4)
    tensors = multivector_scores(as_tensors(images), as_tensors(sentences), chosen)
    np.testing.assert_allclose(tensors, scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rule", SUMS)
def test_gradients_equal_finite_differences(rule: str) -> None:
    images, sentences = (as_tensors(make_sets(*own), torch.float64) for own in ((REGIONS, 0), ([2, 1, 3], 1)))

    def scores(v: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return multivector_scores(replace(images, vectors=v), replace(sentences, vectors=s), ScoreRule(rule, 0))

    parts = (images.vectors.clone().requires_grad_(), sentences.vectors.clone().requires_grad_())
    assert torch.autograd.gradcheck(scores, parts)


class FixedVectorsModel:
    """A model that returns the vectors that its constructor was given."""

    multi_vector = True

    def __init__(self, images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> None:
        self.images = images
        self.sentences = sentences
        self.rule = rule

    def embed_images(self, features: None, regions: None) -> MultiVectors:
        return self.images

    def embed_sentences(self, sentences: None) -> MultiVectors:
        return self.sentences


@pytest.mark.parametrize("global_weight", [0.0, 0.3])
@pytest.mark.parametrize("how", SUMS)
def test_corrected_scores_are_the_scores_of_the_model_minus_those_of_the_neighbours(
    how: str, global_weight: float
) -> None:
    rule = ScoreRule(how, global_weight)
    rng = np.random.default_rng(0)
    images, sentences, *banks = (
        make_sets(rng.integers(1, 5, count), count, whole=3 if global_weight else None) for count in (300, 9, 12, 15)
    )
    bank = Bank(*banks, rule)
    model = HubCorrected(
        FixedVectorsModel(images, sentences, rule),
        HubnessCorrection(bank, dict.fromkeys(SIDES, [Term(0.75, "nearest", 4)])),
    )
    found = multivector_scores(model.embed_images(None, None), model.embed_sentences(None), model.rule).numpy()

    near_images = np.sort(multivector_scores(images, bank.sentences, rule).numpy(), axis=1)[:, -4:].mean(axis=1)
    near_sentences = np.sort(multivector_scores(bank.images, sentences, rule).numpy(), axis=0)[-4:].mean(axis=0)
    expected = multivector_scores(images, sentences, rule).numpy() - 0.75 * (near_images[:, None] + near_sentences)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


RULES = [
    [ScoreRule("mean-words", 1.0)],
    [ScoreRule("words", 0)],
    [ScoreRule("words", 0.3), ScoreRule("mean-words", 0)],
    [ScoreRule("positive", 0), ScoreRule("positive", 2.0)],
    [ScoreRule("mean-positive", 0.5), ScoreRule("positive", 0)],
]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("vectors", [0, 2])
def test_joined_sets_score_the_weighted_sum_of_all_members(rules: list[ScoreRule], vectors: int) -> None:
    rng = np.random.default_rng(0)
    regions = rng.integers(1, 6, 7)
    words = rng.integers(1, 9, 15)
    images: list = [rng.standard_normal((7, 4 + k)).astype(np.float32) for k in range(vectors)]
    sentences: list = [rng.standard_normal((15, 4 + k)).astype(np.float32) for k in range(vectors)]
    weights = rng.random(vectors + len(rules)).tolist()
    expected = sum((w * x @ y.T for w, x, y in zip(weights, images, sentences, strict=False)), np.zeros((7, 15)))
    each = [None] * vectors + rules
    for k, rule in enumerate(rules):
        wide = 3 if rule.global_weight else None
        images.append(make_sets(regions, 10 + k, 5 + k, wide))
        sentences.append(make_sets(words, 20 + k, 5 + k, wide))
        expected = expected + weights[vectors + k] * naive(images[-1], sentences[-1], rule)
    joined = join_images(images, weights, each), join_sentences(sentences, weights, each)
    np.testing.assert_allclose(naive(*joined, joint_rule(rules)), expected, atol=1e-4)
    np.testing.assert_array_equal(joined[0].lengths, regions)
    np.testing.assert_array_equal(joined[1].lengths, len(rules) * words)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"sum": "mean", "global_weight": 0}, f"unknown score mean. The known scores are {', '.join(SUMS)}"),
        ({"global_weight": 0}, "unknown score None"),
        ({"sum": "words", "global_weight": "1"}, "global_weight of the score is '1', but must be a finite number"),
        ({"sum": "words", "global_weight": float("nan")}, "global_weight of the score is nan"),
        ({"sum": "words"}, "global_weight of the score is None"),
    ],
)
def test_stored_rule_of_another_form_is_refused(stored: dict[str, object], message: str) -> None:
    with pytest.raises(IntegrityError, match=message):
        ScoreRule.from_dict(stored)
