"""Recalls under sampled conditions are compared with a plain search among the allowed items."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from synthetic_run import build_bundle
from test_shortlist import RULES, make_gallery, make_sets

import jointspace
from pipeline.errors import UsageError
from pipeline.index import condition_recall
from pipeline.index.build import build_gallery
from pipeline.index.candidates import build
from pipeline.index.chooser import Requirements
from pipeline.index.condition_recall import SHARES, measure_conditions, measure_gallery_conditions
from pipeline.index.exact import Neighbours, Vectors
from pipeline.index.filtering import search_among
from pipeline.index.format import from_bytes, to_bytes
from pipeline.index.gallery import MultiVectorGallery, Shortlist
from pipeline.storage.card import ConditionCard, IndexCard
from pipeline.storage.index_shard import IndexShard
from pipeline.storage.stored_index import open_index

COUNT = 3000


def draw(count: int = COUNT, dim: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return random float32 vectors (count, dim) in 20 clusters, and 100 queries (100, dim) in the same clusters. They
    do not have unit length, and each call with the same arguments returns the same vectors and queries."""
    rng = np.random.default_rng(5)
    centres = 2 * rng.standard_normal((20, dim))
    vectors = centres[rng.integers(20, size=count)] + rng.standard_normal((count, dim))
    queries = centres[rng.integers(20, size=100)] + rng.standard_normal((100, dim))
    return vectors.astype(np.float32), queries.astype(np.float32)


