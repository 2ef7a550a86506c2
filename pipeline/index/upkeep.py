"""Adding vectors to an index that exists, and taking some out, so that no id ever means something else.

An id is a row of the bundle's table. New vectors get the ids after the last row; those of removed ones stay empty.
What an index was trained on does not change, so it drifts as its vectors do: lists grow unevenly and recall falls.
"""

from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from pipeline.errors import InputError
from pipeline.index.candidates import accelerated, build
from pipeline.index.tuning import NEIGHBOURS, Questions, Setting, apply, ask, index_recall, stages_of
from pipeline.index.vectors import Vectors
from pipeline.precision import require_finite

NAMED = "IDMap,"
"""What the factory string of an index begins with that holds its vectors' ids in a table beside them."""


@dataclass(frozen=True)
class Condition:
    """The state of an index: `recall` on real queries, and how uneven its lists are: `imbalance` is 1 where all are
    equally long, and how many times longer a search takes otherwise (None: it has no lists)."""

    recall: float
    imbalance: float | None

    def to_dict(self) -> dict[str, float | None]:
        return {f"recall@{NEIGHBOURS}": self.recall, "imbalance": self.imbalance}


def examine(index: faiss.Index, vectors: Vectors, ids: np.ndarray, queries: np.ndarray, metric: str) -> Condition:
    """The condition of `index`, which holds `vectors` under `ids` (n,)."""
    asked = ask(queries, vectors.blocks(), vectors.count, metric)
    right = np.where(asked.right >= 0, ids[asked.right], -1)
    inverted = stages_of(index).inverted
    imbalance = None if inverted is None else float(inverted.invlists.imbalance_factor())
    return Condition(index_recall(index, Questions(asked.queries, asked.k, right)), imbalance)


def add(index: faiss.Index, vectors: Vectors, first: int) -> None:
    """Add `vectors` under the ids `first`, `first` + 1, ... Raises IntegrityError naming a row that is not finite."""
    with accelerated(index):
        for block in vectors.blocks():
            require_finite("embeddings", "new vectors", block)
            if _names_its_vectors(index):
                index.add_with_ids(block, np.arange(first, first + len(block)))
            else:
                index.add(block)
            first += len(block)


def remove(
    index: faiss.Index,
    ids: np.ndarray,
    factory: str,
    setting: Setting,
    rest: Vectors,
    rest_ids: np.ndarray,
    metric: str,
) -> faiss.Index:
    """`index` without `ids`, all others under the ids that they had.

    What FAISS cannot take vectors out of is built again by its `factory` string and `setting` from the `rest`, whose
    ids are `rest_ids`. Raises InputError where nothing would be left.
    """
    require_rest(rest.count)
    if forgets(factory):
        index.remove_ids(ids)
        return index
    named = build(factory.removeprefix(NAMED), rest, metric, ids=rest_ids).index
    apply(named, setting)
    return named


def require_rest(count: int) -> None:
    """Raises InputError where `count`, what would be left in an index, is nothing."""
    if not count:
        raise InputError("nothing would be left in the index; delete the bundle instead")


def setting_of(card: dict[str, Any]) -> Setting:
    """What the index of a card was tuned to."""
    return Setting(card["nprobe"], card["efSearch"], card["k_factor"])


def _names_its_vectors(index: faiss.Index) -> bool:
    return isinstance(faiss.downcast_index(index), faiss.IndexIVF | faiss.IndexIDMap)


def forgets(factory: str) -> bool:
    """Whether FAISS can take vectors out of such an index and leave the others their ids."""
    return factory.startswith("IVF") and "fs" not in factory and "Refine" not in factory and "RFlat" not in factory


def factory_without(factory: str) -> str:
    """The factory string of what `remove` makes of such an index."""
    return factory if forgets(factory) else NAMED + factory.removeprefix(NAMED)


def report_drift(before: Condition, after: Condition, floor: float) -> str:
    """What has changed, for a person, and what to do where that is too much."""
    parts = [f"index recall@{NEIGHBOURS} {before.recall:.3f}, then {after.recall:.3f}"]
    if after.imbalance is not None:
        parts.append(f"list imbalance {before.imbalance:.2f}, then {after.imbalance:.2f}")
    if after.recall < floor:
        parts.append(f"that is below index.recall_floor {floor:g}: run build-index again")
    return "; ".join(parts)
