"""An ensemble of models that take different forms of sentences."""

import numpy as np
import pytest
import torch
from made_up_settings import text_view
from scipy import sparse

from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.ensemble import Ensemble, EnsembleMember
from pipeline.models.linear.projection import Directions
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.word_models import BagOfWords
from pipeline.text.sequences import Tokens
from pipeline.text.tokens import TermSettings

TERMS = ("dog", "cat", "runs", "sits")
PLAIN = TermSettings(False, (), 1)


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    rng = np.random.default_rng(0)
    linear = NormalizedCCA(
        ImageView(("one",), (6,), ()), text_view(4), np.zeros(6), np.zeros(4),
        Directions(*(rng.standard_normal((d, 3)).astype(np.float32) for d in (6, 4)), np.ones(3, np.float32)),
    )  # fmt: skip
    view, words = ImageView(("one", "two"), (6, 5), ("l2",)), rng.standard_normal((5, 7)).astype(np.float32)
    network = BagOfWords.make_network(torch.zeros(11), torch.tensor(words), 7, 0.0, {}, "cosine")
    neural = BagOfWords(view, network, {})
    return Ensemble([EnsembleMember("ncca", linear, 0.7), EnsembleMember("bow", neural, 0.3)])


def make_pairs() -> tuple[dict, dict]:
    rng = np.random.default_rng(1)
    features = {"one": rng.random((9, 6), np.float32), "two": rng.random((9, 5), np.float32)}
    words = sparse.csr_array(rng.random((12, 4)).astype(np.float32))
    tokens = Tokens(rng.integers(0, 5, 36).astype(np.int32), np.arange(0, 37, 3))
    return features, {"vectors": {"tfidf": words}, "tokens": tokens}


def test_its_score_is_the_weighted_sum_of_its_members_scores(ensemble: Ensemble) -> None:
    features, sentences = make_pairs()
    images, texts = ensemble.embed_images(features), ensemble.embed_sentences(sentences)
    expected = sum(
        member.weight
        * member.model.embed_images(features)
        @ member.model.embed_sentences(sentences[member.model.sentence_view]).T
        for member in ensemble.members
    )
    np.testing.assert_allclose(images @ texts.T, expected, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(np.vstack([images, texts]), axis=1), 1, atol=1e-5)
    assert images.dtype == texts.dtype == np.float32 and images.shape == (9, 10)
    assert (ensemble.encoders, ensemble.views) == (("one", "two"), ("vectors", "tokens"))
    assert ensemble.text_encoders == ("tfidf",)
