"""Phrases and regions by models that learn from whole images and sentences (Niu et al. 2017, Table 4)."""

import numpy as np
import pytest
import torch
from made_up_pairs import VIEW, WORDS, make_task

from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.neural.fragment_models import DVSA
from pipeline.models.neural.task import RegionView
from pipeline.multivectors import MultiVectors
from pipeline.ragged import offsets_of
from pipeline.text.sequences import Tokens

PHRASES = Tokens(np.array([3, 7, 1, 4, 4, 0, 9], np.int32), np.array([0, 2, 3, 3, 7]))


def make_dvsa(rule: str) -> DVSA:
    words = np.random.default_rng(0).standard_normal((WORDS + 1, 6), dtype=np.float32)
    shape = {"dimensions": 8, "hidden": 5, "dropout": 0.0, "sum": rule}
    return DVSA.build(RegionView(VIEW, geometry=False), np.full(16, 0.1, np.float32), 0.5, words, shape, seed=0)


@pytest.mark.parametrize("rule", ["words", "mean-words"])
def test_a_product_is_the_score_of_a_region_alone_with_a_phrase(rule: str) -> None:
    model, block = make_dvsa(rule), make_task("tokens", train=3).train.regions.packed(np.arange(3))
    phrases, regions = model.embed_phrases(PHRASES), model.embed_regions(block)
    alone = MultiVectors(torch.from_numpy(regions), offsets_of(np.ones(len(regions), int)))
    words = model.embed_sentences(PHRASES)
    scores = multivector_scores(alone, MultiVectors(torch.from_numpy(words.vectors), words.offsets), model.rule)
    np.testing.assert_allclose(regions @ phrases.T, scores.numpy(), rtol=1e-4, atol=1e-5)
