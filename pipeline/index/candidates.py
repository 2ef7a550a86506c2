"""Candidate indices: FAISS factory strings for a number of vectors, and what building one of them takes."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.format import METRICS, parts_of, require_known_types
from pipeline.index.tuning import stages_of
from pipeline.index.vectors import Vectors, evenly_spaced
from pipeline.precision import require_finite

if TYPE_CHECKING:
    import torch

TRAINING_LEAST, TRAINING_MOST = 39, 50
"""Training vectors for each list; below the first FAISS warns of poor centroids."""
TRAINING_FLOOR = 20_000
"""Training vectors that a quantizer without lists may have."""
ROTATION_STEPS = 8
"""Iterations of a learned rotation; FAISS's own 50 take minutes for hardly more recall."""
GRAPH_LINKS = 32
"""Links of a vertex in the graph of many centroids."""
FEW, MANY = 1, 4
"""Lists of an inverted file, as multiples of the square root of the number of vectors."""
GRAPH_LISTS = 1 << 16
"""From so many lists on, a graph of the centroids finds the lists of a vector."""
LARGE = ((10_000_000, (1 << 16, 1 << 17)), (300_000_000, (1 << 17, 1 << 18)))
"""From how many vectors on so many lists are tried, too: the first two of criteo's autofaiss, of its
`get_optimal_nb_clusters`, which has them in rotated product codes (`OPQ56_224,IVF131072_HNSW32,PQ56x8`)."""
INVERTED = re.compile(r"IVF(\d+)")

Progress = Callable[[Iterable[Any], str], Iterable[Any]]
"""Wraps an iterable, with a word for it, to show progress."""


def unwatched(items: Iterable[Any], what: str) -> Iterable[Any]:
    return items


def candidate_factories(count: int, dim: int) -> list[list[str]]:
    """The factory strings that are worth a try for `count` vectors of `dim` numbers, those that this FAISS knows, in
    tiers: a byte for each number; more, where that misses the recall floor; less, where neither fits into memory."""
    few, many = coarse(lists_for(count, FEW)), coarse(lists_for(count, MANY))
    large = [coarse(lists) for lists in next((some for least, some in reversed(LARGE) if count >= least), ())]
    pairs, eighths = math.ceil(dim / 2), 8 * math.ceil(dim / 32)
    tiers = [
        [
            f"{few},PQ{pairs}x4fsr,Refine(SQ8)",
            *(f"{lists},SQ8" for lists in (few, many, *large)),
            "SQ8",
        ],
        [
            f"{few},PQ{pairs}x4fsr,Refine(SQfp16)",
            f"{few},SQfp16",
            f"{few},Flat",
            "SQfp16",
            "Flat",
        ],
        [
            f"{few},RaBitQ4",
            f"{few},RaBitQ,Refine(RaBitQ4)",
            f"{few},PQ{pairs}x8",
            *(f"OPQ{eighths}_{4 * eighths},{lists},PQ{eighths}x8" for lists in (few, *large)),
        ],
    ]
    return [[factory for factory in dict.fromkeys(tier) if is_known(factory, dim)] for tier in tiers]


def is_known(factory: str, dim: int) -> bool:
    """Whether this FAISS can make the index, and a bundle may hold it."""
    try:
        require_known_types(faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT), factory)
    except (RuntimeError, IntegrityError):
        return False
    return True


def require_known(factories: tuple[str, ...], dim: int) -> list[str]:
    """The factory strings themselves. Raises UsageError naming the first that this FAISS cannot make."""
    for factory in factories:
        if not is_known(factory, dim):
            raise UsageError(
                f"index.candidates: FAISS {faiss.__version__} makes no {factory} of {dim} dimensions; leave it out"
            )
    return list(factories)


def coarse(lists: int) -> str:
    """The part of a factory string that makes so many lists."""
    return f"IVF{lists}_HNSW{GRAPH_LINKS}" if lists >= GRAPH_LISTS else f"IVF{lists}"


def training_rows(factory: str) -> int:
    """The most vectors that an index of this factory string is trained on."""
    lists = lists_of(factory)
    return max((TRAINING_MOST if lists < GRAPH_LISTS else TRAINING_LEAST) * lists, TRAINING_FLOOR)


