"""Tests of the behaviour of models with several vectors per image and sentence. The behaviour that all models share is
tested in tests/test_models.py."""

import numpy as np
import pytest
import torch
from synthetic_tasks import VIEW, WORDS, SyntheticRegions, draw_boxes, make_task, make_task_of

from pipeline.compute.multivectors import MultiVectors
from pipeline.compute.ragged import offsets_of
from pipeline.config.registry import model_spec
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.neural.fragment_models import DVSA
from pipeline.models.neural.task import WHOLE_IMAGE_GEOMETRY, RegionView, locate
from pipeline.text.vocabulary import Tokens


def test_geometry_of_a_region_is_computed_from_its_corners() -> None:
    lengths = (4, 1, 0, 7)
    boxes = np.concatenate([draw_boxes(count) for count in lengths])  # The images have 30 by 20 pixels.
    found = locate(boxes, offsets_of(np.array(lengths)))
    for (x1, y1, x2, y2), row in zip(boxes, found, strict=True):
        width = (x2 - x1) / 30
        height = (y2 - y1) / 20
        shares = [x1 / 30, y1 / 20, x2 / 30, y2 / 20, width, height, (width * height) ** 0.5]
        np.testing.assert_allclose(row, np.sqrt(shares) / sum(shares) ** 0.5, rtol=1e-5)
    np.testing.assert_array_equal(found[[0, 4, 5]], np.tile(WHOLE_IMAGE_GEOMETRY, (3, 1)))


@pytest.mark.parametrize("name", ["dvsa", "deptree", "defrag"])
def test_vectors_of_regions_depend_on_the_position_but_not_on_the_size_of_the_photo(name: str) -> None:
    task = make_task_of(name)
    model = model_spec(name).load().trainer(task).finish()
    dev = task.dev
    assert model.region_view.geometry
    here = model.embed_images(dict(dev.features), dev.regions).vectors
    places = {
        "larger": lambda count: 4.5 * draw_boxes(count),
        "elsewhere": lambda count: np.vstack([draw_boxes(count)[:1], draw_boxes(count)[:0:-1]]),
    }
    found = {
        name: model.embed_images(dict(dev.features), SyntheticRegions(dev.regions.images, draw)).vectors
        for name, draw in places.items()
    }
    np.testing.assert_allclose(found["larger"], here, atol=1e-5)
    apart = np.abs(found["elsewhere"] - here).max(axis=1).reshape(-1, 5)
    # Row 0 is the whole image, whose box stays. `elsewhere` gives each other row the box of another region.
    assert (apart[:, 0] == 0).all() and (apart[:, 1:] > 1e-3).all()


def test_entries_of_the_gradient_are_clipped() -> None:
    ranking = {"loss": "ranking", "margin": 1.0, "clip": 1e6, "optimiser": "sgd", "learning_rate": 1.0}
    task = make_task_of("dvsa", train=60, dev=20, element_clip=1e-3, **ranking)
    trainer = model_spec("dvsa").load().trainer(task)
    before = trainer.trained["regions.weight"].detach().clone()
    trainer._step(np.arange(32))
    moved = (trainer.trained["regions.weight"] - before).abs().max().item()
    assert 0.9e-3 < moved < 1.1e-3


def test_fragments_start_from_the_result_of_a_recurrent_ncca() -> None:
    task = make_task_of("fragments", sum="mean-words", global_weight=1.0)
    with torch.no_grad():
        task.start.network.to_whole.normal_(generator=torch.Generator().manual_seed(0))  # as if it were trained
    model = model_spec("fragments").load().trainer(task).finish()
    images = model.embed_images(dict(task.dev.features), task.dev.regions)
    sentences = model.embed_sentences(task.dev.sentences)
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
def test_a_score_product_is_the_score_of_a_single_region_with_a_phrase(rule: str) -> None:
    model = make_dvsa(rule)
    block = make_task("tokens", train=3).train.regions.packed(np.arange(3))
    phrases = model.embed_phrases(PHRASES)
    regions = model.embed_regions(block)
    alone = MultiVectors(torch.from_numpy(regions), offsets_of(np.ones(len(regions), int)))
    words = model.embed_sentences(PHRASES)
    scores = multivector_scores(alone, MultiVectors(torch.from_numpy(words.vectors), words.offsets), model.rule)
    np.testing.assert_allclose(regions @ phrases.T, scores.numpy(), rtol=1e-4, atol=1e-5)


def test_phrases_of_a_rule_with_a_mean_are_means_of_word_vectors() -> None:
    means, others = (make_dvsa(rule).embed_phrases(PHRASES) for rule in ("mean-words", "mean-positive"))
    np.testing.assert_array_equal(others, means)
