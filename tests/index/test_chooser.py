"""Choosing among candidates by what they do, and refusing what none of them can."""

import pytest
from test_build import clustered, make

from pipeline.errors import UsageError
from pipeline.index.chooser import CandidateTrial, in_order
from pipeline.index.tuning import SearchSetting

THREE = {"candidates": ("Flat", "SQ8", "PQ4x4"), "sample": 2000}


def test_the_estimates_are_near_the_truth() -> None:
    vectors, queries = clustered(8000, 32)
    for factory in ("SQ8", "IVF300,Flat", "HNSW16", "IVF100,PQ16x4fsr,Refine(SQ8)"):
        built = make(vectors, queries, candidates=(factory,), sample=2000, recall_floor=0.5)
        (trial,) = built.tradeoff["candidates"]
        assert trial["factory"] == factory
        assert trial["bytes"] == pytest.approx(built.card["bytes"], rel=0.1), factory


def test_what_misses_a_requirement_comes_last_and_says_so() -> None:
    measured = make(*clustered(8000, 32), **THREE).tradeoff["candidates"]
    assert [trial["factory"] for trial in measured] == ["SQ8", "Flat", "PQ4x4"]  # SQ8: a quarter of the bytes
    assert measured[-1]["failure"] == "recall below 0.9" and measured[-1]["recall@10"] < 0.9


def test_memory_excludes_what_is_larger() -> None:
    vectors, queries = clustered(40_000, 32)  # 4.9 MiB exact, 1.2 MiB in 8 bits
    built = make(vectors, queries, exact_limit=50_000, memory=2, candidates=("Flat", "SQ8", "IVF200,Flat"), sample=2000)
    assert built.card["factory"] == "SQ8" and len(built.data) <= 2 << 20
    assert make(vectors, queries, exact_limit=50_000, memory=5).card["factory"] == "Flat"


def test_an_impossible_budget_is_refused_with_the_nearest_possible() -> None:
    message = (
        r"no index of 40,000 vectors of 32 dimensions has index recall@10 0.9 within index.memory 1 MiB; the smallest"
        r" that has it needs 3 MiB .* \(SQfp16\).*; the best within the memory reaches 0\.\d+ \(PQ4x4\): raise"
    )
    vectors, queries = clustered(40_000, 32)
    with pytest.raises(UsageError, match=message):
        make(vectors, queries, memory=1, candidates=("SQfp16", "PQ4x4"), sample=2000)
    with pytest.raises(UsageError, match="within index.latency_ms 1e-06 ms; the smallest that has it needs 1 MiB"):
        make(*clustered(8000, 32), latency_ms=1e-6, **THREE)


def trial(factory: str, size: int, seconds: float, build_seconds: float) -> CandidateTrial:
    return CandidateTrial(factory, SearchSetting(), 0.96, size, seconds, 1.0, build_seconds, None)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (trial("IVF1000,SQ8", 99 << 20, 1 / 21_585, 17.0), trial("IVF1000,Flat", 374 << 20, 1 / 15_090, 15.0)),
        (trial("PQ,Refine", 51 << 20, 1 / 17_866, 30.0), trial("IVF548,Flat", 156 << 20, 1 / 4_894, 4.0)),
        (trial("larger, but thrice as fast", 200, 1e-4, 1.0), trial("half as large", 100, 3e-4, 1.0)),
        (trial("built soon", 100, 1.00e-4, 1.0), trial("faster by a twentieth", 100, 0.95e-4, 2.0)),
    ],
)
def test_bytes_and_queries_weigh_before_building(better: CandidateTrial, worse: CandidateTrial) -> None:
    assert in_order([worse, better]) == in_order([better, worse]) == [better, worse]
