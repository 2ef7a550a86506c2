"""The contract of the registered models whose images and sentences are sets, and what is particular to each."""

from pathlib import Path

import numpy as np
import pytest
import torch
from made_up_pairs import VIEW, WORDS, through_a_file
from made_up_pairs import make_task as make_pairs_task
from made_up_regions import REGION_VIEW, MadeUpRegions, draw_boxes, make_task

from pipeline.config.registry import model_spec
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.metrics.ranks import rank_scores
from pipeline.models.neural.fragment_models import DVSA
from pipeline.models.neural.task import RegionView, train
from pipeline.models.neural.training import Checkpoint, Training
from pipeline.multivectors import MultiVectors
from pipeline.ragged import offsets_of
from pipeline.text.sequences import Tokens
from pipeline.text.trees import pack as pack_trees

OWN = {
    "dvsa": {"loss": "ranking", "margin": 1.0, "epochs": 6, "element_clip": 5.0, "clip": 1e6},
    "deptree": {"loss": "ranking", "margin": 1.0, "epochs": 6},
    "defrag": {"loss": "ranking", "margin": 1.0, "epochs": 6},
    "fragments": {"sum": "mean-words", "global_weight": 1.0, "epochs": 3},
}


@pytest.fixture(scope="module", params=OWN)
def trained(request: pytest.FixtureRequest):
    """A registered model, and the dev pairs it was judged on."""
    task = make_task(request.param, **OWN[request.param])
    return train(model_spec(request.param).load(), task, None, lambda training: None).model, task.dev


def embed(model, pairs):
    features = {name: pairs.features[name] for name in model.encoders}
    return model.embed_images(features, pairs.regions), model.embed_sentences(pairs.sentences)


def test_sets_are_finite_and_one_vector_a_fragment(trained) -> None:
    model, dev = trained
    images, sentences = embed(model, dev)
    assert model.multi_vector and model.metric == "inner_product"
    assert (images.lengths == 5).all() and (sentences.lengths == 4).all() and len(images) == 40
    for sets in (images, sentences):
        assert sets.vectors.dtype == np.float32 and np.isfinite(sets.vectors).all()
        assert (sets.globals is not None) == bool(model.rule.global_weight)


def test_it_beats_chance_by_far_on_unseen_pairs(trained) -> None:
    model, dev = trained
    scores = multivector_scores(*embed(model, dev), model.rule).numpy()
    ranks = rank_scores(scores, dev.owners)
    assert np.median(ranks.sentence_to_image) < 3 and np.median(ranks.image_to_sentence) < 3  # chance: 20, 27


def test_what_a_region_becomes_depends_on_its_place_and_not_on_the_photographs_size(trained) -> None:
    model, dev = trained
    assert model.region_view.geometry
    here = model.embed_images(dict(dev.features), dev.regions).vectors
    places = {
        "larger": lambda count: 4.5 * draw_boxes(count),
        "elsewhere": lambda count: np.vstack([draw_boxes(count)[:1], draw_boxes(count)[:0:-1]]),
    }
    found = {
        name: model.embed_images(dict(dev.features), MadeUpRegions(dev.regions.images, draw)).vectors
        for name, draw in places.items()
    }
    np.testing.assert_allclose(found["larger"], here, atol=1e-5)
    apart = np.abs(found["elsewhere"] - here).max(axis=1).reshape(-1, 5)
    assert (apart[:, 0] == 0).all() and (apart[:, [1, 2, 4]] > 1e-3).all()  # the wholes; the middle one stays


def test_parts_bring_it_back(trained) -> None:
    model, dev = trained
    twin = type(model).from_parts(model.settings(), model.tensors())
    for ours, theirs in zip(embed(model, dev), embed(twin, dev), strict=True):
        np.testing.assert_array_equal(ours.vectors, theirs.vectors)
    assert twin.rule == model.rule and twin.encoders == model.encoders
    assert twin.region_view == model.region_view == REGION_VIEW


