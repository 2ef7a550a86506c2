"""Building of FAISS indexes that meet the requirements of a configuration, and removal of vectors from an index. Each
new index comes with a card, which is the record of its type, its search parameters and its measurements.

The id of a vector is the row of its item in the index's table, and an id never changes its meaning: the ids of removed
vectors are not used again. For a model with several vectors per item, the ids number the vectors of all items without
gaps instead, and the remaining vectors are numbered again when some are removed. Removing vectors does not change the
centroids and codes that an index has learned.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import faiss
import numpy as np

from pipeline.compute.multivectors import Comparison, Items, MultiVectors, ScoreRule, one_vector_each
from pipeline.errors import InputError, UsageError
from pipeline.index.candidates import FEW_LISTS, MANY_LISTS, Progress, TrainedIndex, build, lists_for, unwatched
from pipeline.index.chooser import RULE, CandidateTrial, Requirements, choose, refusal
from pipeline.index.condition_recall import SCORE_TOLERANCE, measure_conditions, measure_gallery_conditions
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.faiss_types import NO_DIRECT_MAP, ids_of_lists, untyped
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.format import ExpectedIndex, file_size, write_index
from pipeline.index.gallery import MultiVectorGallery, Shortlist
from pipeline.index.tuning import NEIGHBOURS, NOWHERE, SearchSetting, apply, ask, latency, stages_of, tune
from pipeline.storage.card import IndexCard, Modality, ShortlistCard
from pipeline.storage.json_files import Json

if TYPE_CHECKING:
    import torch

QUERIES = 1000
"""Largest number of queries with which an index is tuned and measured. The queries are items of the other modality,
such as captions for an index of images."""
SET_QUERIES = 100
"""Largest number of queries with which the shortlist of a multi-vector model is measured. Measuring it takes longer,
because each query is also compared with all items of the index."""
FLAT_HEADER_BYTES = 45
"""Size in bytes of the file of an exact index (Flat) without its vectors."""


@dataclass(frozen=True)
class BuiltIndex:
    """A FAISS index with its card. The vector with the id i is row i of the vectors from which the index was built.

    `tradeoff` has the measurements of all candidates for the file `*.tradeoff.json`. It is None if no candidates were
    measured. No candidates are measured for an exact index that is built at once, and for an index that uses the
    trained index of another index shard.
    """

    index: faiss.Index
    card: IndexCard
    tradeoff: dict[str, Json] | None

    @property
    def expected(self) -> ExpectedIndex:
        """The values of the card with which the file of the index must agree when it is read: the number of vectors,
        the dimensions and the metric."""
        return ExpectedIndex(self.card.count, self.card.dim, self.card.metric)

    def write(self, write: Callable[[bytes], object]) -> None:
        """Pass the file of the index, in FAISS's format, to the function `write` in consecutive pieces."""
        write_index(self.index, write)


def choose_and_build(
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
    shared: Vectors | TrainedIndex | None = None,
) -> BuiltIndex:
    """Build an index of `vectors` that meets the `requirements`.

    Up to `requirements.exact_limit` vectors get an exact index (Flat) if it meets the other requirements. Otherwise the
    candidates are measured on a sample (see `choose`), and built with all vectors from the best to the worst. The first
    index that meets the requirements is returned. The index is tuned and measured with `queries` (q, c), which are
    vectors of the other modality. `metric` is inner_product or euclidean, and `progress` shows the progress of long
    steps. The exact neighbours of the queries, and the lists of an inverted file, are computed on `gpu`, or on the CPU
    if `gpu` is None.

    `shared` is None for an index of a single shard. The index shards of a larger index use the lists and codes of the
    first shard if possible. For the first shard, `shared` are therefore the vectors of all shards, on which its index
    is trained. For each other shard, `shared` is the trained index of the first shard, to which the vectors of the
    shard are added in place. If the resulting index misses a requirement, other candidates are measured for this shard
    alone.

    Raises InputError if there are no vectors or no queries, IntegrityError for a row that is not finite, and
    UsageError if no index meets the requirements.
    """
    count = vectors.count
    if not count or not len(queries):
        raise InputError(
            f"The index would be empty, because there are {count} vectors to index and {len(queries)} queries for a"
            " test of the index. Name splits that have photos and captions in index.splits in the configuration."
        )
    questions = ask(queries, progress(vectors.blocks(), "exact search"), count, metric, gpu)
    failed: dict[str, CandidateTrial] = {}

    def finish(
        factory: str, near: SearchSetting, trials: list[CandidateTrial], shared: Vectors | TrainedIndex | None = None
    ) -> BuiltIndex | None:
        """Build the index of all vectors with the string `factory`, tune it near the setting `near`, and measure it.

        Return None if the index misses a requirement. `trials` are the measurements for the table of candidates. If
        `trials` is empty, the result has no such table. `shared` is passed to `build`.
        """
        built = build(factory, vectors, metric, progress=progress, gpu=gpu, shared=shared)
        best = tune(built.index, questions, requirements.recall_floor, near=near)
        alone = 1000 * latency(built.index, questions)
        size = file_size(built.index)
        seconds = built.train_seconds + built.add_seconds
        failure = requirements.failure(best.recall, size, alone)
        trial = CandidateTrial(factory, best.setting, best.recall, size, best.seconds, alone, seconds, failure)
        if failure:
            failed[factory] = replace(trial, failure=f"{failure} with all vectors")
            return None
        measured = [failed.get(candidate.factory, candidate).to_dict() for candidate in trials]
        tradeoff = {"rule": RULE, "chosen": trial.to_dict(), "candidates": measured}
        return BuiltIndex(built.index, _card(trial, vectors, metric, len(queries)), tradeoff if trials else None)

    exact_fits = count <= requirements.exact_limit and count * vectors.dim * 4 + FLAT_HEADER_BYTES <= requirements.bytes
    if exact_fits and (exact := finish("Flat", NOWHERE, [])):
        return exact
    if isinstance(shared, TrainedIndex):
        if same := finish(shared.factory, shared.setting, [], shared):
            return same
        failed.clear()
        shared = None
    trials: list[CandidateTrial] = []
    for tier in choose(vectors, queries, metric, requirements, progress, gpu, shared.count if shared else None):
        trials = tier.trials
        for trial in tier.finalists:
            if trial.factory not in failed and (index := finish(trial.factory, trial.setting, trials, shared)):
                return index
    trials = [failed.get(trial.factory, trial) for trial in trials]
    raise UsageError(refusal(trials, count, vectors.dim, requirements))


