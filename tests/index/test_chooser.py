"""The chooser measures candidates, chooses the best candidate, and refuses requirements that no candidate meets."""

from collections.abc import Callable

import faiss
import numpy as np
import pytest
from test_build import clustered, make, nearest, overlap

from pipeline.errors import UsageError
from pipeline.index.build import BuiltIndex
from pipeline.index.candidates import Built, build
from pipeline.index.chooser import SAMPLE_QUERIES, CandidateTrial, in_order
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.format import from_bytes, to_bytes
from pipeline.index.tuning import Operation, Questions, SearchSetting, ask, find_least, tune

THREE_CANDIDATES = {"candidates": ("Flat", "SQ8", "PQ4x4"), "sample": 2000}


def test_the_estimates_are_near_the_truth() -> None:
    vectors, queries = clustered(8000, 32)
    for factory in ("SQ8", "IVF300,Flat", "HNSW16", "IVF100,PQ16x4fsr,Refine(SQ8)"):
        built = make(vectors, queries, candidates=(factory,), sample=2000, recall_floor=0.5)
        (trial,) = built.tradeoff["candidates"]
        assert trial["factory"] == factory
        assert trial["bytes"] == pytest.approx(built.card.bytes, rel=0.1), factory


def test_candidates_that_miss_a_requirement_come_last_with_a_reason() -> None:
    measured = make(*clustered(8000, 32), **THREE_CANDIDATES).tradeoff["candidates"]
    assert [trial["factory"] for trial in measured] == ["SQ8", "Flat", "PQ4x4"]  # SQ8 needs a quarter of the bytes.
    assert measured[-1]["failure"] == "recall below 0.9" and measured[-1]["recall@10"] < 0.9


def test_candidates_larger_than_the_memory_are_excluded() -> None:
    vectors, queries = clustered(40_000, 32)  # The exact index needs 4.9 MiB, and 8 bits per number need 1.2 MiB.
    built = make(vectors, queries, exact_limit=50_000, memory=2, candidates=("Flat", "SQ8", "IVF200,Flat"), sample=2000)
    assert built.card.factory == "SQ8" and len(to_bytes(built.index)) <= 2 << 20
    assert make(vectors, queries, exact_limit=50_000, memory=5).card.factory == "Flat"


def test_an_impossible_budget_is_refused_with_the_smallest_possible_one() -> None:
    message = (
        r"No index of 40,000 vectors of 32 dimensions reaches index recall@10 0.9 within index.memory 1 MiB\."
        r" The smallest index that reaches it needs 3 MiB .* \(SQfp16\).*\."
        r" The highest recall within the memory is 0\.\d+ \(PQ4x4\)\. Raise"
    )
    vectors, queries = clustered(40_000, 32)
    with pytest.raises(UsageError, match=message):
        make(vectors, queries, memory=1, candidates=("SQfp16", "PQ4x4"), sample=2000)
    with pytest.raises(
        UsageError, match=r"within index.latency_ms 1e-06 ms\. The smallest index that reaches it needs 1"
    ):
        make(*clustered(8000, 32), latency_ms=1e-6, **THREE_CANDIDATES)


def trial(factory: str, size: int, seconds: float, build_seconds: float) -> CandidateTrial:
    return CandidateTrial(factory, SearchSetting(), 0.96, size, seconds, 1.0, build_seconds, None)


def test_the_table_of_candidates_has_the_figures_of_a_trial() -> None:
    assert trial("SQ8", 100, 0.25, 2.0).to_dict() == {
        "factory": "SQ8", "bytes": 100, "latency_ms": 1.0, "build_seconds": 2.0, "failure": None, "nprobe": None,
        "efSearch": None, "k_factor": None, "recall@10": 0.96, "queries_per_second": 4.0, "bytes_times_seconds": 25.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (trial("IVF1000,SQ8", 99 << 20, 1 / 21_585, 17.0), trial("IVF1000,Flat", 374 << 20, 1 / 15_090, 15.0)),
        (trial("PQ,Refine", 51 << 20, 1 / 17_866, 30.0), trial("IVF548,Flat", 156 << 20, 1 / 4_894, 4.0)),
        (trial("larger, but thrice as fast", 200, 1e-4, 1.0), trial("half as large", 100, 3e-4, 1.0)),
        (trial("built soon", 100, 1.00e-4, 1.0), trial("faster by a twentieth", 100, 0.95e-4, 2.0)),
    ],
)
def test_size_and_query_time_decide_before_the_time_of_building(better: CandidateTrial, worse: CandidateTrial) -> None:
    assert in_order([worse, better]) == in_order([better, worse]) == [better, worse]


ROWS = 6000
SAMPLED = 400