def test_empty_unknown_and_very_long_sentences_embed(trained) -> None:
    model, _ = trained
    ids = np.concatenate([np.random.default_rng(0).integers(WORDS, size=500), [WORDS] * 3]).astype(np.int32)
    tokens, none = Tokens(ids, np.array([0, 500, 500, 503])), Tokens(np.zeros(0, np.int32), np.zeros(1, np.int64))
    if model.sentence_view == "dependency-trees":
        tokens, none = (pack_trees([chain(words) for words in each]) for each in (tokens, none))
    sets = model.embed_sentences(tokens)
    assert sets.lengths.tolist() == [500, 1, 3] and np.isfinite(sets.vectors).all()
    none = model.embed_sentences(none)
    assert len(none) == 0 and none.vectors.shape[0] == 0


def chain(words: np.ndarray) -> list[tuple[int, int, int]]:
    """The dependency tree in which each word is the head of the next, by one relation."""
    return [(place - 1, word, 1) for place, word in enumerate(words.tolist())]


@pytest.mark.parametrize("name", ["dvsa", "fragments"])
def test_a_killed_training_goes_on_to_the_same_model(name: str, tmp_path: Path) -> None:
    task = make_task(name, train=60, dev=20, **{**OWN[name], "epochs": 2, "averaging": 0.9, "optimiser": "momentum"})
    kept: list[Checkpoint] = []

    def after_step(training: Training) -> None:
        kept.append(training.checkpoint())

    whole = train(model_spec(name).load(), task, None, after_step).model.tensors()
    found = through_a_file(kept[4], tmp_path)
    resumed = train(model_spec(name).load(), task, found, lambda training: None).model.tensors()
    for key, tensor in whole.items():
        np.testing.assert_array_equal(resumed[key], tensor)


def test_entries_of_the_gradient_are_clipped() -> None:
    task = make_task(
        train=60, dev=20, **{**OWN["dvsa"], "element_clip": 1e-3, "optimiser": "sgd", "learning_rate": 1.0}
    )
    trainer = model_spec("dvsa").load().trainer(task)
    before = trainer.trained["regions.weight"].detach().clone()
    trainer._step(np.arange(32))
    moved = (trainer.trained["regions.weight"] - before).abs().max().item()
    assert 0.9e-3 < moved < 1.1e-3


def test_fragments_begin_where_an_ncca_that_reads_words_in_order_has_ended() -> None:
    task = make_task("fragments", **OWN["fragments"])
    with torch.no_grad():
        task.start.network.to_whole.normal_(generator=torch.Generator().manual_seed(0))  # as if trained
    images, sentences = embed(model_spec("fragments").load().trainer(task).finish(), task.dev)
    np.testing.assert_allclose(images.globals, task.start.embed_images(task.dev.features), atol=1e-5)
    np.testing.assert_allclose(sentences.globals, task.start.embed_sentences(task.dev.sentences), atol=1e-5)
    first = task.start.network.words.detach().numpy()[task.dev.sentences.ids[:4]]
    np.testing.assert_allclose(
        sentences.between(0, 1).vectors, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-5
    )


PHRASES = Tokens(np.array([3, 7, 1, 4, 4, 0, 9], np.int32), np.array([0, 2, 3, 3, 7]))


def make_dvsa(rule: str) -> DVSA:
    words = np.random.default_rng(0).standard_normal((WORDS + 1, 6), dtype=np.float32)
    shape = {"dimensions": 8, "hidden": 5, "dropout": 0.0, "sum": rule}
    return DVSA.build(RegionView(VIEW, geometry=False), np.full(16, 0.1, np.float32), 0.5, words, shape, seed=0)


@pytest.mark.parametrize("rule", ["words", "mean-words"])
def test_a_product_is_the_score_of_a_region_alone_with_a_phrase(rule: str) -> None:
    model, block = make_dvsa(rule), make_pairs_task("tokens", train=3).train.regions.packed(np.arange(3))
    phrases, regions = model.embed_phrases(PHRASES), model.embed_regions(block)
    alone = MultiVectors(torch.from_numpy(regions), offsets_of(np.ones(len(regions), int)))
    words = model.embed_sentences(PHRASES)
    scores = multivector_scores(alone, MultiVectors(torch.from_numpy(words.vectors), words.offsets), model.rule)
    np.testing.assert_allclose(regions @ phrases.T, scores.numpy(), rtol=1e-4, atol=1e-5)