def _card(trial: CandidateTrial, vectors: Vectors, metric: str, queries: int) -> IndexCard:
    values = {
        "factory": trial.factory,
        "metric": metric,
        "dim": vectors.dim,
        "count": vectors.count,
        "bytes": trial.bytes,
        **vars(trial.setting),
        "queries": queries,
        "queries_per_second": 1 / trial.seconds,
        "latency_ms": trial.latency_ms,
        "build_seconds": trial.build_seconds,
        f"recall@{NEIGHBOURS}": trial.recall,
    }
    return IndexCard.model_validate(values)


def build_gallery(
    modality: Modality,
    vectors: Vectors,
    outline: MultiVectors | None,
    queries: Items,
    comparison: Comparison,
    requirements: Requirements,
    shortlist: Shortlist,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
    shared: Vectors | TrainedIndex | None = None,
) -> BuiltIndex:
    """Build an index of the `vectors` of all items of a `modality` (images or sentences). Measure its recall, also
    under sampled conditions (see pipeline.index.condition_recall), with `queries` of the other modality.

    `outline` is None for a model with one vector per item. For a multi-vector model, it says which vectors belong to
    which item. `comparison` is the metric of a model with one vector per item, or the scoring rule of a multi-vector
    model. The index of a multi-vector model stores all vectors exactly, and `requirements.candidates` is ignored. This
    index is a Flat index if there are at most `requirements.exact_limit` vectors and a Flat index meets the
    requirements, and otherwise an inverted file of whole vectors. The `shortlist` is only used with an inverted file,
    because a shortlist is computed from the lists. The card of a multi-vector model also has the recall and the speed
    of searches with the shortlist. The other arguments are explained in `choose_and_build`.

    Raises InputError if there are no vectors or no queries, IntegrityError for a row that is not finite, and UsageError
    if no index meets the requirements.
    """
    if outline is None:
        assert isinstance(comparison, str)
        asked = one_vector_each(queries)
        built = choose_and_build(vectors, asked, comparison, requirements, progress, gpu, shared)
        conditions = measure_conditions(built.index, vectors, asked, comparison)
        return replace(built, card=built.card.model_copy(update={"conditions": conditions}))
    assert isinstance(comparison, ScoreRule) and isinstance(queries, MultiVectors)
    count = vectors.count if shared is None or isinstance(shared, TrainedIndex) else shared.count
    factories = dict.fromkeys(f"IVF{lists_for(count, multiple)},Flat" for multiple in (FEW_LISTS, MANY_LISTS))
    requirements = replace(requirements, candidates=tuple(factories))
    asked = queries.array[evenly_spaced(len(queries.array), QUERIES)]
    built = choose_and_build(vectors, asked, "inner_product", requirements, progress, gpu, shared)
    used = None if built.card.factory == "Flat" else shortlist
    gallery = MultiVectorGallery(modality, built.index, outline, comparison, used)
    measured = ShortlistCard.model_validate(measure_shortlist(gallery, queries, progress))
    conditions = measure_gallery_conditions(gallery, queries)
    if (inverted := stages_of(built.index).inverted) is not None:
        inverted.set_direct_map_type(NO_DIRECT_MAP)  # The file must not contain the gallery's direct map.
    return replace(built, card=built.card.model_copy(update={"shortlist": measured, "conditions": conditions}))


