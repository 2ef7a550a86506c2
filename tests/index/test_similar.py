"""Images like an image, and like it with words beside it: against sums and products by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, features_of, make_run, run_command
from made_up_sets import add_fragments

from pipeline.errors import InputError, UsageError
from pipeline.index.search import Searcher, blend
from pipeline.storage.bundle import Bundle
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.manifest import Manifest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    add_fragments(folder, "dvsa", {"sum": "words", "global_weight": 0})
    return folder


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    return build_bundle(run)


def test_a_sum_is_of_unit_length_and_goes_from_one_to_the_other() -> None:
    image, sentence = np.eye(3, dtype=np.float32)[[0]], np.eye(3, dtype=np.float32)[[1]]
    np.testing.assert_allclose(blend(image, sentence, 0.2), np.array([[0.8, 0.2, 0]]) / np.hypot(0.8, 0.2), rtol=1e-6)
    np.testing.assert_allclose(blend(image, sentence, 0), image)
    np.testing.assert_allclose(blend(image, sentence, 1), sentence)
    with pytest.raises(InputError, match="cancel each other out"):
        blend(image, -image, 0.5)


@pytest.mark.parametrize(("sentence", "weight"), [(None, 0.5), ("a cat", 0.0), ("a cat", 0.3), ("a cat", 1.0)])
def test_images_are_ranked_by_their_products_with_the_sum(
    run: Path, bundle: Path, sentence: str | None, weight: float
) -> None:
    stored = Embeddings(Manifest(run / "manifest"), run / "embeddings/ncca").read("images", np.arange(24))
    images = stored.astype(float)
    query = np.eye(8)[0] if sentence is None else (1 - weight) * np.eye(8)[0] + weight * np.eye(8)[1]
    scores = images @ (query / np.linalg.norm(query))
    hits = Searcher(Bundle(bundle)).similar(features_of("dog"), 24, sentence, weight)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1], atol=1e-5)
    np.testing.assert_allclose(scores[[hit.row["image_id"] for hit in hits]], [hit.score for hit in hits], atol=1e-5)


def test_a_bundled_photograph_finds_images_with_the_same_regions(run: Path) -> None:
    folder = build_bundle(run, model="dvsa", output="several")
    photograph = run / "data" / "horse-3.png"
    found = json.loads(run_command("search", "--index", folder, "--image", photograph, "--similar", "--json"))
    assert {hit["path"] for hit in found[:3]} == {"horse-3.png", "horse-11.png", "horse-19.png"}
    with pytest.raises(UsageError, match="words are added to one vector an image, and dvsa has one a region"):
        run_command("search", "--index", folder, "--image", photograph, "--text", "a dog")
