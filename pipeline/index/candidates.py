"""Candidate indices: FAISS factory strings for a number of vectors, and what building one of them takes."""

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import faiss
import numpy as np

from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.errors import IntegrityError, UsageError
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.faiss_types import HasPolysemousTraining, transforms_of
from pipeline.index.format import METRICS, parts_of, require_known_types
from pipeline.index.tuning import stages_of

if TYPE_CHECKING:
    import torch

TRAINING_LEAST, TRAINING_MOST = 39, 50
"""Training vectors for each list; below the first FAISS warns of poor centroids."""
ROUNDS, PRODUCTS = 10, 1 << 28
"""Rounds of k-means by torch, as many as FAISS makes; products of vectors and centroids that it holds at once."""
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

T = TypeVar("T")


class Progress(Protocol):
    """A function that wraps an iterable, with a word for it, to show progress."""

    def __call__(self, items: Iterable[T], what: str, /) -> Iterable[T]: ...


def unwatched(items: Iterable[T], what: str) -> Iterable[T]:
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
    """Return whether this FAISS can make the index, and an index of this project may hold it."""
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
    vectors, if not by their rows.
    """
    start = clock()
    index = faiss.index_factory(vectors.dim, factory, METRICS[metric])
    inverted = stages_of(index).inverted
    if inverted is not None and centroids is not None:
        inverted.quantizer.add(centroids)
    if not index.is_trained:
        sample = vectors.take(evenly_spaced(vectors.count, training_rows(factory)))
        _train(index, sample, gpu)
    trained = clock()
    if ids is not None:
        index = faiss.IndexIDMap(index)
    for block in progress(vectors.blocks(), f"adding to {factory}"):
        if ids is None:
            index.add(block)
        else:
            index.add_with_ids(block, ids[index.ntotal : index.ntotal + len(block)])
    return Built(index, trained - start, clock() - trained)


def _train(index: faiss.Index, sample: np.ndarray, gpu: "torch.device | None") -> None:
    """Train `index`, with its lists found on `gpu`, or by FAISS on the processor if it is None."""
    rows = sample
    for part in parts_of(index):
        for transform in transforms_of(part):
            if isinstance(transform, faiss.OPQMatrix):
                transform.niter = ROTATION_STEPS
                transform.max_train_points = TRAINING_FLOOR
            if gpu is not None:  # lists are of transformed vectors
                transform.train(rows)
                rows = transform.apply(rows)
        if isinstance(part, faiss.IndexIVFPQ) and isinstance(part, HasPolysemousTraining):
            part.do_polysemous_training = False  # it takes minutes, for a kind of search that is not used
        if isinstance(part, faiss.IndexIVF):
            part.cp.max_points_per_centroid = TRAINING_MOST
            if gpu is not None and not part.quantizer.ntotal:
                part.quantizer.add(find_centroids(rows, part.nlist, part.cp.spherical, gpu))
    index.train(sample)


def find_centroids(sample: np.ndarray, lists: int, spherical: bool, device: "torch.device") -> np.ndarray:
    """(lists, c) the centroids that k-means finds in a `sample` (n, c) of at least as many vectors, by torch on
    `device`; of unit length if it is `spherical`.

    As by FAISS, ROUNDS from vectors that are drawn; a list that runs empty goes on from another one.
    """
    import torch

    drawn = np.random.default_rng(0)
    centroids = upload(sample[drawn.choice(len(sample), lists, replace=False)], device)
    batches = OomBatcher(max(1, PRODUCTS // lists), "vector")

    def assign(rows: slice) -> None:
        vectors = upload(sample[rows], device)
        nearest = (vectors @ centroids.T).sub_(lengths).argmax(dim=1)
        ones = counts.new_ones(len(vectors))
        sums.index_add_(0, nearest, vectors)
        counts.index_add_(0, nearest, ones)

    for _ in range(ROUNDS):
        lengths = centroids.square().sum(dim=1) / 2
        sums, counts = torch.zeros_like(centroids), torch.zeros_like(lengths)
        with full_float32():
            batches.map(assign, len(sample))
        others = upload(sample[drawn.choice(len(sample), lists)], device)
        centroids = torch.where(counts[:, None] > 0, sums / counts[:, None], others)
        if spherical:
            centroids = torch.nn.functional.normalize(centroids, dim=1)
    return centroids.cpu().numpy()
