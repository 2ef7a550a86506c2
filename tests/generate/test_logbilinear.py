"""The networks of `lbl`, `mlbl`, `mnlm` and `sc-nlm` are compared with their equations in float64, and the captions of
these generators are tested on synthetic images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_text import LOG_BILINEAR, THINGS, ThingSpace, make_material, make_pairs, make_sentences, make_vocabulary

from pipeline.generate.beam import BeamSearch
from pipeline.generate.corpus import Corpus, Trigram
from pipeline.generate.generator import TAGS, Sources, Tagger
from pipeline.generate.lm import (
    AdditiveModel,
    LogBilinearModel,
    MultiplicativeModel,
    StructureContentModel,
    conditioning,
)
from pipeline.generate.logbilinear import (
    Additive,
    LogBilinear,
    LogBilinearSizes,
    Multiplicative,
    StructureContent,
    WindowDecoder,
)
from pipeline.generate.training import windows
from pipeline.models.neural.training import seeded
from pipeline.text.vocabulary import Tokens

SIZES = LogBilinearSizes(context=3, dimensions=5, factors=4, condition=6, ahead=2, tags=7, dropout=0.5, gate_bias=True)
CLASSES = 9
NOUN = TAGS.index("NOUN")
NETWORKS = [LogBilinear, Additive, Multiplicative, StructureContent]
MODELS = [LogBilinearModel, AdditiveModel, MultiplicativeModel, StructureContentModel]
SHORT = [[("a", "DET"), (thing, "NOUN"), ("is", "AUX"), ("here", "ADV")] for thing in THINGS]
LONG = [
    [("one", "NUM"), ("big", "ADJ"), (thing, "NOUN"), ("by", "ADP"), ("the", "DET"), ("road", "NOUN")]
    for thing in THINGS
]
TAGGER = Tagger([*SHORT, *LONG], 0)


def make_network(kind: type, gate_bias: bool = True) -> LogBilinear:
    with seeded(2):
        network = kind(replace(SIZES, gate_bias=gate_bias), torch.randn(CLASSES))
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return network.eval()


def compute_probabilities(network: LogBilinear, context: list[int], u: np.ndarray, tags: list[int]) -> np.ndarray:
    """Compute the probability of every class (V + 2,) after the window `context`, given the conditioning vector `u`
    (c,) and the parts of speech `tags` of the next words, in float64. Equations 7 and 8 are used, with the term C_u u
    for an Additive network, and equations 9 and 10 for a Multiplicative network. For StructureContent, equation 11
    replaces u."""
    p = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
    k = SIZES.dimensions
    if isinstance(network, Multiplicative):
        attribute = u * SIZES.condition**0.5
        if isinstance(network, StructureContent):
            total = p["content"] @ attribute + p["attribute_bias"]
            for i, tag in enumerate(tags):
                total = total + p["tags"][tag] @ p["structure"][i * k : (i + 1) * k]
            attribute = np.maximum(total, 0)
        vectors = p["factors"] @ p["to_factors"]
    else:
        vectors = p["words"]
    predicted = sum(vectors[word] @ p["contexts"][i * k : (i + 1) * k] for i, word in enumerate(context))
    if isinstance(network, Additive):
        predicted = predicted + p["content"] @ (u * SIZES.condition**0.5)
    if isinstance(network, Multiplicative):
        f = (p["to_factors"] @ predicted) * (p["gates"] @ attribute + p.get("gate_bias", 0))
        logits = p["factors"] @ f + p["bias"]
    else:
        logits = vectors @ predicted + p["bias"]
    return np.exp(logits) / np.exp(logits).sum()


@pytest.mark.parametrize("gate_bias", [True, False])
@pytest.mark.parametrize("kind", NETWORKS)
def test_probabilities_follow_the_equations(kind: type, gate_bias: bool) -> None:
    network = make_network(kind, gate_bias)
    u = np.random.default_rng(0).standard_normal(6)
    context = [8, 2, 5]
    tags = [1, 0, 7]
    parts = (torch.tensor([context]), torch.tensor(u[None], dtype=torch.float32), torch.tensor([tags]))
    found = network.logits(*parts).softmax(1)[0].detach().numpy()
    np.testing.assert_allclose(found, compute_probabilities(network, context, u, tags), rtol=1e-4)


@pytest.mark.parametrize("kind", NETWORKS)
def test_decoding_word_by_word_equals_whole_sentences(kind: type) -> None:
    network = make_network(kind)
    boundary = CLASSES - 1
    tokens = Tokens(np.array([1, 2, 3, 4, 5], np.int32), np.array([0, 3, 5]))
    tags = Tokens(np.array([0, 1, 2, 3, 4], np.int32), tokens.offsets) if network.structured else None
    u = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    found = windows(tokens, boundary, SIZES.context, tags, SIZES.tags, SIZES.ahead)
    together = network.logits(found.context, u[found.sentences], found.tags).log_softmax(1)
    decoder = WindowDecoder(network, u, tags)
    alone = []
    for row, ids in enumerate(tokens):
        logits, state = decoder.begin()
        for word in [*ids.tolist(), boundary]:
            alone.append(logits.log_softmax(1)[row])
            logits, state = decoder.step(torch.full((2,), word), state)
    torch.testing.assert_close(torch.stack(alone), together)


@pytest.fixture(scope="module", params=MODELS)
def learned(request: pytest.FixtureRequest):
    return request.param.learn(make_material({**LOG_BILINEAR, "epochs": 8}, tagger=TAGGER))


def make_sources() -> Sources:
    texts, _ = make_sentences(48)
    tokens = make_pairs(48, 0).sentences
    corpus = Corpus(texts, tokens, make_vocabulary())
    trigram = Trigram(tokens, len(make_vocabulary().terms) + 1)
    return Sources(corpus, BeamSearch(3, 0.0, 9), None, 60, 0, ThingSpace(), trigram)


def test_captions_name_the_thing_in_the_image(learned) -> None:
    features = {"eyes": np.eye(6, dtype=np.float32)[:4]}
    sources = make_sources()
    described = learned.generator.generate_captions(features, sources, 5)
    for thing, found in zip(THINGS, described, strict=True):
        assert thing in found[0].words
        assert len({one.words for one in found}) == len(found) <= 5
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    assert learned.generator.generate_captions(features, sources, 5) == described


def test_conditions_are_the_image_vector_and_the_mean_of_its_nearest_texts() -> None:
    images = np.eye(4, dtype=np.float32)[:2]
    found = conditioning(images, make_sources())
    assert found.shape == (2, 2, 4)
    np.testing.assert_array_equal(found[:, 0], images)
    np.testing.assert_allclose(np.linalg.norm(found[:, 1], axis=1), 1, rtol=1e-5)
    assert (found[:, 1].argmax(axis=1) == [0, 1]).all()
