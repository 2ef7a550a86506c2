"""Building the FAISS index that meets the requirements, with its card, and removing vectors from one.

An id is a row of the index's table, and an id never changes its meaning: ids of removed vectors stay empty. If a row
has several vectors, these are numbered without gaps, and are renumbered when some are removed. What an index was
trained on does not change.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import faiss
import numpy as np

from pipeline.compute.multivectors import Comparison, Items, MultiVectors, ScoreRule, one_vector_each
from pipeline.errors import InputError, UsageError
from pipeline.index.candidates import FEW, MANY, Progress, build, lists_for, unwatched
from pipeline.index.chooser import RULE, CandidateTrial, Requirements, choose, refusal
from pipeline.index.exact import ArrayVectors, Vectors, evenly_spaced
from pipeline.index.faiss_types import call, ids_of_lists
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.format import ExpectedIndex, from_bytes, to_bytes
from pipeline.index.gallery import MultiVectorGallery, Shortlist
from pipeline.index.tuning import NEIGHBOURS, NOWHERE, SearchSetting, apply, ask, latency, tune
from pipeline.storage.card import IndexCard, Modality, ShortlistCard
from pipeline.storage.json_files import Json

if TYPE_CHECKING:
    import torch

QUERIES, SET_QUERIES = 1000, 100
"""Items of the other modality that measure an index: of one vector, and of several, each of which is also scored with
everything."""
FLAT_HEADER = 45
"""Bytes of an exact index beside its vectors."""
SLACK = 1e-5
"""Relative difference of scores that are the same but for rounding."""


@dataclass(frozen=True)
class BuiltIndex:
    """A FAISS index as bytes, with its card. Position i of the index is row i of the vectors.

    `tradeoff` has the measurements of the candidates, if several were tried.
    """

    data: memoryview
    card: IndexCard
    tradeoff: dict[str, Json] | None

    @property
    def expected(self) -> ExpectedIndex:
        """The facts that the bytes must agree with."""
        return ExpectedIndex(self.card.count, self.card.dim, self.card.metric)


def choose_and_build(
    vectors: Vectors,
    queries: np.ndarray,
    metric: str,
    requirements: Requirements,
    progress: Progress = unwatched,
    gpu: "torch.device | None" = None,
) -> BuiltIndex:
    """The index of `vectors` that meets `requirements`, tuned and measured with `queries` (q, c) of the other modality.

    Their true neighbours, and the lists of an inverted file, are found on `gpu`, where there is one. Raises InputError
    where there is nothing to index or to ask, IntegrityError for a row that is not finite, and UsageError where no
    index meets the requirements.
    """
    count = vectors.count
    if not count or not len(queries):
        raise InputError("there is nothing to index; put splits that have images and sentences into index.splits")
    questions = ask(queries, progress(vectors.blocks(), "exact search"), count, metric, gpu)
    failed: dict[str, CandidateTrial] = {}

    def finish(factory: str, near: SearchSetting, trials: list[CandidateTrial]) -> BuiltIndex | None:
        """Builds the index of all vectors, tuned `near` a setting; returns None if it misses a requirement."""
        built = build(factory, vectors, metric, progress=progress, gpu=gpu)
        best = tune(built.index, questions, requirements.recall_floor, near=near)
        alone = 1000 * latency(built.index, questions)
        data = to_bytes(built.index)
        seconds = built.train_seconds + built.add_seconds
        failure = requirements.failure(best.recall, len(data), alone)
        trial = CandidateTrial(factory, best.setting, best.recall, len(data), best.seconds, alone, seconds, failure)
        if failure:
            failed[factory] = replace(trial, failure=f"{failure} with all vectors")
            return None
        measured = [failed.get(candidate.factory, candidate).to_dict() for candidate in trials]
        tradeoff = {"rule": RULE, "chosen": trial.to_dict(), "candidates": measured}
        return BuiltIndex(data, _card(trial, vectors, metric, len(queries)), tradeoff if trials else None)

    few = count <= requirements.exact_limit and count * vectors.dim * 4 + FLAT_HEADER <= requirements.bytes
    if few and (exact := finish("Flat", NOWHERE, [])):
        return exact
    trials: list[CandidateTrial] = []
    for tier in choose(vectors, queries, metric, requirements, progress, gpu):
        trials = tier.trials
        for trial in tier.finalists:
            if trial.factory not in failed and (index := finish(trial.factory, trial.setting, trials)):
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
) -> BuiltIndex:
    """The index of the `vectors` of all `images` or `sentences`, measured with `queries` of the other modality.

    Where items have several, by their `outline`, it gives its vectors back exactly: an exact index, or above
    `requirements.exact_limit` vectors an inverted file of them, whatever `requirements.candidates` says; the card says
    what its `shortlist` costs. A shortlist is read off the lists, so that only an inverted file is searched by it.
    Raises as choose_and_build does.
    """
    if outline is None:
        assert isinstance(comparison, str)
        return choose_and_build(vectors, one_vector_each(queries), comparison, requirements, progress, gpu)
    assert isinstance(comparison, ScoreRule) and isinstance(queries, MultiVectors)
    factories = dict.fromkeys(f"IVF{lists_for(vectors.count, multiple)},Flat" for multiple in (FEW, MANY))
    requirements = replace(requirements, candidates=tuple(factories))
    asked = queries.array[evenly_spaced(len(queries.array), QUERIES)]
    built = choose_and_build(vectors, asked, "inner_product", requirements, progress, gpu)
    index = from_bytes(built.data, f"the index of {modality}", built.expected)
    used = None if built.card.factory == "Flat" else shortlist
    gallery = MultiVectorGallery(modality, index, outline, comparison, used)
    measured = ShortlistCard.model_validate(measure_shortlist(gallery, queries, progress))
    return replace(built, card=built.card.model_copy(update={"shortlist": measured}))


def measure_shortlist(
    gallery: MultiVectorGallery, queries: MultiVectors, progress: Progress = unwatched
) -> dict[str, Json]:
    """Measure the gallery's shortlist against scoring all items. Return the values for the card of its index.

    `recall@10` is the share of each query's ten best items by exact scores that were found, `recall@1` the share of
    queries whose best one was; `scored` the number of items scored exactly; `exact_queries_per_second` the speed
    without a shortlist. An item counts as found if another item with an equal score was found in its place.
    """
    top, shortlist = min(NEIGHBOURS, len(gallery)), gallery.shortlist
    vectors = gallery.vectors()
    shares, firsts, seconds, exact_seconds = [], [], [], []
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
        slack = SLACK * max(abs(float(best.max())), 1)
        shares.append(np.mean(found >= best.min() - slack))
        firsts.append(found[0] >= best.max() - slack)
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

NAMED = "IDMap,"
"""What the factory string of an index begins with that holds its vectors' ids in a table beside them."""


