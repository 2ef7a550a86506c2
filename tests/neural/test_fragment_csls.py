"""Local scaling of scores between sets of fragments."""

import numpy as np
import pytest

from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.linear.csls import Bank, Scaled
from pipeline.multivectors import SUMS, MultiVectors, ScoreRule


def draw(n: int, globals_: bool, seed: int) -> MultiVectors:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 5, n))])
    vectors = rng.standard_normal((offsets[-1], 6)).astype(np.float32)
    return MultiVectors(vectors, offsets, rng.standard_normal((n, 3)).astype(np.float32) if globals_ else None)


class Given:
    """A model that gives the vectors it was given."""

    multi_vector = True

    def __init__(self, images: MultiVectors, sentences: MultiVectors, rule: ScoreRule) -> None:
        self.images, self.sentences, self.rule = images, sentences, rule

    def embed_images(self, features: None, regions: None) -> MultiVectors:
        return self.images

    def embed_sentences(self, sentences: None) -> MultiVectors:
        return self.sentences


@pytest.mark.parametrize("global_weight", [0.0, 0.3])
@pytest.mark.parametrize("how", SUMS)
def test_scores_are_the_models_less_those_of_the_neighbours(how: str, global_weight: float) -> None:
    rule, whole = ScoreRule(how, global_weight), global_weight > 0
    images, sentences = draw(300, whole, 1), draw(9, whole, 2)
    bank = Bank(draw(12, whole, 3), draw(15, whole, 4), rule)
    model = Scaled(Given(images, sentences, rule), 0.75, 4, bank)
    found = multivector_scores(model.embed_images(None, None), model.embed_sentences(None), model.rule).numpy()

    near_images = np.sort(multivector_scores(images, bank.sentences, rule).numpy(), axis=1)[:, -4:].mean(axis=1)
    near_sentences = np.sort(multivector_scores(bank.images, sentences, rule).numpy(), axis=0)[-4:].mean(axis=0)
    expected = multivector_scores(images, sentences, rule).numpy() - 0.75 * (near_images[:, None] + near_sentences)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