def measure_shortlist(
    gallery: MultiVectorGallery, queries: MultiVectors, progress: Progress = unwatched
) -> dict[str, Json]:
    """Measure the recall and the speed of searches with the gallery's shortlist, in comparison with scoring all items.
    Return the values for the index's card.

    `recall@10` is the mean share of a query's ten best items by exact scores that a search with the shortlist finds.
    `recall@1` is the share of queries whose best item is found. An item also counts as found if another item with an
    equal score is found in its place. `scored` is the number of items that are scored exactly for a query,
    `queries_per_second` is the speed with the shortlist, and `exact_queries_per_second` the speed without it. If the
    gallery has no shortlist, both recalls are 1 and both speeds are equal. `nearest` and `shortlist` are the settings
    of the shortlist, or None, and `queries` is the number of queries.
    """
    top = min(NEIGHBOURS, len(gallery))
    shortlist = gallery.shortlist
    vectors = gallery.vectors()
    shares = []
    firsts = []
    seconds = []
    exact_seconds = []
    for query in progress(queries.blocks(1), "shortlist" if shortlist else "all items"):
        start = time.perf_counter()
        found = gallery.search(query, top).scores[0]
        middle = time.perf_counter()
        seconds.append(middle - start)
        if shortlist is None:
            continue
        scores = gallery.score_all(query, vectors)[gallery.there]
        best = -np.partition(-scores, top - 1)[:top]
        exact_seconds.append(time.perf_counter() - middle)
        tolerance = SCORE_TOLERANCE * max(abs(float(best.max())), 1)
        shares.append(np.mean(found >= best.min() - tolerance))
        firsts.append(found[0] >= best.max() - tolerance)
    return {
        "nearest": shortlist and shortlist.nearest,
        "shortlist": shortlist and shortlist.shortlist,
        f"recall@{NEIGHBOURS}": float(np.mean(shares)) if shortlist else 1.0,
        "recall@1": float(np.mean(firsts)) if shortlist else 1.0,
        "scored": gallery.scored(top),
        "queries": len(queries),
        "queries_per_second": 1 / float(np.mean(seconds)),
        "exact_queries_per_second": 1 / float(np.mean(exact_seconds if shortlist else seconds)),
    }


# --- removing vectors

ID_MAP_PREFIX = "IDMap,"
"""First part of the factory string of an index that stores the ids of its vectors in a separate table."""


def remove(
    index: faiss.Index, ids: np.ndarray, rest_ids: np.ndarray, rest: Callable[[], Vectors], card: IndexCard
) -> tuple[faiss.Index, str]:
    """Remove the vectors with these `ids` (k,) from an index. Return an index in which all other vectors keep their
    ids, and the factory string of this index.

    An inverted file is changed in place and returned, unless it has fast-scan codes. For all other types, a new index
    is built from the remaining vectors, which `rest()` returns, and from their ids `rest_ids`. The new index has the
    type and the search parameters of the `card`, and its factory string begins with ID_MAP_PREFIX. If `rest_ids` is
    empty, the new index is an empty Flat index.
    """
    factory = card.factory
    # The type is read from the index, because the card may be wrong. If FAISS removes vectors from an index of another
    # type, FAISS numbers the remaining vectors again.
    typed = faiss.downcast_index(index)
    if isinstance(typed, faiss.IndexIVF) and not isinstance(typed, faiss.IndexIVFFastScan):
        untyped(index).remove_ids(ids)
        return index, factory
    if not len(rest_ids):
        empty = ID_MAP_PREFIX + "Flat"
        return faiss.index_factory(index.d, empty, index.metric_type), empty
    factory = factory.removeprefix(ID_MAP_PREFIX)
    rebuilt = build(factory, rest(), card.metric, ids=rest_ids).index
    apply(rebuilt, SearchSetting(card.nprobe, card.efSearch, card.k_factor))
    return rebuilt, ID_MAP_PREFIX + factory


def exact_vectors(index: faiss.Index, ids: np.ndarray, name: str) -> Vectors:
    """Return the vectors that were added to `index` with these `ids` (k,). Messages call the index `name`.

    Raises UsageError if the index stores its vectors in a compressed form.
    """
    if not is_exact(index):
        raise UsageError(
            f"{name} stores its vectors in a compressed form, so the exact vectors must come from its run. Name the"
            " index in the folder of the run, such as RUN/index/ncca, and not a copy of it."
        )
    return Vectors(reconstruct(index, ids))


def remove_and_renumber(index: faiss.Index, ids: np.ndarray) -> faiss.Index:
    """Remove the vectors with these `ids` (k,) from a Flat or IVF,Flat index in place, and return the index. The
    remaining vectors keep their order and get the ids 0, 1 and so on."""
    kept = np.ones(index.ntotal, bool)
    kept[ids] = False
    untyped(index).remove_ids(ids)
    if isinstance(index, faiss.IndexIVF):  # An inverted file keeps the old ids.
        numbers = np.cumsum(kept) - 1
        for _, list_ids in ids_of_lists(index):
            list_ids[:] = numbers[list_ids]
    return index
