"""The training sets of a model: folds of pairs, restricted to some encoders, weighted, and to the first terms."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from scipy import sparse

from pipeline.compute.mapreduce import LOCAL, map_reduce
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.training import Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, TextView, ViewBlock

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
    """The part of the stored views that a model uses: some `encoders`; the text encoders with a weight in
    `text_weights`, multiplied by it, but for 0; and of these, if they are sparse, the first `terms` (None: all)."""

    encoders: tuple[str, ...]
    text_weights: Mapping[str, float]
    terms: int | None = None

    def cut(self, sentences: Mapping[str, Any]) -> dict[str, Any]:
        """The vectors (m, dim) of each of its text encoders."""
        return {
            name: sentences[name][:, : self.terms] if sparse.issparse(sentences[name]) else sentences[name]
            for name in self.text_encoders
        }

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(name for name, weight in self.text_weights.items() if weight)

    def pairs(self, rows: Any) -> PairArrays:
        """Images and sentences for `tune`, from stored rows with `features`, `sentences` and `owners`."""
        return PairArrays(rows.features, self.cut(rows.sentences), rows.owners)

    def text(self, stored: TextView) -> TextView:
        """The part of the text view `stored`."""
        return stored.weighted(self.text_weights).select(self.text_encoders).first_terms(self.terms)


class FoldedMoments:
    """The moments of the folds of `source`, a pipeline.storage.pairs.PairSet; each is read once, where `scheduler`
    says (see `map_reduce`)."""

    def __init__(self, source: Any, scheduler: str = LOCAL) -> None:
        self.source, self.scheduler = source, scheduler
        self.view, self.text = ImageView.from_dict(source.view), TextView.from_dict(source.text)
        self._folds: dict[int, Moments] = {}

    @property
    def n(self) -> float:
        """Pairs in the folds that were read."""
        return sum(fold.n for fold in self._folds.values())

    def sum(self, folds: Sequence[int], restriction: Restriction) -> Moments | None:
        """The moments of the pairs of `folds` in the restricted views; None without folds."""
        if not folds:
            return None
        columns, text = self.view.columns(self.view.select(restriction.encoders)), restriction.text(self.text)

        def part(fold: int) -> Moments:
            moments = self._fold(fold)
            moments = moments.select_x(columns) if len(columns) < self.view.dim else moments
            return moments.select_y(self.text.columns(text)) if text.dim < self.text.dim else moments

        total = sum_moments(map(part, folds))
        return total if set(text.weights) == {1.0} else total.scaled_y(text.factors())

    def _fold(self, fold: int) -> Moments:
        if fold not in self._folds:
            if parts := self.source.moments([fold]):
                self._folds[fold] = add_up(parts, self.scheduler)
            else:
                self._folds[fold] = Moments.zero(self.view.dim, self.text.dim)
        return self._folds[fold]


def add_up(readers: Sequence[Callable[[], dict[str, np.ndarray]]], scheduler: str) -> Moments:
    """The sum of the moments whose arrays the functions read, added where `scheduler` says (see `map_reduce`)."""
    return map_reduce(load_moments, readers, add, scheduler, absorb=Moments.absorb)


def load_moments(read: Callable[[], dict[str, np.ndarray]]) -> Moments:
    """The moments whose arrays a function reads."""
    return Moments.from_arrays(read())


def make_sets(
    target: FoldedMoments,
    target_folds: Sequence[int],
    auxiliary: FoldedMoments | None,
    auxiliary_folds: Sequence[int],
    restriction: Restriction,
) -> Sets:
    """The target and auxiliary pairs of the given folds, in the restricted views."""
    view, text = target.view.select(restriction.encoders), restriction.text(target.text)

    def blocks(pairs: FoldedMoments, folds: Sequence[int]) -> Iterator[ViewBlock]:
        for part in pairs.source.blocks(folds, view.encoders, text.encoders, MAPPED_ROWS):
            yield ViewBlock(view.stack(part.features), text.stack(restriction.cut(part.sentences)), part.owners)

    weak = auxiliary.sum(auxiliary_folds, restriction) if auxiliary else None
    return Sets(
        target.sum(target_folds, restriction),
        weak,
        lambda: blocks(target, target_folds),
        lambda: blocks(auxiliary, auxiliary_folds),
    )
