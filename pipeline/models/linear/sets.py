"""The training sets of a model: folds of pairs, restricted to some encoders and to the first terms."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np

from pipeline.mapreduce import LOCAL, map_reduce
from pipeline.models.linear.mapped import ViewBlock
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.training import Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView

MAPPED_ROWS = 1024
"""Images in one block of a second pass, which holds the mapped rows of all their sentences in memory."""


def assign_folds(splits: np.ndarray, count: int, order: str, seed: int) -> np.ndarray:
    """(n,) the fold, 0 to `count` - 1, of each image with split `splits[i]`: equal parts of every split.

    With `order` `listed`, the first images of a split are fold 0, the next ones fold 1, and so on; with `shuffled`,
    folds are drawn at random by `seed`.
    """
    folds = np.empty(len(splits), np.int64)
    rng = np.random.default_rng(seed)
    for split in sorted(set(splits)):
        members = np.flatnonzero(splits == split)
        if order == "shuffled":
            members = rng.permutation(members)
        folds[members] = np.arange(len(members)) * count // len(members)
    return folds


@dataclass(frozen=True)
class Restriction:
    """The part of the stored views that a model uses: some `encoders`, and the first `terms` of the vocabulary (None:
    all)."""

    encoders: tuple[str, ...]
    terms: int | None = None

    def pairs(self, rows: Any) -> PairArrays:
        """Images and sentences for `tune`, from stored rows with `features`, `sentences` and `owners`."""
        return PairArrays(rows.features, rows.sentences[:, : self.terms], rows.owners)


class FoldedMoments:
    """The moments of the folds of `source`, a pipeline.storage.moments.PairSet; each is read once, where `scheduler`
    says (see `map_reduce`)."""

    def __init__(self, source: Any, scheduler: str = LOCAL) -> None:
        self.source, self.scheduler = source, scheduler
        self.view = ImageView.from_dict(source.view)
        self._folds: dict[int, Moments] = {}

    def sum(self, folds: Sequence[int], restriction: Restriction) -> Moments | None:
        """The moments of the pairs of `folds` in the restricted views; None without folds."""
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

    def blocks(pairs: FoldedMoments, folds: Sequence[int]) -> Iterator[ViewBlock]:
        for part in pairs.source.blocks(folds, view.encoders, MAPPED_ROWS):
            yield ViewBlock(view.stack(part.features), part.sentences[:, : restriction.terms], part.owners)

    weak = auxiliary.sum(auxiliary_folds, restriction) if auxiliary else None
    return Sets(
        target.sum(target_folds, restriction),
        weak,
        lambda: blocks(target, target_folds),
        lambda: blocks(auxiliary, auxiliary_folds),
    )