def remove(
    index: faiss.Index, ids: np.ndarray, rest_ids: np.ndarray, rest: Callable[[], Vectors], card: IndexCard
) -> tuple[faiss.Index, str]:
    """Return `index` without `ids`, with all other vectors under the same ids, and its factory string.

    If FAISS cannot remove vectors from this type of index, it is built again by its `card` from the vectors `rest()`,
    whose ids are `rest_ids`.
    """
    factory = card.factory
    typed = faiss.downcast_index(index)  # the card may be wrong, and others number the vectors anew
    if isinstance(typed, faiss.IndexIVF) and not isinstance(typed, faiss.IndexIVFFastScan):
        call(index.remove_ids, ids)
        return index, factory
    if not len(rest_ids):
        return faiss.index_factory(index.d, NAMED + "Flat", index.metric_type), NAMED + "Flat"
    factory = factory.removeprefix(NAMED)
    named = build(factory, rest(), card.metric, ids=rest_ids).index
    apply(named, SearchSetting(card.nprobe, card.efSearch, card.k_factor))  # which it was tuned to
    return named, NAMED + factory


def exact_vectors(index: faiss.Index, ids: np.ndarray, name: str) -> ArrayVectors:
    """Return the vectors that `index` has under `ids` (k,). Raises UsageError, naming `name`, if it rounds them."""
    if not is_exact(index):
        raise UsageError(
            f"{name} has rounded its vectors; the run that has them has to be around it: name the index there"
        )
    return ArrayVectors(reconstruct(index, ids))


def drop(index: faiss.Index, places: np.ndarray) -> faiss.Index:
    """Return a Flat or IVF,Flat index without the vectors at `places` (k,). The others are numbered anew."""
    kept = np.ones(index.ntotal, bool)
    kept[places] = False
    call(index.remove_ids, places)
    if isinstance(index, faiss.IndexIVF):  # which leaves them their ids
        numbers = np.cumsum(kept) - 1
        for _, ids in ids_of_lists(index):
            ids[:] = numbers[ids]
    return index
