"""The recurrent network of the generator `mrnn` is compared with its equations, and its captions are tested on
synthetic images."""

import numpy as np
import pytest
import torch
from synthetic_text import (
    RECURRENT,
    THINGS,
    VIEW,
    ThingSpace,
    make_material,
    make_pairs,
    make_sentences,
    make_vocabulary,
)

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus
from pipeline.generate.generator import Sources
from pipeline.generate.mrnn import DescribingNetwork, MultimodalRNN, RecurrentDecoder
from pipeline.generate.training import framed, log_frequencies
from pipeline.models.neural.task import mean_and_spread
from pipeline.models.neural.training import seeded

PAIRS = make_pairs(10, 3)


def make_network(cell: str) -> DescribingNetwork:
    mean, length = mean_and_spread(PAIRS.stacked(VIEW))
    scale = length / VIEW.dim**0.5
    frequencies = log_frequencies(PAIRS.sentences, len(make_vocabulary().terms) + 2)
    with seeded(1):
        network = DescribingNetwork(cell, 5, 7, *map(torch.tensor, (mean, scale, frequencies)), dropout=0.5)
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return network.eval()


def negative_log_probability(network: DescribingNetwork, image: np.ndarray, words: list[int]) -> float:
    """Compute -log P of the sentence with the word ids `words`, END included, given the stacked features `image` (D,),
    by equations 13 to 15 in float64, with f = tanh."""
    p = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    b_v = p["image_map"] @ ((image - p["mean"]) / p["scale"])
    boundary = len(p["words"]) - 1
    h = np.zeros(7)
    total = 0.0
    for t, (x, y) in enumerate(zip([boundary, *words], [*words, boundary], strict=True)):
        h = np.tanh(p["w"] @ p["words"][x] + p["u"] @ h + p["bias"] + p["hidden_bias"] + (t == 0) * b_v)
        logits = p["output"] @ h + p["output_bias"]
        total -= logits[y] - np.log(np.exp(logits).sum())
    return total


def test_the_loss_follows_the_equations() -> None:
    network = make_network("rnn")
    rows = np.array([3, 0, 7, 12])
    sentences = PAIRS.sentences.take(rows)
    x = VIEW.stack(PAIRS.images(PAIRS.owners[rows]))
    expected = sum(negative_log_probability(network, image, list(ids)) for image, ids in zip(x, sentences, strict=True))
    loss = network(torch.from_numpy(x), framed(sentences, len(network.words) - 1))
    assert loss.item() == pytest.approx(expected / (sentences.lengths + 1).sum(), rel=1e-5)


@pytest.mark.parametrize("cell", ["rnn", "relu", "gru", "lstm"])
def test_decoding_word_by_word_equals_whole_sentences(cell: str) -> None:
    network = make_network(cell)
    boundary = len(make_vocabulary().terms) + 1
    sentences = PAIRS.sentences.take(np.array([0, 1]))
    x = torch.from_numpy(VIEW.stack(PAIRS.images(np.array([0, 0]))))
    with torch.inference_mode():
        decoder = RecurrentDecoder(network, x)
        losses = []
        for row, ids in enumerate(sentences):
            logits, state = decoder.begin()
            for word in [*ids.tolist(), boundary]:
                losses.append(-logits.log_softmax(1)[row, word].item())
                logits, state = decoder.step(torch.full((2,), word), state)
        assert np.mean(losses) == pytest.approx(network(x, framed(sentences, boundary)).item(), rel=1e-5)


@pytest.fixture(scope="module")
def learned():
    return MultimodalRNN.learn(make_material({**RECURRENT, "epochs": 12}))


def make_sources(temperature: float | None = None) -> Sources:
    texts, _ = make_sentences(48)
    corpus = Corpus(texts, make_pairs(48, 0).sentences, make_vocabulary())
    return Sources(corpus, BeamSearch(3, 0.7, 9), temperature, 10, 0, ThingSpace(), None)


@pytest.mark.parametrize("temperature", [None, 0.3])
def test_captions_name_the_thing_in_the_image(learned, temperature: float | None) -> None:
    features = {"eyes": np.eye(6, dtype=np.float32)[:4]}
    for thing, found in zip(
        THINGS, learned.generator.generate_captions(features, make_sources(temperature), 3), strict=True
    ):
        assert thing in found[0].words and len(found) == 3
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    perplexities = [entry["dev"] for entry in learned.log["history"]]
    assert learned.log["chosen"]["perplexity"] == min(perplexities) < perplexities[0]
