"""The units of `hmlstm` are compared with the equations of Niu et al. 2017, and the correspondences of phrases and
regions with a loop. Training in alternating steps is tested too."""

import numpy as np
import pytest
import torch
from synthetic_tasks import NOUN_PHRASE, draw_phrases, make_task_of
from torch import Tensor

from pipeline.config.registry import model_spec
from pipeline.models.neural.hmlstm import (
    HierarchicalLSTM,
    Normalisation,
    TwoBranches,
    match_regions,
    noun_phrases,
    phrase_rows,
)
from pipeline.models.neural.losses import DenseObjective, Objective, PhrasePairs, Scores
from pipeline.models.neural.task import WHOLE_IMAGE_GEOMETRY, train
from pipeline.text.trees import Trees, pack

LENGTHS = [1, 5, 0, 9, 17, 30]


def make_encoder() -> HierarchicalLSTM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = HierarchicalLSTM(torch.randn(21, 7), 6, 0.0, noun_phrase=2)
        for parameter in (encoder.w, encoder.u, encoder.bias):
            torch.nn.init.normal_(parameter)
    return encoder


def unit(encoder: HierarchicalLSTM, node: int, parents, words, labels) -> tuple[Tensor, Tensor]:
    """Compute the hidden state and the cell of one node by equations 2 to 8 of Niu et al. 2017, from the states and
    cells of its children."""
    (wi, wo, wu, wf), (bi, bo, bu, bf) = encoder.w.chunk(4), encoder.bias.chunk(4)
    (ui, uo, uu, uf), (ni, no, nu, nf) = (u.chunk(4) for u in encoder.u)
    x = encoder.words[words[node]] if words[node] >= 0 else torch.zeros(7)
    children = [(labels[k] == 2, *unit(encoder, k, parents, words, labels)) for k in np.flatnonzero(parents == node)]
    hat = sum((h for noun, h, _ in children if noun), torch.zeros(6))
    bar = sum((h for noun, h, _ in children if not noun), torch.zeros(6))
    i = torch.sigmoid(wi @ x + ni @ hat + ui @ bar + bi)
    o = torch.sigmoid(wo @ x + no @ hat + uo @ bar + bo)
    u = torch.tanh(wu @ x + nu @ hat + uu @ bar + bu)
    c = i * u
    for noun, h, cell in children:
        c = c + torch.sigmoid(wf @ x + (nf if noun else uf) @ h + bf) * cell
    return o * torch.tanh(c), c


def recursion(encoder: HierarchicalLSTM, trees: Trees) -> Tensor:
    found = []
    for start, stop in zip(trees.offsets[:-1], trees.offsets[1:], strict=True):
        parts = [part[start:stop] for part in (trees.parents, trees.words, trees.labels)]
        if start == stop:
            parts = [np.array([-1]), np.array([20]), np.array([0])]
        found.append(unit(encoder, int(np.flatnonzero(parts[0] < 0)[0]), *parts)[0])
    return torch.stack(found)


