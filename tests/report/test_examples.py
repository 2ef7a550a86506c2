"""Tests of the example queries on a synthetic index."""

from collections.abc import Iterable
from copy import copy
from pathlib import Path

import numpy as np
import pytest

from pipeline.report.examples import FAILURES, MAX_GENERATED_PHOTOS, TOP, SplitGallery, compare_generators
from pipeline.report.photographs import ReportPicture
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import split_pairs


def name_only(row: dict) -> ReportPicture:
    return ReportPicture(row["path"], None)


@pytest.fixture(scope="module")
def gallery(run: Path) -> SplitGallery:
    """Return a gallery of sixteen images with two sentences each. The images show eight things, and two images show the
    same thing."""
    manifest = Manifest(run / "manifest")
    return SplitGallery(
        Embeddings(manifest, run / "embeddings/ncca"), split_pairs(manifest, "train"), "train", name_only
    )


def rolled(gallery: SplitGallery, shift: int) -> SplitGallery:
    """Return a copy of the gallery whose image vectors are moved down by `shift` rows, and the last rows to the top."""
    moved = copy(gallery)
    moved.image_vectors = np.roll(gallery.image_vectors, shift, axis=0)
    return moved


def test_right_answers_are_marked_and_ranked(gallery: SplitGallery) -> None:
    examples = gallery.examples()
    assert (examples.model, examples.split, examples.n_images, examples.n_sentences) == ("ncca", "train", 16, 32)
    first = examples.by_sentence[0]
    last = examples.by_sentence[-1]
    # dog-0 is exactly on its axis and comes first. tree-22 is farther from its axis than tree-6 and comes second.
    assert (first.query, first.rank) == ("a dog", 1)
    assert [(a.what.name, a.right) for a in first.answers[:2]] == [("dog-0.png", True), ("dog-16.png", False)]
    assert [a.rank for a in first.answers] == [1, 2, 3, 4, 5]
    assert (last.query, last.rank) == ("the big tree number 22", 2)
    picture = examples.by_image[0]
    # Sentences of the other dog have equal scores. Ties count against the model, so they are shown first.
    assert (picture.query.name, picture.rank) == ("dog-0.png", 3)
    assert [a.right for a in picture.answers] == [False, False, True, True, False]


def test_a_right_answer_with_a_high_rank_is_shown_last(gallery: SplitGallery) -> None:
    example = rolled(gallery, 3).examples().by_sentence[0]
    assert example.rank > TOP and len(example.answers) == TOP + 1
    assert [answer.right for answer in example.answers] == [False] * TOP + [True]
    assert example.answers[-1].rank == example.rank


@pytest.mark.parametrize("shift", [0, 3])
def test_failures_have_the_highest_ranks_and_successes_the_lowest(shift: int, gallery: SplitGallery) -> None:
    """The first failure has the highest rank, and the successes have the lowest ranks. The failures are captions of
    different images, and so are the successes."""
    gallery = rolled(gallery, shift)
    scores = gallery.sentence_vectors @ gallery.image_vectors.T
    examples = gallery.examples()
    ranks = (scores >= scores[np.arange(len(scores)), gallery.owners][:, None]).sum(axis=1)
    assert examples.failures[0].rank == ranks.max()
    owners = dict(zip(gallery.sentences["text"].to_pylist(), gallery.owners, strict=True))
    for shown in (examples.failures, examples.successes):
        assert len({owners[example.query] for example in shown}) == len(shown) == FAILURES
    lowest = sorted(min(ranks[gallery.owners == image]) for image in range(len(gallery.image_vectors)))
    assert max(success.rank for success in examples.successes) <= lowest[FAILURES - 1]


def description(name: str, ids: list[int]) -> dict:
    sentence = {"text": f"{name} says", "score": 1.0, "verbatim": name == "nearest"}
    images = [{"image_id": i, "box": None, "sentences": [sentence, {**sentence, "text": "worse"}]} for i in ids]
    return {"generator": name, "images": [*images, {"image_id": 9, "box": [0, 0, 1, 1], "sentences": [sentence]}]}


def test_the_best_caption_of_each_generator_is_shown_with_the_photo() -> None:
    def pick(ids: Iterable[int]) -> list[dict]:
        return [{"image_id": i, "path": f"{i}.png"} for i in ids]

    stored = [description("nearest", list(range(12))), description("mrnn", list(range(3, 15)))]
    found = compare_generators(stored, pick, name_only)
    assert [one.what.name for one in found][0] == "3.png" and [one.what.name for one in found][-1] == "11.png"
    assert len(found) == MAX_GENERATED_PHOTOS
    assert all(one.sentences == [("nearest", "nearest says", True), ("mrnn", "mrnn says", False)] for one in found)
    assert compare_generators([], pick, name_only) == []
