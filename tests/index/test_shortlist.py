"""Search by several vectors an item against a plain loop over all items."""

from dataclasses import replace

import faiss
import numpy as np
import pytest

from pipeline.index.build import measure_shortlist
from pipeline.index.exact import Neighbours
from pipeline.index.gallery import MultiVectorGallery, Shortlist
from pipeline.multivectors import MultiVectors, ScoreRule

DIM = 12
RULES = [ScoreRule("words", 0), ScoreRule("mean-words", 0.7), ScoreRule("positive", 0.4)]


def make_sets(rng: np.random.Generator, n: int, longest: int, shortest: int = 1) -> MultiVectors:
    offsets = np.concatenate([[0], np.cumsum(rng.integers(shortest, longest + 1, n))])
    vectors = rng.standard_normal((offsets[-1], DIM)).astype(np.float32)
    return MultiVectors(vectors, offsets, rng.standard_normal((n, 5)).astype(np.float32))


def make_gallery(
    what: str, sets: MultiVectors, rule: ScoreRule, factory: str = "IVF4,Flat", shortlist: Shortlist | None = None
) -> MultiVectorGallery:
    index = faiss.index_factory(DIM, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(sets.vectors)
    index.add(sets.vectors)
    return MultiVectorGallery(what, index, replace(sets, vectors=None), rule, shortlist)


def search(gallery: MultiVectorGallery, query: MultiVectors, top: int, shortlist: Shortlist | None) -> Neighbours:
    """What is found for one query: `rows` (k,) and `scores` (k,)."""
    gallery.shortlist = shortlist
    found = gallery.search(query, top)
    return Neighbours(found.rows[0], found.scores[0])


def measure(gallery: MultiVectorGallery, queries: MultiVectors, shortlist: Shortlist) -> dict:
    gallery.shortlist = shortlist
    return measure_shortlist(gallery, queries)


def naive_score(regions: MultiVectors, words: MultiVectors, rule: ScoreRule) -> float:
    """Of one image and one sentence, in float64."""
    products = [[float(v.astype(float) @ s.astype(float)) for v in regions.vectors] for s in words.vectors]
    if rule.sum == "positive":
        score = sum(max(0, product) for of_word in products for product in of_word)
    else:
        score = sum(max(of_word, default=0) for of_word in products)
    if rule.sum == "mean-words":
        score /= max(len(products), 1)
    return score + rule.global_weight * float(regions.globals[0].astype(float) @ words.globals[0].astype(float))


def naive_scores(what: str, sets: MultiVectors, query: MultiVectors, rule: ScoreRule) -> np.ndarray:
    items = [sets.between(row, row + 1) for row in range(len(sets))]
    pairs = [(item, query) if what == "images" else (query, item) for item in items]
    return np.array([naive_score(*pair, rule) for pair in pairs])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", ["images", "sentences"])
def test_everything_on_the_shortlist_is_exact_search(what: str, rule: ScoreRule) -> None:
    rng = np.random.default_rng(0)
    sets, queries = make_sets(rng, 30, 7), make_sets(rng, 5, 6)
    gallery = make_gallery(what, sets, rule)
    for row in range(len(queries)):
        query = queries.between(row, row + 1)
        expected = naive_scores(what, sets, query, rule)
        found = search(gallery, query, 5, Shortlist(3, 30))
        assert found.rows.tolist() == np.argsort(-expected)[:5].tolist()
        np.testing.assert_allclose(found.scores, expected[found.rows], rtol=1e-4, atol=1e-4)
        assert gallery.scored(5) == 30


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", ["images", "sentences"])
def test_what_is_found_is_scored_exactly_and_more_lists_find_more(what: str, rule: ScoreRule) -> None:
    rng = np.random.default_rng(1)
    sets, queries = make_sets(rng, 150, 5), make_sets(rng, 12, 4)
    recalls = []
    for lists in (1, len(sets.vectors)):  # at last nearly every fragment is alone in its list, and is its mean
        gallery, shares = make_gallery(what, sets, rule, f"IVF{lists},Flat"), []
        for row in range(len(queries)):
            query = queries.between(row, row + 1)
            found = search(gallery, query, 3, Shortlist(1, 6))
            expected = naive_scores(what, sets, query, rule)
            np.testing.assert_allclose(found.scores, expected[found.rows], rtol=1e-4, atol=1e-4)
            shares.append(np.isin(np.argsort(-expected)[:3], found.rows).mean())
        recalls.append(np.mean(shares))
    assert recalls[0] + 0.2 < recalls[1]


def test_planted_answers_are_found_with_a_short_list() -> None:
    rng = np.random.default_rng(2)
    images = make_sets(rng, 2000, 6, 3)
    directions = rng.standard_normal((20, 3, DIM)).astype(np.float32)
    for target in range(20):  # image 100 * target shows all that sentence `target` says, and the others nothing of it
        rows = slice(images.offsets[100 * target], images.offsets[100 * target] + 3)
        images.vectors[rows] = 4 * directions[target] / np.linalg.norm(directions[target], axis=1, keepdims=True)
    queries = MultiVectors(directions.reshape(60, DIM), np.arange(0, 61, 3))
    gallery = make_gallery("images", MultiVectors(images.vectors, images.offsets), ScoreRule("words", 0), "IVF20,Flat")
    for row in range(20):
        assert search(gallery, queries.between(row, row + 1), 1, Shortlist(10, 10)).rows.tolist() == [100 * row]
