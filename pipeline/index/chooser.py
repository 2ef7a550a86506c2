"""Choosing an index by measuring candidates on a sample of the vectors with real queries.

Each candidate is built on a sample, its lists fewer by the square root of the share that was sampled, and tuned to
the recall floor. What it would be with all vectors is carried over from there: bytes by what each vector added; a
query's time by the vectors that it compares (all of them; lists and the vectors in those visited; the logarithm of
the number in a graph); building by what was trained and added.

Time is that of the processor, and the candidates that are near the best take turns until one of them has clearly won
(`Bench.settle`), so that another program's work does not decide. Among those that meet the requirements, bytes and
the time of a query weigh alike, and building decides between what is otherwise equal (`best_of`).
"""

import math

import numpy as np

from pipeline.errors import UsageError
from pipeline.index.bench import Bench, CandidateTrial
from pipeline.index.candidates import Progress, candidate_factories, require_known
from pipeline.index.requirements import MEBI, Requirements
from pipeline.index.tuning import NEIGHBOURS
from pipeline.index.vectors import Vectors


def choose(
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress,
) -> list[CandidateTrial]:
    """All trials, the best first, those that miss a requirement last.

    Raises UsageError when nothing meets the requirements, naming what comes nearest.
    """
    count = vectors.count
    if requirements.candidates == "auto":
        tiers = candidate_factories(count, vectors.dim)
    else:
        tiers = [require_known(requirements.candidates, vectors.dim)]
    bench = Bench(vectors, queries, metric, requirements)
    trials: list[CandidateTrial] = []
    for tier in tiers:
        trials += [bench.try_out(factory) for factory in progress(bench.hopeful(tier), "measuring")]
        if good := [trial for trial in trials if trial.failure is None]:
            return bench.settle(good) + [trial for trial in trials if trial.failure]
    # What is too large was left out so far, and the nearest that would do may be among it.
    rest = [factory for tier in tiers for factory in tier if factory not in {trial.factory for trial in trials}]
    trials += [bench.try_out(factory) for factory in progress(rest, "measuring")]
    raise UsageError(refusal(trials, count, vectors.dim, requirements))


def refusal(trials: list[CandidateTrial], count: int, dim: int, requirements: Requirements) -> str:
    """Why nothing will do, and the nearest that would."""
    floor, asked = requirements.recall_floor, []
    for name, unit, value in (("memory", "MiB", requirements.memory), ("latency_ms", "ms", requirements.latency_ms)):
        if value is not None:
            asked.append(f"index.{name} {value:g} {unit}")
    parts = [
        f"no index of {count:,} vectors of {dim} dimensions has index recall@{NEIGHBOURS} {floor:g}"
        f" within {' and '.join(asked) or 'what was tried'}"
    ]
    if reaching := [trial for trial in trials if trial.recall >= floor]:
        by_size = min(reaching, key=lambda t: t.bytes)
        by_speed = min(reaching, key=lambda t: t.latency_ms)
        parts.append(
            f"the smallest that has it needs {math.ceil(by_size.bytes / MEBI)} MiB and {by_size.latency_ms:.2g} ms"
            f" ({by_size.factory})"
        )
        if by_speed is not by_size:
            parts.append(
                f"the fastest {math.ceil(by_speed.bytes / MEBI)} MiB and {by_speed.latency_ms:.2g} ms"
                f" ({by_speed.factory})"
            )
    if fitting := [t for t in trials if t.bytes <= requirements.bytes]:
        best = max(fitting, key=lambda t: t.recall)
        parts.append(f"the best within the memory reaches {best.recall:.3f} ({best.factory})")
    return "; ".join(parts) + ": raise index.memory, index.latency_ms or index.bundles, or lower index.recall_floor"
