"""Candidate indexes: this module chooses the FAISS factory strings to try for a number of vectors, and builds an index
from such a string."""

import math
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import faiss
import numpy as np

from pipeline.compute import runtime
from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.errors import IntegrityError, UsageError
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.faiss_types import train_lists, transforms_of, untyped
from pipeline.index.format import METRICS, parts_of, require_known_types
from pipeline.index.tuning import SearchSetting, stages_of

if TYPE_CHECKING:
    import torch

MIN_TRAINING_PER_LIST = 39
"""Smallest number of training vectors per list of an inverted file. With fewer, FAISS warns of poor centroids."""
MAX_TRAINING_PER_LIST = 50
"""Largest number of training vectors per list of an inverted file."""
KMEANS_ROUNDS = 10
"""Number of iterations of k-means with PyTorch. FAISS makes as many for the lists of an inverted file."""
MAX_PRODUCTS = 1 << 28
"""Largest number of products of vectors and centroids that k-means with PyTorch holds in memory at the same time."""
MIN_TRAINING_ROWS = 20_000
"""Smallest result of `training_rows`, for an index with few lists or none. It is also the largest number of vectors
from which a rotation is learned."""
ENCODER_ROWS = 1 << 15
"""Largest number of the training vectors from which the codes of vectors are learned. FAISS copies these vectors
twice."""
ROTATION_STEPS = 8
"""Number of iterations with which a rotation (OPQ) is learned. The 50 iterations of FAISS take minutes and gain almost
no recall."""
GRAPH_LINKS = 32
"""Number of links of a vertex in the HNSW graph of the centroids (see GRAPH_LISTS)."""
FEW_LISTS = 1
"""A small number of lists of an inverted file, as a multiple of the square root of the number of vectors."""
MANY_LISTS = 4
"""A large number of lists of an inverted file, as a multiple of the square root of the number of vectors."""
GRAPH_LISTS = 1 << 16
"""Smallest number of lists for which the nearest centroids of a vector are found with a graph of the centroids."""
LARGE = ((10_000_000, (1 << 16, 1 << 17)), (300_000_000, (1 << 17, 1 << 18)))
"""Pairs (n, numbers of lists) in ascending order of n. The numbers of lists of a pair are also tried if there are at
least n vectors. If this is true of several pairs, only the pair with the largest n counts. The numbers are the first
two results of `get_optimal_nb_clusters` in criteo's autofaiss, which uses rotated product codes
(`OPQ56_224,IVF131072_HNSW32,PQ56x8`)."""
INVERTED = re.compile(r"IVF(\d+)")
"""Pattern of the part of a factory string that makes lists. The group of the pattern is the number of lists."""

T = TypeVar("T")


class Progress(Protocol):
    """A function that wraps an iterable to show progress, with a label for the work on its items."""

    def __call__(self, items: Iterable[T], what: str, /) -> Iterable[T]: ...


def unwatched(items: Iterable[T], what: str) -> Iterable[T]:
    """Return the `items` unchanged. This function is a Progress that shows nothing, so the label `what` is not used."""
    return items


def candidate_factories(count: int, dim: int) -> list[list[str]]:
    """Return the factory strings to try for `count` vectors of `dim` dimensions, in three tiers.

    The indexes of the first tier need about one byte per dimension of a vector. The second tier needs more, for the
    case that the first misses the recall floor. The third tier needs less, for the case that the indexes of the other
    tiers do not fit into the memory. Factory strings for which `is_known` is false are left out.
    """
    few = lists_factory(lists_for(count, FEW_LISTS))
    many = lists_factory(lists_for(count, MANY_LISTS))
    large = [lists_factory(lists) for lists in next((some for least, some in reversed(LARGE) if count >= least), ())]
    pairs = math.ceil(dim / 2)
    eighths = 8 * math.ceil(dim / 32)
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
    """Return whether the installed FAISS can make an index of `dim` dimensions with this factory string, and whether
    jointspace reads an index of this type."""
    try:
        require_known_types(faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT), factory)
    except (RuntimeError, IntegrityError):
        return False
    return True


