"""Putting the sets of a row together: folds of pairs, restricted to some encoders and to the first terms."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, Protocol

import numpy as np

from pipeline.mapreduce import LOCAL, map_reduce
from pipeline.models.linear.mapped import ViewBlock
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.training import Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView

MAPPED_ROWS = 1024
"""Images in one block of a second pass, which holds the mapped rows of all their sentences."""


class PairSource(Protocol):
    """Stored pairs in folds: see pipeline.storage.moments.PairSet."""

    view: Mapping[str, Any]
    n_folds: int
    terms: int

    def moments(self, folds: Sequence[int]) -> list[Callable[[], dict[str, np.ndarray]]]: ...

    def blocks(self, folds: Sequence[int], encoders: tuple[str, ...], rows: int) -> Iterable[Any]: ...


@dataclass(frozen=True)
class Restriction:
    """What a row uses of the stored views: some `encoders`, and the first `terms` of the vocabulary (None: all)."""

    encoders: tuple[str, ...]
    terms: int | None = None

    def pairs(self, rows: Any) -> PairArrays:
        """Images and sentences as `tune` takes them, from rows with `features`, `sentences` and `owners`."""
        return PairArrays(rows.features, rows.sentences[:, : self.terms], rows.owners)


class FoldedMoments:
    """The moments of a source's folds, read from storage once, by whom `scheduler` says (see `map_reduce`)."""

    def __init__(self, source: PairSource, scheduler: str = LOCAL) -> None:
        self.source = source
        self.scheduler = scheduler
        self.view = ImageView.from_dict(source.view)
        self._folds: dict[int, Moments] = {}

    def sum(self, folds: Sequence[int], restriction: Restriction) -> Moments | None:
        """The moments of the pairs of `folds` in the restricted views; None of no fold."""
        if not folds:
            return None
        columns = self.view.columns(restriction.encoders)
        total = sum_moments(self._fold(fold) for fold in folds)
        if len(columns) < self.view.dim:
            total = total.select_x(columns)
        return total if restriction.terms is None else total.select_y(slice(restriction.terms))

    def _fold(self, fold: int) -> Moments:
        if fold not in self._folds:
            none, parts = Moments.zero(self.view.dim, self.source.terms), self.source.moments([fold])
            self._folds[fold] = map_reduce(_load_moments, parts, add, self.scheduler) if parts else none
        return self._folds[fold]


def _load_moments(read: Callable[[], dict[str, np.ndarray]]) -> Moments:
    return Moments.from_arrays(read())


def make_sets(
    target: FoldedMoments,
    target_folds: Sequence[int],
    auxiliary: FoldedMoments | None,
    auxiliary_folds: Sequence[int],
    restriction: Restriction,
) -> Sets:
    """The target and auxiliary pairs of the given folds, in the restricted views."""
    view = target.view.select(restriction.encoders)

    def blocks(source: PairSource, folds: Sequence[int]) -> Iterator[ViewBlock]:
        for part in source.blocks(folds, view.encoders, MAPPED_ROWS):
            yield ViewBlock(view.stack(part.features), part.sentences[:, : restriction.terms], part.owners)

    weak = auxiliary.sum(auxiliary_folds, restriction) if auxiliary else None
    return Sets(
        target.sum(target_folds, restriction),
        weak,
        lambda: blocks(target.source, target_folds),
        lambda: blocks(auxiliary.source, auxiliary_folds),
    )
