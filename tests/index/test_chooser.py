"""Choosing among candidates by what they do, and refusing what none of them can."""

import numpy as np
import pytest
from test_build import clustered, make

from pipeline.errors import UsageError
from pipeline.index.bench import CandidateTrial
from pipeline.index.chooser import choose
from pipeline.index.requirements import Requirements
from pipeline.index.tuning import SearchSetting
from pipeline.index.vectors import ArrayVectors
from pipeline.report.figures import draw_tradeoff

ASKED = {
    "recall_floor": 0.9,
    "memory": None,
    "latency_ms": None,
    "exact_limit": 100,
    "candidates": ("Flat", "SQ8", "PQ4x4"),
    "sample": 2000,
    "workload": 10_000,
}


def trials(**asked: object) -> list[CandidateTrial]:
    vectors, queries = clustered(8000, 32)
    requirements = Requirements(**{**ASKED, **asked})
    return choose(ArrayVectors(vectors), queries, "inner_product", requirements, lambda items, what: items)


def test_the_estimates_are_near_the_truth() -> None:
    vectors, queries = clustered(8000, 32)
    factories = ("SQ8", "IVF300,Flat", "HNSW16", "IVF100,PQ16x4fsr,Refine(SQ8)")
    found = [trial for one in factories for trial in trials(recall_floor=0.5, candidates=(one,))]
    assert len(found) == 4
    for trial in found:
        built = make(vectors, queries, candidates=(trial.factory,), sample=2000, recall_floor=0.5)
        assert trial.bytes == pytest.approx(built.card.bytes, rel=0.1), trial.factory
        assert built.tradeoff["candidates"][0]["factory"] == trial.factory


def test_what_misses_a_requirement_comes_last_and_says_so() -> None:
    found = trials(workload=1_000_000)
    assert [trial.factory for trial in found if trial.failure] == ["PQ4x4"]
    assert found[-1].failure == "recall below 0.9" and found[-1].recall < 0.9
    costs = [trial.cost(1_000_000) for trial in found if not trial.failure]
    assert costs == sorted(costs) and len(costs) == 2


def test_memory_excludes_what_is_larger() -> None:
    vectors, queries = clustered(40_000, 32)  # 4.9 MiB exact, 1.2 MiB in 8 bits
    built = make(vectors, queries, exact_limit=50_000, memory=2, candidates=("Flat", "SQ8", "IVF200,Flat"), sample=2000)
    assert built.card.factory == "SQ8" and len(built.data) <= 2 << 20
    assert make(vectors, queries, exact_limit=50_000, memory=5).card.factory == "Flat"


def test_an_impossible_budget_is_refused_with_the_nearest_possible() -> None:
    message = (
        r"no index of 40,000 vectors of 32 dimensions has index recall@10 0.9 within index.memory 1 MiB; the smallest"
        r" that has it needs 3 MiB .* \(SQfp16\).*; the best within the memory reaches 0\.\d+ \(PQ4x4\): raise"
    )
    vectors, queries = clustered(40_000, 32)
    with pytest.raises(UsageError, match=message):
        make(vectors, queries, memory=1, candidates=("SQfp16", "PQ4x4"), sample=2000)
    with pytest.raises(UsageError, match="within index.latency_ms 1e-06 ms; the smallest that has it needs 1 MiB"):
        trials(latency_ms=1e-6, candidates=("Flat", "SQ8"))


def test_what_takes_longer_to_build_than_the_best_in_all_is_given_up() -> None:
    asked = {"candidates": ("IVF100,Flat", "HNSW32"), "recall_floor": 0.5}
    assert [trial.factory for trial in trials(workload=1, **asked)] == ["IVF100,Flat"]
    assert len(trials(workload=10_000_000, **asked)) == 2


def test_16_bits_are_tried_where_8_are_too_few() -> None:
    found = [trials(candidates=("SQ8", "SQfp16"), recall_floor=floor) for floor in (0.9, 0.995)]
    assert [[trial.factory for trial in some if not trial.failure] for some in found] == [["SQ8"], ["SQfp16"]]


def test_the_cost_weighs_building_against_answering() -> None:
    slow = CandidateTrial("a", SearchSetting(), 1.0, 1, seconds=1e-3, latency_ms=1.0, build_seconds=0.0, failure=None)
    fast = CandidateTrial("b", SearchSetting(), 1.0, 1, seconds=1e-4, latency_ms=1.0, build_seconds=50.0, failure=None)
    assert min(slow, fast, key=lambda t: t.cost(10_000)) is slow
    assert min(slow, fast, key=lambda t: t.cost(100_000)) is fast


def test_the_tradeoff_is_drawn() -> None:
    vectors, queries = clustered(3000, 16)
    built = make(vectors, queries, candidates=("IVF50,Flat", "SQ8"))
    assert {"chosen", "operations", "candidates"} == set(built.tradeoff)
    picture = draw_tradeoff(built.tradeoff, "ncca, images")
    assert picture.startswith(b"<?xml") and b"ncca, images" in picture or b"svg" in picture
    assert np.isfinite(built.tradeoff["chosen"]["queries_per_second"])