def near_duplicates() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and queries. The vectors that the chooser samples are far apart. All other vectors are
    near-duplicates of 20 sampled vectors."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((ROWS, 16)).astype(np.float32)
    sampled = evenly_spaced(ROWS, SAMPLED)
    copies = np.setdiff1d(np.arange(ROWS), sampled)
    vectors[copies] = vectors[sampled[copies % 20]] + 0.01 * vectors[copies]
    return vectors, vectors[copies[:200]] + 0.001 * vectors[:200]


def easy_queries() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and queries. Every second vector is in a dense cluster. All queries are near this cluster, except
    the queries with which the chooser measures candidates on its sample."""
    rng = np.random.default_rng(2)
    vectors = rng.standard_normal((ROWS, 16)).astype(np.float32)
    vectors[::2] = 1 + 0.02 * vectors[::2]
    queries = vectors[: 2 * SAMPLE_QUERIES : 2] + 0.01
    measured = evenly_spaced(len(queries) * 2, SAMPLE_QUERIES)
    queries = np.repeat(queries, 2, axis=0)
    queries[measured] = 5 * vectors[1 : 2 * SAMPLE_QUERIES : 2]
    return vectors, queries


def hidden_outliers() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and queries. Some vectors that the chooser does not sample are so long that codes of 8 bits per
    number are too coarse for the other vectors."""
    vectors, queries = clustered(ROWS, 16)
    hidden = np.setdiff1d(np.arange(ROWS), evenly_spaced(ROWS, SAMPLED))[::50]
    vectors[hidden] *= -60
    return vectors, queries


def unsampled_topic() -> tuple[np.ndarray, np.ndarray]:
    """Return vectors and queries. The vectors that the chooser samples are far from all queries, and all other vectors
    are close to the queries."""
    rng = np.random.default_rng(3)
    vectors = 0.02 * rng.standard_normal((ROWS, 16)).astype(np.float32)
    vectors[:, 0] += 1
    vectors[evenly_spaced(ROWS, SAMPLED)] = rng.standard_normal((SAMPLED, 16))
    return vectors, np.eye(16, dtype=np.float32)[0] + 0.02 * rng.standard_normal((200, 16)).astype(np.float32)


MISLEADING_SAMPLES = [near_duplicates, easy_queries, hidden_outliers, unsampled_topic]
SAMPLE_SETTINGS = {"recall_floor": 0.95, "sample": SAMPLED}


def met_only_on_the_sample(built: BuiltIndex) -> list[str]:
    trials = built.tradeoff["candidates"]
    return [trial["factory"] for trial in trials if "with all vectors" in (trial["failure"] or "")]


@pytest.mark.parametrize("make_misleading", MISLEADING_SAMPLES)
@pytest.mark.parametrize("exact_limit", [1000, ROWS - 1])
def test_next_candidates_are_built_if_the_recall_on_the_sample_is_too_high(
    make_misleading: Callable, exact_limit: int
) -> None:
    vectors, queries = make_misleading()
    built = make(vectors, queries, "euclidean", candidates="auto", exact_limit=exact_limit, **SAMPLE_SETTINGS)
    found = from_bytes(to_bytes(built.index), "images.faiss", built.expected).search(queries, 10)[1]
    assert overlap(found, nearest(vectors, queries, "euclidean")) >= 0.94  # The recall is 0.95 except for rounding.
    assert met_only_on_the_sample(built)


@pytest.mark.parametrize("make_misleading", MISLEADING_SAMPLES)
def test_a_named_exact_index_is_built_if_every_faster_index_misses_the_floor(make_misleading: Callable) -> None:
    vectors, queries = make_misleading()
    smaller = ("SQ8", "IVF20,SQ8", "IVF40,SQ8", "HNSW16_SQ8")
    built = make(vectors, queries, "euclidean", candidates=(*smaller, "Flat"), **SAMPLE_SETTINGS)
    assert built.card.factory == "Flat" and built.card.recall == 1
    assert len(met_only_on_the_sample(built)) == 3


@pytest.mark.parametrize("make_misleading", MISLEADING_SAMPLES)
def test_error_for_named_candidates_says_how_to_reach_the_floor(make_misleading: Callable) -> None:
    message = r"The highest recall .* is 0\.\d+ \(.*SQ8\)\. Add Flat to index.candidates or set it to auto, raise"
    with pytest.raises(UsageError, match=message) as refused:
        make(*make_misleading(), "euclidean", candidates=("SQ8", "IVF20,SQ8"), **SAMPLE_SETTINGS)
    assert "raise index.memory" not in str(refused.value)  # index.memory is not limited.