def require_known(factories: tuple[str, ...], dim: int) -> list[str]:
    """Return the user's factory strings as a list. Raises a UsageError that names the first string for which
    `is_known` is false, for vectors of `dim` dimensions."""
    for factory in factories:
        if not is_known(factory, dim):
            raise UsageError(
                f"index.candidates: FAISS {faiss.__version__} cannot make an index {factory} of {dim} dimensions, or"
                f" jointspace does not read its types. Remove {factory} from index.candidates in the configuration."
            )
    return list(factories)


def lists_factory(lists: int) -> str:
    """Return the part of a factory string that makes an inverted file with this number of lists, such as IVF100. From
    GRAPH_LISTS lists on, the part also makes a graph that finds the nearest lists, such as IVF65536_HNSW32."""
    return f"IVF{lists}_HNSW{GRAPH_LINKS}" if lists >= GRAPH_LISTS else f"IVF{lists}"


def training_rows(factory: str) -> int:
    """Return the largest number of vectors on which an index with this factory string is trained. If there are more, a
    sample is used."""
    lists = lists_of(factory)
    each = MAX_TRAINING_PER_LIST if lists < GRAPH_LISTS else MIN_TRAINING_PER_LIST
    return max(each * lists, MIN_TRAINING_ROWS)


def lists_for(count: int, multiple: int) -> int:
    """Return a number of lists for `count` vectors: `multiple` times the square root of `count`, but at most one list
    per MIN_TRAINING_PER_LIST vectors, and at least one list."""
    return max(1, min(round(multiple * math.sqrt(count)), count // MIN_TRAINING_PER_LIST))


def lists_of(factory: str) -> int:
    """Return the number of lists in a factory string, or 0 if it has none."""
    match = INVERTED.search(factory)
    return int(match[1]) if match else 0


def with_lists(factory: str, lists: int) -> str:
    """Return the factory string with `lists` lists in place of its own number of lists. A string without lists is
    returned unchanged."""
    return INVERTED.sub(f"IVF{lists}", factory)


@dataclass(frozen=True)
class Built:
    """An `index` with its vectors, and the seconds of its training (`train_seconds`) and of adding the vectors
    (`add_seconds`). The argument `clock` of `build` decides whether these are seconds of wall time or CPU seconds."""

    index: faiss.Index
    train_seconds: float
    add_seconds: float


@dataclass(frozen=True)
class TrainedIndex:
    """An empty `index` whose lists and codes are trained, with its string `factory` and the `setting` of its search
    parameters."""

    index: faiss.Index
    factory: str
    setting: SearchSetting


def build(
    factory: str,
    vectors: Vectors,
    metric: str,
    centroids: np.ndarray | None = None,
    ids: np.ndarray | None = None,
    progress: Progress = unwatched,
    clock: Callable[[], float] = time.perf_counter,
    gpu: "torch.device | None" = None,
    shared: Vectors | TrainedIndex | None = None,
) -> Built:
    """Train an index that compares by `metric` on at most `training_rows(factory)` vectors, and add all vectors block
    by block.

    If `centroids` (lists, c) are given, the lists are not trained. Otherwise they are trained on `gpu`, or by FAISS on
    the CPU if `gpu` is None. `ids` (n,) are the ids of the vectors, and the result is then an IndexIDMap. Without
    `ids`, the ids are the rows of the vectors. `shared` are other vectors on which the index is trained instead, or a
    trained index of the same `factory`, to which the vectors are added in place. `progress` shows the progress of
    adding the vectors, and `clock` returns the time in seconds by which training and adding are measured.
    """
    start = clock()
    is_trained = isinstance(shared, TrainedIndex)
    index = shared.index if is_trained else faiss.index_factory(vectors.dim, factory, METRICS[metric])
    inverted = stages_of(index).inverted
    if inverted is not None and centroids is not None:
        inverted.quantizer.add(centroids)
    if not index.is_trained:
        _train(index, vectors if shared is None or is_trained else shared, training_rows(factory), gpu)
    trained = clock()
    if ids is not None:
        index = faiss.IndexIDMap(index)
    for block in progress(vectors.blocks(), f"adding to {factory}"):
        if ids is None:
            index.add(block)
        else:
            index.add_with_ids(block, ids[index.ntotal : index.ntotal + len(block)])
    return Built(index, trained - start, clock() - trained)


def _train(index: faiss.Index, vectors: Vectors, count: int, gpu: "torch.device | None") -> None:
    """Train `index` in place on a sample of at most `count` vectors.

    The transforms and the lists are trained on the whole sample. The lists are trained on `gpu`, or by FAISS on the CPU
    if `gpu` is None. Lists that have centroids already are not trained. The codes are then learned from at most
    ENCODER_ROWS vectors of the sample, because FAISS would otherwise copy the whole sample twice.
    """
    sample = vectors.take(evenly_spaced(vectors.count, count))
    rows = sample
    for part in parts_of(index):
        for transform in transforms_of(part):
            if isinstance(transform, faiss.OPQMatrix):
                transform.niter = ROTATION_STEPS
                transform.max_train_points = MIN_TRAINING_ROWS
            transform.train(rows)
            rows = transform.apply(rows)  # The lists contain transformed vectors.
        if isinstance(part, faiss.IndexIVFPQ):
            # This training takes minutes, and is needed only for polysemous search, which jointspace does not use.
            untyped(part).do_polysemous_training = False
        if isinstance(part, faiss.IndexIVF):
            part.cp.max_points_per_centroid = MAX_TRAINING_PER_LIST
            if gpu is not None and not part.quantizer.ntotal:
                part.quantizer.add(find_centroids(rows, part.nlist, part.cp.spherical, gpu))
            elif not part.quantizer.ntotal:
                train_lists(part, rows)
    sample = sample[evenly_spaced(len(sample), ENCODER_ROWS)]
    del rows  # The whole sample is freed, because it may be as large as the index.
    index.train(sample)
    del sample
    runtime.return_freed_memory()


def find_centroids(sample: np.ndarray, lists: int, spherical: bool, device: "torch.device") -> np.ndarray:
    """Compute the centroids (lists, c) float32 of a `sample` (n, c) by k-means with PyTorch on `device`.

    As in FAISS, k-means starts from randomly drawn vectors and makes KMEANS_ROUNDS iterations. The centroid of a list
    that becomes empty is replaced by another randomly drawn vector. With `spherical`, the centroids are scaled to unit
    length. The sample must have at least `lists` vectors. Equal arguments draw equal vectors.
    """
    import torch

    drawn = np.random.default_rng(0)
    centroids = upload(sample[drawn.choice(len(sample), lists, replace=False)], device)
    batches = OomBatcher(max(1, MAX_PRODUCTS // lists), "vector")

    def assign(rows: slice) -> None:
        vectors = upload(sample[rows], device)
        nearest = (vectors @ centroids.T).sub_(lengths).argmax(dim=1)
        ones = counts.new_ones(len(vectors))
        sums.index_add_(0, nearest, vectors)
        counts.index_add_(0, nearest, ones)

    for _ in range(KMEANS_ROUNDS):
        lengths = centroids.square().sum(dim=1) / 2
        sums = torch.zeros_like(centroids)
        counts = torch.zeros_like(lengths)
        with full_float32():
            batches.map(assign, len(sample))
        others = upload(sample[drawn.choice(len(sample), lists)], device)
        centroids = torch.where(counts[:, None] > 0, sums / counts[:, None], others)
        if spherical:
            centroids = torch.nn.functional.normalize(centroids, dim=1)
    return centroids.cpu().numpy()