@pytest.mark.parametrize("metric", ["inner_product", "euclidean"])
def test_recalls_equal_a_plain_search_among_the_allowed_vectors(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = draw()
    index = build("IVF30,Flat", Vectors(vectors), metric).index
    searches: list[tuple[np.ndarray, np.ndarray, float]] = []

    def search_badly(index: faiss.Index, asked: np.ndarray, top: int, allowed: np.ndarray) -> Neighbours:
        found = search_among(index, asked, top, allowed)
        found.rows[::2, 0] = -1  # Every second query misses its best result.
        shares = []
        for query, rows in zip(asked.astype(float), found.rows, strict=True):
            scores = vectors @ query if metric == "inner_product" else -((vectors - query) ** 2).sum(axis=1)
            best = [row for row in np.argsort(-scores) if allowed[row]][:10]
            shares.append(len(set(best) & set(rows.tolist())) / len(best))
        searches.append((asked, allowed, float(np.mean(shares))))
        return found

    monkeypatch.setattr(condition_recall, "search_among", search_badly)
    measured = measure_conditions(index, Vectors(vectors), queries, metric)
    assert [one.share for one in measured] == list(SHARES)
    each = np.split(np.arange(len(searches)), len(SHARES))
    for number, card in enumerate(measured):
        recalls = [searches[row][2] for row in each[number]]
        assert card.uncorrelated == pytest.approx(recalls[0])
        assert card.correlated == pytest.approx(np.mean(recalls[1:]))
        assert 0.6 < card.uncorrelated < 1
        for row in each[number]:
            asked, allowed, _ = searches[row]
            assert allowed.sum() == round(SHARES[number] * COUNT)
            assert not number or (searches[row - len(each[0])][1] >= allowed).all()  # The conditions are nested.
            assert {*map(bytes, asked)} <= {*map(bytes, queries)}


def test_correlated_conditions_allow_similar_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allowed vectors of a correlated condition are close together, and half of its queries are close to them."""
    vectors, queries = draw()
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def record(index: faiss.Index, asked: np.ndarray, top: int, allowed: np.ndarray) -> Neighbours:
        seen.append((asked, vectors[allowed]))
        return search_among(index, asked, top, allowed)

    monkeypatch.setattr(condition_recall, "search_among", record)
    index = build("IVF30,Flat", Vectors(vectors), "euclidean").index
    measure_conditions(index, Vectors(vectors), queries, "euclidean")
    (_, random), *correlated = seen[10:15]  # the conditions that allow 1 % of the vectors
    spread = vectors.std(axis=0).mean()
    assert random.std(axis=0).mean() == pytest.approx(spread, rel=0.3)
    for asked, allowed in correlated:
        assert allowed.std(axis=0).mean() < 0.5 * spread
        distances = np.linalg.norm(asked - allowed.mean(axis=0), axis=1)
        near, other = np.split(distances, 2)
        assert near.mean() < 0.8 * other.mean()


def test_the_written_index_has_no_direct_map() -> None:
    vectors, queries = draw()
    requirements = Requirements(0.5, None, None, 10, ("IVF30,SQ8",))
    built = build_gallery("images", Vectors(vectors), None, queries, "inner_product", requirements, Shortlist(1, 1))
    assert built.card.conditions is not None and len(built.card.conditions) == len(SHARES)
    assert from_bytes(to_bytes(built.index), "images.faiss", built.expected).ntotal == COUNT


@pytest.mark.parametrize(("count", "shares"), [(1, 0), (2, 1), (8, 2), (2000, 4)])
def test_conditions_that_allow_no_vector_are_left_out(count: int, shares: int) -> None:
    vectors, queries = draw(count)
    index = build("Flat", Vectors(vectors), "inner_product").index
    measured = measure_conditions(index, Vectors(vectors), queries[:3], "inner_product")
    assert measured == [ConditionCard(share=share, uncorrelated=1, correlated=1) for share in SHARES[:shares]]


def test_an_index_that_cannot_be_searched_with_a_condition_has_no_recalls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Neighbours:
        raise UsageError("An index of this type cannot be searched with a condition.")

    vectors, queries = draw()
    monkeypatch.setattr(condition_recall, "search_among", refuse)
    index = build("Flat", Vectors(vectors), "inner_product").index
    assert measure_conditions(index, Vectors(vectors), queries, "inner_product") == []


@pytest.mark.parametrize("shortlist", [None, Shortlist(2, 12)])
def test_recalls_of_a_multi_vector_model_equal_a_plain_ranking(
    shortlist: Shortlist | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    gallery = make_gallery("images", make_sets(rng, 100, 3), RULES[0], shortlist=shortlist)
    shares: dict[int, list[float]] = {}
    search = MultiVectorGallery.search

    def record(self: MultiVectorGallery, query: object, top: int, allowed: np.ndarray) -> Neighbours:
        found = search(self, query, top, allowed)
        scores = np.where(allowed, self.score_all(query, self.vectors()), -np.inf)
        best = np.argsort(-scores)[: min(10, allowed.sum())]
        shares.setdefault(int(allowed.sum()), []).append(len({*best} & {*found.rows[0].tolist()}) / len(best))
        return found

    monkeypatch.setattr(MultiVectorGallery, "search", record)
    measured = measure_gallery_conditions(gallery, make_sets(rng, 6, 3))
    assert [one.share for one in measured] == [0.5, 0.1, 0.01] and shares.keys() == {50, 10, 1}
    for card, recalls in zip(measured, shares.values(), strict=True):
        assert len(recalls) == 12
        assert card.uncorrelated == pytest.approx(np.mean(recalls[::2]))
        assert card.correlated == pytest.approx(np.mean(recalls[1::2]))
    assert (measured[0].uncorrelated < 1) == bool(shortlist)


@pytest.mark.parametrize("bundles", [1, 3])
def test_the_card_of_each_index_shard_has_the_recalls(run: Path, bundles: int) -> None:
    index = open_index(build_bundle(run, {"index": {"bundles": bundles}}, output=f"conditions-{bundles}"))
    for shard in index.shards:
        for card in (shard.card.images, shard.card.sentences):
            assert card is not None
            assert_exact(card)
    assert index.card.images is not None and index.card.images.conditions


def test_vectors_alone_and_one_photo_have_recalls(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    space = jointspace.fit(vectors, vectors + 0.1)
    for count in (1, 30):
        space.index(tmp_path / f"of-{count}", vectors[:count], names=[f"{number}.jpg" for number in range(count)])
        card = IndexShard(tmp_path / f"of-{count}").card.images
        assert card is not None
        assert_exact(card)


def assert_exact(card: IndexCard) -> None:
    """Assert that the card has the recall 1 under the conditions of each of the SHARES that allows at least one item,
    as a Flat index must have."""
    shares = [share for share in SHARES if round(share * card.count)]
    assert card.conditions == [ConditionCard(share=share, uncorrelated=1, correlated=1) for share in shares]