def test_error_says_what_to_change_if_no_exact_index_fits() -> None:
    vectors, queries = clustered(40_000, 32)
    message = r"within index.memory 1 MiB\. .* needs \d+ MiB.*\. Raise index.memory, raise index.bundles, or lower"
    with pytest.raises(UsageError, match=message):
        make(vectors, queries, candidates="auto", memory=1, recall_floor=0.999, sample=2000)


def test_a_candidate_below_the_margin_is_built_if_the_others_are_too_large() -> None:
    vectors, queries = clustered(40_000, 32)
    asked = {"candidates": ("PQ4x4", "Flat"), "memory": 2, "sample": 2000}
    recall = make(vectors, queries, recall_floor=0.01, **asked).card.recall
    built = make(vectors, queries, recall_floor=recall - 0.01, **asked)
    assert built.card.factory == "PQ4x4"
    assert "on the sample" in built.tradeoff["candidates"][0]["failure"]


def test_an_index_that_is_faster_than_its_estimate_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pipeline.index.chooser.latency", lambda *_: 0.001
    )  # The estimate is 4 ms for four times as many vectors.
    monkeypatch.setattr("pipeline.index.build.latency", lambda *_: 0.0015)
    asked = {"candidates": ("PQ4x4", "Flat"), "sample": 2000, "recall_floor": 0.95}
    built = make(*clustered(8000, 16), latency_ms=2, **asked)
    assert built.card.factory == "Flat" and built.card.latency_ms == 1.5
    with pytest.raises(UsageError, match=r"within index.latency_ms 1 ms\. .*\. Raise index.latency_ms"):
        make(*clustered(8000, 16), latency_ms=1, **asked)


def test_no_index_of_all_vectors_is_built_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """With simulated times, every index is too slow with all vectors, although no index is too slow on the sample."""
    factories = []

    def count_build(factory: str, *arguments: object, **options: object) -> Built:
        factories.append(factory)
        return build(factory, *arguments, **options)

    monkeypatch.setattr("pipeline.index.build.build", count_build)
    monkeypatch.setattr("pipeline.index.build.latency", lambda *_: 9.0)
    with pytest.raises(UsageError, match="Raise index.latency_ms"):
        make(*clustered(2000, 16), candidates=("Flat", "SQ8", "IVF40,Flat"), latency_ms=8000, exact_limit=2000)
    assert sorted(factories) == ["Flat", "IVF40,Flat", "SQ8"]


def test_refinement_is_not_raised_further_once_the_search_takes_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = clustered(1000, 16)
    index = build("IVF8,PQ4x4fsr,Refine(SQ8)", Vectors(vectors), "inner_product").index
    questions = ask(queries, [vectors], 1000, "inner_product")
    factors = []

    def search(index: faiss.Index, questions: Questions) -> tuple[np.ndarray, float]:
        factors.append(index.k_factor)
        return questions.right[:, :10], index.k_factor

    monkeypatch.setattr("pipeline.index.tuning.timed_search", search)
    assert tune(index, questions, 0.9).setting.k_factor == 2
    assert set(factors) == {2, 4, 8}


def simulate_search(recall: Callable[[int], float]) -> tuple[list[int], Callable[[int], Operation]]:
    """Simulate a search whose recall is a function of the effort (the number of lists that are visited).

    Return the list of the efforts that were tried, which grows with each search, and the function `operate(effort)`,
    which takes effort / 1000 simulated seconds per query.
    """
    efforts = []

    def operate(effort: int) -> Operation:
        efforts.append(effort)
        return Operation(SearchSetting(nprobe=effort), recall(effort), effort / 1000)

    return efforts, operate


def test_search_effort_grows_despite_slow_gains_if_more_lists_can_reach_the_floor() -> None:
    efforts, operate = simulate_search(lambda effort: effort / 4000)
    find_least(operate, lambda: False, 1, 4000, 0.95, np.inf)
    assert 3800 <= min(effort for effort in efforts if effort / 4000 >= 0.95) <= 3800 * 9 / 8


def test_search_effort_grows_with_fast_gains_without_a_trial_of_the_greatest_effort() -> None:
    for reached_at, recall in (
        (1024, lambda effort: 0.05 * np.log2(effort)),  # Each step gains much.
        (16, lambda effort: float(effort >= 16)),  # The first steps gain nothing.
    ):
        efforts, operate = simulate_search(recall)
        find_least(operate, lambda: True, 1, 4000, 0.5, np.inf)
        assert max(efforts) == reached_at


def test_search_effort_stops_growing_if_no_number_of_lists_reaches_the_floor() -> None:
    efforts, operate = simulate_search(lambda effort: 0.9 - 0.1 / effort)
    find_least(operate, lambda: True, 1, 4000, 0.95, np.inf)
    assert max(efforts) < 100
