"""Searches with several vectors per item are compared with a plain loop over all items."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import faiss
import numpy as np
import pytest

from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.errors import IntegrityError
from pipeline.index.build import measure_shortlist
from pipeline.index.exact import Neighbours
from pipeline.index.gallery import MultiVectorGallery, Shortlist

DIM = 12
RULES = list(map(ScoreRule, ("words", "mean-words", "positive", "mean-positive"), (0, 0.7, 0.4, 0.4)))


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


@pytest.mark.parametrize(("shortlist", "seconds", "exact"), [(Shortlist(3, 20), 2, 4), (None, 2, 2)])
def test_the_speed_of_a_search_with_a_shortlist_is_in_queries_per_second(
    shortlist: Shortlist | None, seconds: int, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each of 6 queries, a simulated clock advances by 2 seconds during the search with the shortlist, and by 4
    more seconds while all items are scored. The speeds are therefore 1/2 and 1/4 query per second. Without a shortlist,
    each query is searched only once, in 2 seconds, and both speeds are 1/2."""
    rng = np.random.default_rng(3)
    gallery = make_gallery("images", make_sets(rng, 40, 3), RULES[0], shortlist=shortlist)
    times = itertools.cycle([7, 7 + seconds, 7 + seconds + exact] if shortlist else [7, 7 + seconds])
    monkeypatch.setattr("pipeline.index.build.time", SimpleNamespace(perf_counter=lambda: next(times)))
    card = measure_shortlist(gallery, make_sets(rng, 6, 3))
    assert (card["queries_per_second"], card["exact_queries_per_second"]) == (1 / seconds, 1 / exact)
    assert card["queries"] == 6


def search(gallery: MultiVectorGallery, query: MultiVectors, top: int, shortlist: Shortlist | None) -> Neighbours:
    """Set the shortlist of the gallery, search the gallery with one query, and return the `rows` (k,) and `scores` (k,)
    of the results."""
    gallery.shortlist = shortlist
    found = gallery.search(query, top)
    return Neighbours(found.rows[0], found.scores[0])


def naive_score(regions: MultiVectors, words: MultiVectors, rule: ScoreRule) -> float:
    """Return the score by `rule` of one image with these `regions` and one caption with these `words`, computed by
    loops in float64."""
    products = [[float(v.astype(float) @ s.astype(float)) for v in regions.vectors] for s in words.vectors]
    if "positive" in rule.sum:
        score = sum(max(0, product) for of_word in products for product in of_word)
    else:
        score = sum(max(of_word, default=0) for of_word in products)
    if "mean" in rule.sum:
        score /= max(len(products), 1)
    return score + rule.global_weight * float(regions.globals[0].astype(float) @ words.globals[0].astype(float))


def naive_scores(what: str, sets: MultiVectors, query: MultiVectors, rule: ScoreRule) -> np.ndarray:
    items = [sets.between(row, row + 1) for row in range(len(sets))]
    pairs = [(item, query) if what == "images" else (query, item) for item in items]
    return np.array([naive_score(*pair, rule) for pair in pairs])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", ["images", "sentences"])
def test_shortlist_does_not_depend_on_the_block_size(
    what: str, rule: ScoreRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    gallery = make_gallery(what, make_sets(rng, 60, 4), rule, "IVF6,Flat")
    query = make_sets(rng, 1, 4)
    shortlists = []
    for block in (1, 20, 59, 60, 61):
        monkeypatch.setattr("pipeline.index.gallery.BLOCK_ITEMS", block)
        shortlists.append(search(gallery, query, 5, Shortlist(3, 12)).rows.tolist())
    assert shortlists == [shortlists[-1]] * 5


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", ["images", "sentences"])
def test_scores_are_exact_and_all_items_are_found_if_all_are_on_the_shortlist(what: str, rule: ScoreRule) -> None:
    rng = np.random.default_rng(1)
    sets = make_sets(rng, 100, 5)
    queries = make_sets(rng, 12, 4)
    expected = [naive_scores(what, sets, queries.between(row, row + 1), rule) for row in range(len(queries))]
    recalls = {}
    for lists, shortlist in ((1, Shortlist(1, 6)), (len(sets.vectors), Shortlist(1, 6)), (4, Shortlist(3, 100))):
        gallery = make_gallery(what, sets, rule, f"IVF{lists},Flat")
        shares = []
        for row, scores in enumerate(expected):
            found = search(gallery, queries.between(row, row + 1), 3, shortlist)
            np.testing.assert_allclose(found.scores, scores[found.rows], rtol=1e-4, atol=1e-4)
            shares.append(np.isin(np.argsort(-scores)[:3], found.rows).mean())
        recalls[lists] = np.mean(shares)
    # With as many lists as vectors, almost every vector is alone in its list and equals the mean of the list.
    assert recalls[1] + 0.2 < recalls[len(sets.vectors)] <= recalls[4] == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("what", ["images", "sentences"])
@pytest.mark.parametrize("shortlist", [None, Shortlist(3, 12)])
def test_a_query_without_vectors_has_the_scores_of_its_global_vector(
    what: str, rule: ScoreRule, shortlist: Shortlist | None
) -> None:
    rng = np.random.default_rng(6)
    sets = make_sets(rng, 60, 4)
    query = make_sets(rng, 1, 0, 0)
    found = search(make_gallery(what, sets, rule), query, 5, shortlist)
    scores = naive_scores(what, sets, query, rule)
    np.testing.assert_allclose(found.scores, np.sort(scores)[:-6:-1], atol=1e-5)
    np.testing.assert_allclose(found.scores, scores[found.rows], atol=1e-5)


def test_global_vectors_that_do_not_fit_the_query_are_refused() -> None:
    rng = np.random.default_rng(4)
    gallery = make_gallery("images", make_sets(rng, 20, 3), RULES[1])
    query = make_sets(rng, 1, 3)
    for other, computed in ((None, "none"), (np.ones((1, 3), np.float32), "one of 3 dimensions")):
        with pytest.raises(IntegrityError, match=f"whole photo or caption, but its model computes {computed} for a"):
            gallery.search(replace(query, globals=other), 3)


def test_a_shortlist_of_an_index_without_lists_is_refused() -> None:
    with pytest.raises(IntegrityError, match="has no inverted lists, but its card sets a shortlist"):
        make_gallery("images", make_sets(np.random.default_rng(4), 20, 3), RULES[0], "Flat", Shortlist(3, 5))