def test_units_and_gradients_follow_the_equations() -> None:
    encoder = make_encoder()
    trees = draw_phrases(np.random.default_rng(0), LENGTHS, 20, 4)
    levels = encoder.arrange(trees)
    found = encoder(levels)[levels.roots]
    expected = recursion(encoder, trees)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
    parameters = list(encoder.parameters())
    ours, theirs = (torch.autograd.grad((states * weights).sum(), parameters) for states in (found, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_rows_of_noun_phrases_have_the_states_of_their_nodes() -> None:
    """One of the sentences has no words, which must not shift the rows of later sentences."""
    encoder = make_encoder()
    trees = draw_phrases(np.random.default_rng(0), LENGTHS, 20, 4)
    levels = encoder.arrange(trees)
    nodes = noun_phrases(trees, 2)
    states = encoder(levels)
    rows = phrase_rows(levels, trees, encoder)
    for node, row in zip(nodes, rows, strict=True):
        start, stop = trees.offsets[np.searchsorted(trees.offsets, node, "right") - 1 :][:2]
        parts = (part[start:stop] for part in (trees.parents, trees.words, trees.labels))
        torch.testing.assert_close(states[row], unit(encoder, node - start, *parts)[0], rtol=0, atol=1e-5)


def test_a_phrase_has_the_same_vector_alone_and_within_its_sentence() -> None:
    """The state of a node depends on its subtree only. A phrase is normalised with the statistics of phrases, and a
    sentence with other statistics."""
    task = make_task_of("hmlstm", train=40, dev=12, epochs=1)
    model = train(model_spec("hmlstm").load(), task, None, lambda training: None).model
    trees = task.dev.sentences
    nodes = noun_phrases(trees, NOUN_PHRASE)
    phrases = model.embed_phrases(trees)
    for place in (0, 7, len(nodes) - 1):
        tree = int(np.searchsorted(trees.offsets, nodes[place], "right")) - 1
        start, stop = trees.offsets[tree : tree + 2]
        parents = trees.parents[start:stop]
        below = [int(nodes[place] - start)]
        for node in below:
            below.extend(np.flatnonzero(parents == node).tolist())
        below = sorted(below)
        alone = [(-1 if node == nodes[place] - start else below.index(parents[node])) for node in below]
        words, labels = (part[start:stop][below] for part in (trees.words, trees.labels))
        snippet = pack([list(zip(alone, words.tolist(), labels.tolist(), strict=True))])
        levels = model.arrange(snippet)
        with torch.inference_mode():
            by_itself = model.network.embed_nodes(levels, levels.roots, roots=0)[0]
        np.testing.assert_allclose(by_itself, phrases[place], atol=1e-5)
        assert np.abs(model.embed_sentences(snippet)[0] - phrases[place]).max() > 1e-3


def test_a_phrase_is_matched_with_a_region_of_its_image_and_not_with_the_whole_image() -> None:
    rng = np.random.default_rng(0)
    offsets = np.array([0, 4, 5, 12])
    images = np.array([0, 2, 1, 0, 2])
    phrases, regions = (torch.from_numpy(rng.standard_normal((n, 6), dtype=np.float32)) for n in (5, 12))
    chosen, confidence = match_regions(phrases, images, regions, offsets)
    for phrase, image in enumerate(images):
        own = (phrases[phrase] @ regions[offsets[image] : offsets[image + 1]].T).numpy()
        best = 0 if len(own) == 1 else 1 + own[1:].argmax()
        assert chosen[phrase] == best and confidence[phrase] == pytest.approx(own[best], abs=1e-6)


@pytest.mark.parametrize(("simplified_epochs", "chosen"), [(1, True), (9, False)])
def test_correspondences_are_chosen_after_the_epochs_of_the_simplified_model(
    simplified_epochs: int, chosen: bool
) -> None:
    task = make_task_of("hmlstm", train=40, dev=12, epochs=2, simplified_epochs=simplified_epochs)
    trainer = model_spec("hmlstm").load().trainer(task)
    trainer.run(lambda training: None)
    found = trainer.extra_state
    assert found["confidence"].any() == chosen and (not chosen or found["chosen"].min() >= 1)


@pytest.mark.parametrize(
    ("contrasts", "chosen", "total"),
    [
        # The regions are v1, v2 and v3, and the phrases are h1, h2 and h3. The first two belong to one image. The
        # weights w of the pairs are 1, 0.5 and 2. The terms max(0, 0.2 - s(v_k, h_k) + s) that are not zero are:
        # - for a region against other phrases: 0.1 (v1 h2), 0.1 (v2 h1) and 0.35 (v2 h3),
        # - for a phrase against other regions: 0.3 (h2 v1), 0.25 (h2 v3) and 0.05 (h3 v2).
        ("batch", (5, 6, 9), 0.1 + 0.5 * (0.1 + 0.35 + 0.3 + 0.25) + 2 * 0.05),
        ("other-images", (5, 6, 9), 0.5 * (0.35 + 0.25) + 2 * 0.05),
        ("own-image", (5, 6, 9), 0.1 + 0.5 * (0.1 + 0.3)),
        ("batch", (5, 5, 9), 0.5 * (0.35 + 0.25) + 2 * 0.05),  # Phrases of the same region are not contrasts.
    ],
)
def test_the_loss_of_phrases_equals_a_computation_by_hand(contrasts: str, chosen: tuple, total: float) -> None:
    """The loss is given by equations 9 and 10 of Niu et al. 2017."""
    scores = torch.tensor([[0.5, 0.4, 0.1], [0.2, 0.3, 0.45], [0.0, 0.35, 0.6]])
    owners = torch.tensor([0, 0, 1])
    empty = torch.empty(0)
    pairs = PhrasePairs(empty + torch.zeros(3, 0), empty, torch.tensor([1, 0.5, 2]), owners, torch.tensor(chosen))
    satisfied = torch.tensor([[0.5, 0.1], [0.2, 0.6]])
    for reduction, divisor in (("mean", 2), ("sum", 1)):
        of_pairs = Objective("ranking", "all", 1, margin=0.2, temperature=1, reduction=reduction)
        found = DenseObjective(of_pairs, 0.3, contrasts)(Scores(satisfied, scores, pairs), torch.tensor([0, 1]))
        assert found.item() == pytest.approx(0.3 * total / divisor, abs=1e-6)


def test_both_branches_follow_the_equations_of_the_paper() -> None:
    """The score is s = v . h. v is W_m times the features minus their mean, and h is W_t times the state of the root or
    of the phrase.

    Both v and h are normalised over the batch and scaled to length 1. Sentences and images have other statistics than
    phrases and regions. The expected values are computed in float64.
    """
    rng = np.random.default_rng(4)
    encoder = make_encoder()
    mean, x, regions = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in (5, (6, 5), (4, 5)))
    network = TwoBranches(mean, encoder, 6, 0.0, geometry=False).train()
    for norm in (network.image_norm, network.text_norm):
        torch.nn.init.normal_(norm.gain), torch.nn.init.normal_(norm.shift)
    torch.nn.init.normal_(network.text_map)
    levels = encoder.arrange(draw_phrases(rng, LENGTHS, 20, 4))
    rows = torch.tensor([3, 0, 8, 5])
    pairs = PhrasePairs(rows, regions, torch.ones(4), torch.tensor([0, 0, 1, 5]), torch.arange(4))
    found = network(x, levels, pairs)

    def branch(inputs: Tensor, weights: Tensor, norm: Normalisation) -> np.ndarray:
        mapped = np.array([weights.detach().double().numpy() @ row for row in inputs.detach().double().numpy()])
        scaled = (mapped - mapped.mean(axis=0)) / np.sqrt(mapped.var(axis=0) + 1e-5)
        y = scaled * norm.gain.detach().numpy() + norm.shift.detach().numpy()
        return y / np.linalg.norm(y, axis=1, keepdims=True)

    states = encoder(levels)
    for scores, images, texts in (
        (found.sentences, x, states[levels.roots]), (found.phrases, regions, states[rows]),
    ):  # fmt: skip
        v = branch(images - mean, network.image_map, network.image_norm)
        h = branch(texts, network.text_map, network.text_norm)
        np.testing.assert_allclose(scores.detach().numpy(), v @ h.T, atol=1e-5)


@pytest.mark.parametrize("geometry", [False, True])
def test_features_are_centred_at_the_mean_image_and_geometry_at_the_whole_image(geometry: bool) -> None:
    """The network is used before it has learned statistics, because learned statistics would hide a wrong centre."""
    rng = np.random.default_rng(3)
    mean, x = (torch.from_numpy(rng.standard_normal(shape)).float() for shape in (5, (4, 5)))
    network = TwoBranches(mean, make_encoder(), 6, 0.0, geometry=geometry).eval()
    place = torch.rand(4, 7, generator=torch.Generator().manual_seed(0)) if geometry else torch.empty(4, 0)
    centre = torch.from_numpy(WHOLE_IMAGE_GEOMETRY) if geometry else torch.empty(0)
    for found, rows in (
        (network.embed_images(x), torch.hstack([x - mean, torch.zeros(4, len(centre))])),
        (network.embed_regions(torch.hstack([x, place])), torch.hstack([x - mean, place - centre])),
    ):
        expected = (rows @ network.image_map.T).detach().numpy()
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)
