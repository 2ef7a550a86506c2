"""Searches of multi-vector indexes are compared with a plain loop over all items of a synthetic run."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_multivectors import OTHER, SCORE, THING
from synthetic_run import THINGS, build_bundle, run_command

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import UsageError
from pipeline.index.search import Searcher
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.manifest import Manifest
from pipeline.storage.stored_index import open_index


@pytest.fixture
def bundle(run: Path) -> Path:
    return run / "regions"


@pytest.fixture(scope="module")
def inverted(run: Path) -> Path:
    """Build an index of the multi-vector model with inverted files and a shortlist that has room for all items."""
    index = {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 100}}
    return build_bundle(run, {"index": index}, model="dvsa", output="inverted")


class WordVectorModel(dict):
    """A model of word vectors that replaces the untrained model: number of a word -> its vector. A word whose number is
    missing has zeros as its vector."""

    def embed_sentences(self, sentences) -> MultiVectors:
        vectors = np.array([self.get(int(word), np.zeros(8)) for word in sentences.ids], np.float32)
        return MultiVectors(vectors, sentences.offsets)


def open_with_word_vectors(folder: Path) -> Searcher:
    """Return a searcher of the index with a WordVectorModel. The model gives the word of thing k in THINGS twice the
    unit vector k, and all other words zeros."""
    searcher = Searcher(open_index(folder))
    index = searcher._forms.vocabularies["tokens"].index
    model = WordVectorModel({index[thing]: 2 * np.eye(8)[k] for k, thing in enumerate(THINGS)})
    searcher.model = model
    model.sentence_view = "tokens"
    return searcher


def test_the_card_and_the_arrays_of_an_index_agree_with_the_documentation(run: Path, bundle: Path) -> None:
    opened = IndexShard(bundle)
    stored = Embeddings(Manifest(run / "manifest"), run / "embeddings/dvsa")
    card = opened.card
    arrays = opened.arrays("fragments.safetensors")
    assert {path.name for path in bundle.glob("*.faiss")} == {"regions.faiss", "words.faiss"} < set(card.files)
    assert set(arrays) == {"image_offsets", "sentence_offsets", "boxes"} and card.score.to_json() == SCORE
    for modality in ("images", "sentences"):
        sets = stored.read(modality, np.arange(opened.table(modality).num_rows))
        assert card.index_of(modality).count == len(sets.vectors) and card.index_of(modality).shortlist.recall == 1
        np.testing.assert_array_equal(arrays[f"{modality[:-1]}_offsets"], sets.offsets)
    np.testing.assert_array_equal(arrays["boxes"], stored.read("images", np.arange(24)).boxes)


@pytest.mark.parametrize("kind", ["bundle", "inverted"])
def test_images_are_ranked_by_exact_scores(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    hits = open_with_word_vectors(folder).images("a dog", 6)
    assert [hit.row["path"] for hit in hits[:3]] == ["dog-0.png", "dog-8.png", "dog-16.png"]
    # The images of a car also show the next thing, a dog, but less clearly.
    assert [hit.score for hit in hits] == pytest.approx([2, 2, 2, 1.2, 1.2, 1.2])
    assert {hit.row["path"].split("-")[0] for hit in hits[3:]} == {"car"}
    both = open_with_word_vectors(folder).images("a dog and a cat", 3)
    assert [hit.score for hit in both] == pytest.approx([2 + 1.2] * 3)


@pytest.mark.parametrize("kind", ["bundle", "inverted"])
def test_a_snippet_finds_regions_with_their_boxes(kind: str, request: pytest.FixtureRequest) -> None:
    hits = open_with_word_vectors(request.getfixturevalue(kind)).regions("dog", 6)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5, 6]
    assert {(hit.row["path"].split("-")[0], tuple(hit.row["box"])) for hit in hits} == {
        ("dog", tuple(THING)),
        ("car", tuple(OTHER)),
    }
    assert [hit.score for hit in hits] == pytest.approx([2, 2, 2, 1.2, 1.2, 1.2])


def test_a_photo_of_the_index_finds_its_captions(run: Path, bundle: Path) -> None:
    path = run / "data" / "horse-3.png"
    values = json.loads(run_command("search", "--index", bundle, "--image", path, "--top-k", 6, "--json"))
    assert {value["text"] for value in values} == {"a horse"} | {f"the big horse number {i}" for i in (3, 11, 19)}
    assert [value["score"] for value in values] == pytest.approx([2] * 6)


def test_an_index_of_regions_cannot_be_applied(run: Path, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dvsa compares image regions"):
        run_command("apply", bundle, run / "data", "--output", tmp_path / "out")
    assert not (tmp_path / "out").exists()
