"""Systems of several runs, and of somebody else's table, beside one of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from pipeline.evaluate.summary import DIRECTIONS, RECALLS
from pipeline.metrics.paired import Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.storage.json_files import JsonObject

COLUMNS = [(direction, measure) for direction in DIRECTIONS for measure in RECALLS]
HEADINGS = [f"{direction}_{measure}" for direction, measure in COLUMNS]
"""Of the columns of a table of figures, after `model`."""


@dataclass(frozen=True)
class ComparedSystem:
    """A system's `recalls` in percent, in the order of COLUMNS, None where they are not known; and, where they are
    stored, its ranks as a `draw` of the photos whose sha256 `photos` (n,) has, in ascending order."""

    name: str
    source: str
    recalls: Sequence[float | None]
    draw: Draw | None = None
    photos: np.ndarray | None = None

    @property
    def sum(self) -> float | None:
        """The sum of all recalls; None if one is not known."""
        known = [recall for recall in self.recalls if recall is not None]
        return sum(known) if len(known) == len(self.recalls) else None

    def minus(self, reference: "ComparedSystem", bootstrap: Bootstrap) -> dict[str, Any]:
        """By how much its sum of recalls is above that of the `reference`, with the paired 95 % interval over photos if
        both were tested on the same ones; empty where one has no sum."""
        if self.sum is None or reference.sum is None:
            return {}
        photos = [system.photos for system in (self, reference) if system.photos is not None]
        if self.draw and reference.draw and len(photos) == 2 and np.array_equal(photos[0], photos[1]):
            return dict(compare_draws([self.draw], [reference.draw], bootstrap))
        return {"difference": self.sum - reference.sum}


def measured_system(
    source: str, evaluation: JsonObject, ranks: Mapping[str, np.ndarray], photos: Sequence[str]
) -> ComparedSystem:
    """A model of the run `source`, from its evaluation, its ranks, and the sha256 of the split's photos (n,)."""
    hashes, numbers = np.unique(np.asarray(photos), return_inverse=True)
    images = {"image_to_sentence": numbers, "sentence_to_image": numbers[ranks["owners"]]}
    recalls = [evaluation[direction][measure] for direction, measure in COLUMNS]
    return ComparedSystem(evaluation["model"], source, recalls, draw_of_ranks(ranks, images, COLUMNS), hashes)


class ComparedRow(TypedDict):
    """A system, and its difference from the reference, which is empty if the sum of one is not known."""

    system: ComparedSystem
    minus: dict[str, Any]


def compare_systems(systems: Iterable[ComparedSystem], bootstrap: Bootstrap) -> list[ComparedRow]:
    """A row for each system, the greatest sum first and those without a sum last; `minus` compares each with the first
    of `systems`."""
    reference, *others = systems
    rows: list[ComparedRow] = [{"system": reference, "minus": {}}]
    rows += [ComparedRow(system=other, minus=other.minus(reference, bootstrap)) for other in others]
    return sorted(rows, key=lambda row: -(row["system"].sum or 0))
