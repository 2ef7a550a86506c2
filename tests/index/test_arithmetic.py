"""Images less words plus words: against sums done by hand, and on a made-up bundle."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from made_up import build_bundle, features_of, make_run

from pipeline.errors import InputError
from pipeline.index.arithmetic import compose, search_around_mean
from pipeline.index.gallery import Gallery
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle


def test_a_query_is_the_unit_vector_of_the_sum() -> None:
    image, minus, plus = np.eye(4, dtype=np.float32)[[0]], np.eye(4)[[1]], np.eye(4)[[2, 3]]
    np.testing.assert_allclose(compose(image, minus, plus), [[0.5, -0.5, 0.5, 0.5]])
    np.testing.assert_allclose(compose(image, minus[:0], plus[:0]), image)
    with pytest.raises(InputError, match="cancel each other out"):
        compose(image, image, plus[:0])


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat"])
def test_what_stands_apart_from_the_nearest_comes_last_of_them(factory: str) -> None:
    # Five vectors point one way, the best of all another way; the query lies between.
    rng = np.random.default_rng(0)
    group = np.array([1, 0, 0]) + 0.05 * rng.standard_normal((5, 3))
    vectors = np.vstack([[0.2, 1.1, 0], group, [-1, 0, 0]]).astype(np.float32)
    index = faiss.index_factory(3, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    if factory != "Flat":
        index.nprobe = 2
    query = np.array([[0.7, 0.8, 0]], np.float32)
    products = (vectors @ query[0]).astype(float)
    rows, scores = search_around_mean(Gallery(index), query, 6, 0)
    assert rows.tolist() == np.argsort(-products)[:6].tolist() and rows[0] == 0
    rows, scores = search_around_mean(Gallery(index), query, 4, 6)
    distances = np.linalg.norm(vectors[:6] - vectors[:6].mean(axis=0), axis=1)
    assert rows.tolist() == np.argsort(distances)[:4].tolist() and 0 not in rows
    np.testing.assert_allclose(scores, products[rows], rtol=1e-5)
    assert search_around_mean(Gallery(index), query, 7, 2)[0].tolist()[2:] == np.argsort(-products)[2:7].tolist()
    assert sorted(search_around_mean(Gallery(index), query, 50, 50)[0].tolist()) == list(range(7))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(make_run(tmp_path_factory.mktemp("run")))


def test_a_dog_less_dog_plus_cat_is_a_cat(bundle: Path) -> None:
    searcher = Searcher(Bundle(bundle))
    hits = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 3, 0)
    assert [hit.row["path"] for hit in hits] == ["cat-1.png", "cat-9.png", "cat-17.png"]
    assert hits[0].score == pytest.approx(1, abs=1e-3)
    both = searcher.analogy(features_of("dog"), [], ["cat"], 6, 0)
    assert {hit.row["path"].partition("-")[0] for hit in both} == {"dog", "cat"}
    middle = searcher.analogy(features_of("dog"), ["dog"], ["cat"], 1, 3)
    assert middle[0].row["path"] == "cat-9.png"  # the one between the other two


def test_unknown_words_are_named_one_by_one(bundle: Path) -> None:
    with pytest.raises(InputError, match=r"no word of 'unicorn' is in the vocabulary"):
        Searcher(Bundle(bundle)).analogy(features_of("dog"), ["dog"], ["unicorn"], 3, 0)