def lists_for(count: int, multiple: int) -> int:
    return max(1, min(round(multiple * math.sqrt(count)), count // TRAINING_LEAST))


def lists_of(factory: str) -> int:
    """The number of lists in a factory string; 0 where it names none."""
    match = INVERTED.search(factory)
    return int(match[1]) if match else 0


def with_lists(factory: str, lists: int) -> str:
    """The factory string with that many lists in place of its own."""
    return INVERTED.sub(f"IVF{lists}", factory)


@dataclass(frozen=True)
class Built:
    """An index of all vectors and the seconds, by the clock of `build`, that its training and the adding took."""

    index: faiss.Index
    train_seconds: float
    add_seconds: float


def build(
    factory: str,
    vectors: Vectors,
    metric: str,
    centroids: np.ndarray | None = None,
    ids: np.ndarray | None = None,
    progress: Progress = unwatched,
    clock: Callable[[], float] = time.perf_counter,
    gpu: "torch.device | None" = None,
) -> Built:
    """Train an index on at most `TRAINING_MOST` vectors a list, its lists on `gpu`, and add all, block by block.

    `centroids` (lists, c) stand for the training of the lists; `ids` (n,) are what the index calls the
    vectors, if not by their rows. Raises IntegrityError naming a row that is not finite.
    """
    start = clock()
    index = faiss.index_factory(vectors.dim, factory, METRICS[metric])
    inverted = stages_of(index).inverted
    if inverted is not None and centroids is not None:
        inverted.quantizer.add(centroids)
    if not index.is_trained:
        sample = vectors.take(evenly_spaced(vectors.count, training_rows(factory)))
        require_finite("embeddings", "vectors", sample)
        _train(index, sample, gpu if centroids is None else None)
    trained = clock()
    if ids is not None:
        index = faiss.IndexIDMap(index)
    for block in progress(vectors.blocks(), f"adding to {factory}"):
        require_finite("embeddings", "vectors", block)
        if ids is None:
            index.add(block)
        else:
            index.add_with_ids(block, ids[index.ntotal : index.ntotal + len(block)])
    return Built(index, trained - start, clock() - trained)


def _train(index: faiss.Index, sample: np.ndarray, gpu: "torch.device | None") -> None:
    for part in parts_of(index):
        if isinstance(part, faiss.IndexPreTransform):
            for place in range(part.chain.size()):
                transform = faiss.downcast_VectorTransform(part.chain.at(place))
                if isinstance(transform, faiss.OPQMatrix):
                    transform.niter, transform.max_train_points = ROTATION_STEPS, TRAINING_FLOOR
        if isinstance(part, faiss.IndexIVFPQ):
            part.do_polysemous_training = False  # it takes minutes, for a kind of search that is not used
        if isinstance(part, faiss.IndexIVF):
            part.cp.max_points_per_centroid = TRAINING_MOST
    inverted = stages_of(index).inverted
    assigner = None if gpu is None or inverted is None else flat_on(gpu, inverted.d, inverted.metric_type)
    if assigner is None:
        index.train(sample)
        return
    inverted.clustering_index = assigner
    try:
        index.train(sample)
    except RuntimeError as error:
        _warn_of_gpu(str(error))
        inverted.clustering_index = None
        index.train(sample)
    finally:
        inverted.clustering_index = None
        assigner.this.own(True)  # the attribute took it over, and would not give its memory back


def flat_on(gpu: "torch.device", dim: int, metric: int) -> faiss.Index | None:
    """An empty exact index on `gpu`; None, with a warning, where FAISS cannot use it."""
    try:
        config = faiss.GpuIndexFlatConfig()
        config.device = gpu.index or 0
        return faiss.GpuIndexFlat(_gpu_resources(), dim, metric, config)
    except (AttributeError, RuntimeError) as error:  # FAISS without CUDA has no such class
        _warn_of_gpu(str(error))
        return None


@cache
def _gpu_resources() -> "faiss.StandardGpuResources":
    """What FAISS holds on GPUs, once for the process."""
    if not faiss.get_num_gpus():
        raise RuntimeError("it sees no GPU")
    return faiss.StandardGpuResources()


@cache
def _warn_of_gpu(error: str) -> None:
    """Say once why lists are found on the processor."""
    reason = (error.splitlines() or [""])[-1]
    logging.getLogger(__name__).warning("FAISS cannot use the GPU (%s): lists are found on the processor", reason)
