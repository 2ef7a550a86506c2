"""zero-shot: two encoders' own space as a model, and why some cannot be one."""

from pathlib import Path

import numpy as np
import pytest
from made_up import by_colour, by_hand, make_run, make_stage, open_run, write_config

from pipeline.errors import UsageError
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.texts import write_vectors

TEXT = {"name": "theirs", "kind": "transformers", "transformers": {"architecture": "x"}}
DIM = 6


def make(run: Path, dims: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """A run of 24 images with features, and of 48 sentences with vectors, of these dimensions; both of no length."""
    make_run(run)
    write_config(run, {"models": ["zero-shot"], "text_encoders": [TEXT], "data_root": str(run.parent)})
    manifest, layout = Manifest(run / "manifest"), open_run(run).layout
    rng = np.random.default_rng(0)
    sides = rng.standard_normal((24, dims[0])) * 5, rng.standard_normal((48, dims[1]))
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        path = layout.features("colour").shard(number)
        write_features(path, sides[0][ids].astype(np.float32), ids, by_colour(run), {})
        ids = np.arange(rows.first_sentence, rows.last_sentence)
        about = {
            "provenance": by_hand(run, **{"text/encoders/theirs/model.json": "texts"}),
            "encoder": "theirs",
            "storage": "float32",
        }
        vectors = sides[1][ids].astype(np.float32)
        write_vectors(layout.sentences("theirs").shard(number), vectors, ids, manifest.sentence_images[ids], **about)
    return sides


def test_the_cosine_of_their_own_vectors_is_the_score(tmp_path: Path) -> None:
    images, sentences = make(tmp_path / "run", (DIM, DIM))
    make_stage("adopt", tmp_path / "run", "zero-shot")
    make_stage("embed", tmp_path / "run", "zero-shot")
    run = open_run(tmp_path / "run")
    embedded = Embeddings(run.manifest, run.layout.embeddings("zero-shot").folder)
    found = embedded.read("images", np.arange(24)) @ embedded.read("sentences", np.arange(48)).T
    lengths = np.linalg.norm(images, axis=1)[:, None] * np.linalg.norm(sentences, axis=1)
    np.testing.assert_allclose(found, images @ sentences.T / lengths, atol=1e-3)
    assert run.model("zero-shot").details["text_encoders"] == {"theirs": {"encoder": "texts"}}


def test_sides_of_other_spaces_are_refused(tmp_path: Path) -> None:
    make(tmp_path / "run", (DIM, DIM + 1))
    with pytest.raises(UsageError, match="features of colour have 6 dimensions, vectors of theirs 7; name two sides"):
        make_stage("adopt", tmp_path / "run", "zero-shot")
