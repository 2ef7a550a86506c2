"""Example queries on a made-up bundle."""

from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run

from pipeline.report.examples import TOP, Picture, ask, read_gallery
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings, split_pairs
from pipeline.storage.manifest import Manifest


def name_only(row: dict) -> Picture:
    return Picture(row["path"], None)


@pytest.mark.parametrize("registered", ["ncca", "cca"])
@pytest.mark.parametrize("exact_limit", [100, 3])
def test_a_gallery_is_the_split_as_it_was_embedded(tmp_path: Path, registered: str, exact_limit: int) -> None:
    run = make_run(tmp_path, registered, images=240)
    (run / "config.yaml").write_text(f"index: {{exact_limit: {exact_limit}}}")
    bundle = Bundle(build_bundle(run, "--config", run / "config.yaml"))
    assert bundle.card["images"]["factory"].startswith("IVF") == (exact_limit < 240)
    gallery = read_gallery(bundle, "test")
    embeddings = Embeddings(Manifest(run / "manifest"), run / "embeddings")
    pairs = split_pairs(embeddings.manifest, "test")
    np.testing.assert_array_equal(gallery.images["image_id"].to_numpy(), pairs.image_id)
    np.testing.assert_array_equal(gallery.image_vectors, embeddings.read("images", pairs.image_id))
    np.testing.assert_array_equal(gallery.sentence_vectors, embeddings.read("sentences", pairs.sentence_id))


def test_right_answers_are_marked_and_ranked(tmp_path: Path) -> None:
    bundle = Bundle(build_bundle(make_run(tmp_path)))
    examples = ask(read_gallery(bundle, "train"), name_only)
    assert (examples.model, examples.split, examples.n_images, examples.n_sentences) == ("ncca", "train", 16, 32)
    first, last = examples.by_sentence[0], examples.by_sentence[-1]
    # dog-0 is exactly on its axis, and first; horse-19 is farther off than horse-3, and second.
    assert (first.query, first.rank) == ("a dog", 1)
    assert [(a.what.name, a.rank, a.right) for a in first.answers[:2]] == [
        ("dog-0.png", 1, True),
        ("dog-16.png", 2, False),
    ]
    assert (last.query, last.rank) == ("the big tree number 22", 2)
    picture = examples.by_image[0]
    # The other dog's two sentences are the same as its own: they count against the model, and are shown before.
    assert (picture.query.name, picture.rank) == ("dog-0.png", 3)
    assert [a.right for a in picture.answers] == [False, False, True, True, False]


def test_a_right_answer_that_comes_late_is_shown_last(tmp_path: Path) -> None:
    gallery = read_gallery(Bundle(build_bundle(make_run(tmp_path))), "train")
    shuffled = type(gallery)(**{**vars(gallery), "image_vectors": np.roll(gallery.image_vectors, 3, axis=0)})
    example = ask(shuffled, name_only).by_sentence[0]
    assert example.rank > TOP and len(example.answers) == TOP + 1
    assert [answer.right for answer in example.answers] == [False] * TOP + [True]
    assert example.answers[-1].rank == example.rank


def test_a_split_that_is_not_indexed_gives_no_examples(tmp_path: Path) -> None:
    examples = ask(read_gallery(Bundle(build_bundle(make_run(tmp_path))), "dev"), name_only)
    assert (examples.n_images, examples.by_sentence, examples.by_image) == (0, [], [])
