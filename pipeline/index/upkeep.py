"""Removing vectors from an index, so that an id never changes its meaning.

An id is a row of the index's table; those of removed vectors stay empty. Where a row has several vectors, these are
numbered without gaps, and renumbered when some are removed. What an index was trained on does not change.
"""

from collections.abc import Callable

import faiss
import numpy as np

from pipeline.errors import UsageError
from pipeline.index.candidates import build
from pipeline.index.faiss_types import call
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.gallery import ids_of_lists
from pipeline.index.tuning import SearchSetting, apply
from pipeline.index.vectors import ArrayVectors, Vectors
from pipeline.storage.card import IndexCard

NAMED = "IDMap,"
"""What the factory string of an index begins with that holds its vectors' ids in a table beside them."""


def remove(
    index: faiss.Index, ids: np.ndarray, rest_ids: np.ndarray, rest: Callable[[], Vectors], card: IndexCard
) -> tuple[faiss.Index, str]:
    """`index` without `ids`, all others under the ids that they had, and its factory string.

    What FAISS cannot take vectors out of is built again, by its `card`, from the `rest()`, whose ids are `rest_ids`.
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
    """The vectors that `index` has under `ids` (k,). Raises UsageError, which calls it `name`, where it has rounded
    them."""
    if not is_exact(index):
        raise UsageError(
            f"{name} has rounded its vectors; the run that has them has to be around it: name the index there"
        )
    return ArrayVectors(reconstruct(index, ids))


def drop(index: faiss.Index, places: np.ndarray) -> faiss.Index:
    """A Flat or IVF,Flat index without the vectors at `places` (k,); the others are renumbered in their order."""
    kept = np.ones(index.ntotal, bool)
    kept[places] = False
    call(index.remove_ids, places)
    if isinstance(index, faiss.IndexIVF):  # which leaves them their ids
        numbers = np.cumsum(kept) - 1
        for _, ids in ids_of_lists(index):
            ids[:] = numbers[ids]
    return index
