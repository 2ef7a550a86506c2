"""Tests of retrieval by perplexity: log probabilities of sentences follow the equations of the networks, and a trained
generator ranks the images that show the thing in a sentence first."""

import numpy as np
import pytest
import torch
from synthetic_text import (
    LOG_BILINEAR,
    RECURRENT,
    VIEW,
    ThingSpace,
    make_material,
    make_pairs,
    make_sentences,
    make_vocabulary,
)
from test_mrnn import PAIRS, make_network, negative_log_probability

from pipeline.generate.generator import HeldOut
from pipeline.generate.lm import MultiplicativeModel
from pipeline.generate.mrnn import MultimodalRNN
from pipeline.generate.training import likelihood_scores
from pipeline.metrics.ranks import rank_scores


def held_out(pairs) -> HeldOut:
    return HeldOut(pairs, make_sentences(pairs.n_images)[0], make_vocabulary(), ThingSpace(), None)


def test_probabilities_of_the_recurrent_network_follow_the_equations() -> None:
    network = make_network("rnn")
    model = MultimodalRNN(VIEW, "rnn", network)
    found = model.log_probabilities(PAIRS.images(np.arange(4)), held_out(PAIRS))
    x = VIEW.stack(PAIRS.images(np.arange(4)))
    expected = [[-negative_log_probability(network, image, list(ids)) for ids in PAIRS.sentences] for image in x]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_log_probabilities_of_a_window_are_summed() -> None:
    model = MultiplicativeModel.learn(make_material({**LOG_BILINEAR, "epochs": 1})).generator
    pairs = make_pairs(4, 3)
    found = model.log_probabilities(pairs.images(np.arange(4)), held_out(pairs))
    network = model.network
    boundary = len(make_vocabulary().terms) + 1
    for image in range(4):
        u = torch.from_numpy(ThingSpace().images(pairs.images(np.array([image]))))
        for sentence, ids in enumerate(pairs.sentences):
            words = [*[boundary] * 3, *ids.tolist(), boundary]
            total = 0.0
            for t in range(3, len(words)):
                logits = network.logits(torch.tensor([words[t - 3 : t]]), u, None)[0].detach().double()
                total += float(logits[words[t]] - logits.logsumexp(0))
            assert found[image, sentence] == pytest.approx(total, rel=1e-4)


def test_a_generator_finds_the_images_of_a_thing() -> None:
    model = MultimodalRNN.learn(make_material({**RECURRENT, "epochs": 6})).generator
    pairs = make_pairs(4, 3)
    given = held_out(pairs)
    made, prior = (model.log_probabilities(one.images(np.arange(4)), given) for one in (pairs, make_pairs(4, 0)))
    for before in (None, prior):
        ranks = rank_scores(likelihood_scores(made, pairs.sentences.lengths + 1, before), pairs.owners)
        assert (ranks.sentence_to_image == 1).all()
    assert (ranks.image_to_sentence == 1).all()
