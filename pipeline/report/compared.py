"""Systems of several runs, and of somebody else's table, beside one of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.evaluate.summary import DIRECTIONS, RECALLS
from pipeline.metrics.paired import Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap

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
        return None if None in self.recalls else sum(self.recalls)

    def minus(self, reference: "ComparedSystem", bootstrap: Bootstrap) -> dict[str, Any]:
        """By how much its sum of recalls is above that of the `reference`, with the paired 95 % interval over photos if
        both were tested on the same ones; empty where one has no sum."""
        if self.sum is None or reference.sum is None:
            return {}
        if self.draw and reference.draw and np.array_equal(self.photos, reference.photos):
            return dict(compare_draws([self.draw], [reference.draw], bootstrap))
        return {"difference": self.sum - reference.sum}


def measured_system(
    source: str, evaluation: Mapping[str, Any], ranks: Mapping[str, np.ndarray], photos: Sequence[str]
) -> ComparedSystem:
    """A model of the run `source`, from its evaluation, its ranks, and the sha256 of the split's photos (n,)."""
    hashes, numbers = np.unique(np.asarray(photos), return_inverse=True)
    images = {"image_to_sentence": numbers, "sentence_to_image": numbers[ranks["owners"]]}
    recalls = [evaluation[direction][measure] for direction, measure in COLUMNS]
    return ComparedSystem(evaluation["model"], source, recalls, draw_of_ranks(ranks, images, COLUMNS), hashes)


def compare_systems(systems: Iterable[ComparedSystem], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """A row for each system, the greatest sum first and those without a sum last; `minus` compares each with the first
    of `systems`."""
    reference, *others = systems
    rows = [{"system": reference, "minus": {}}]
    rows += [{"system": one, "minus": one.minus(reference, bootstrap)} for one in others]
    return sorted(rows, key=lambda row: -(row["system"].sum or 0))
