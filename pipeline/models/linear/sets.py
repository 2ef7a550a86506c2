"""The training sets of a model: folds of pairs, restricted to some encoders, weighted, and to the first terms."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Generic, Protocol, TypeVar

import numpy as np

from pipeline.compute.mapreduce import LOCAL, map_reduce
from pipeline.models.joint_model import Settings, TextVectors
from pipeline.models.linear.moments import Moments, sum_moments
from pipeline.models.linear.training import Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, NumberedPairBlock, PairBlock, TextView, ViewBlock, is_sparse

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

    def cut(self, sentences: "Mapping[str, TextVectors]") -> "dict[str, TextVectors]":
        """Return the vectors (m, dim) of each of its text encoders."""
        return {
            name: sentences[name][:, : self.terms] if is_sparse(sentences[name]) else sentences[name]
            for name in self.text_encoders
        }

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(name for name, weight in self.text_weights.items() if weight)

    def pairs(self, rows: PairBlock) -> PairArrays:
        """Return the images and sentences of stored rows for `tune`."""
        return PairArrays(rows.features, self.cut(rows.sentences), rows.owners)

    def text(self, stored: TextView) -> TextView:
        """The part of the text view `stored`."""
        return stored.weighted(self.text_weights).select(self.text_encoders).first_terms(self.terms)


class PairSource(Protocol):
    """Stored pairs in folds, such as a pipeline.storage.pairs.PairSet, with the settings of their views."""

    @property
    def view(self) -> Settings: ...
    @property
    def text(self) -> Settings: ...
    @property
    def n_folds(self) -> int: ...

    def moments(self, folds: Sequence[int]) -> Sequence[Callable[[], dict[str, np.ndarray]]]:
        """Return functions that read moments whose sum is the moments of `folds`."""
        ...

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterable[NumberedPairBlock]:
        """Yield the pairs of `folds` in blocks of at most `rows` images."""
        ...


Source = TypeVar("Source", bound=PairSource, covariant=True)


class FoldedMoments(Generic[Source]):
    """The moments of the folds of `source`. Each fold is read once, where `scheduler` says (see `map_reduce`)."""

    def __init__(self, source: Source, scheduler: str = LOCAL) -> None:
        self.source = source
        self.scheduler = scheduler
        self.view = ImageView.from_dict(source.view)
        self.text = TextView.from_dict(source.text)
        self._folds: dict[int, Moments] = {}

    @property
    def n(self) -> float:
        """The number of pairs in the folds that were read."""
        return sum(fold.n for fold in self._folds.values())

    def sum(self, folds: Sequence[int], restriction: Restriction) -> Moments:
        """Sum the moments of `folds` in the restricted views. Without folds, return the moments of no pairs."""
        view, text = self.view.select(restriction.encoders), restriction.text(self.text)
        if not folds:
            return Moments.zero(view.dim, text.dim)
        columns = self.view.columns(view)

        def restrict(moments: Moments) -> Moments:
            moments = moments.select_x(columns) if len(columns) < self.view.dim else moments
            return moments.select_y(self.text.columns(text)) if text.dim < self.text.dim else moments

        total = sum_moments(restrict(self._fold(fold)) for fold in folds)
        return total if set(text.weights) == {1.0} else total.scaled_y(text.factors())

    def _fold(self, fold: int) -> Moments:
        if fold not in self._folds:
            if parts := self.source.moments([fold]):
                self._folds[fold] = sum_stored(parts, self.scheduler)
            else:
                self._folds[fold] = Moments.zero(self.view.dim, self.text.dim)
        return self._folds[fold]


def sum_stored(readers: Sequence[Callable[[], dict[str, np.ndarray]]], scheduler: str) -> Moments:
    """Sum the moments whose arrays the functions read, where `scheduler` says (see `map_reduce`)."""
    return map_reduce(load_moments, readers, add, scheduler, absorb=Moments.absorb)


def load_moments(read: Callable[[], dict[str, np.ndarray]]) -> Moments:
    """Read moments by a function that reads their arrays."""
    return Moments.from_arrays(read())


def make_sets(
    target: FoldedMoments,
    target_folds: Sequence[int],
    auxiliary: FoldedMoments | None,
    auxiliary_folds: Sequence[int],
    restriction: Restriction,
) -> Sets:
    """Return the target and auxiliary pairs of the given folds, in the restricted views."""
    view, text = target.view.select(restriction.encoders), restriction.text(target.text)

    def blocks(pairs: FoldedMoments | None, folds: Sequence[int]) -> Iterator[ViewBlock]:
        for block in pairs.source.blocks(folds, view.encoders, text.encoders, MAPPED_ROWS) if pairs else ():
            yield ViewBlock(view.stack(block.features), text.stack(restriction.cut(block.sentences)), block.owners)

    return Sets(
        target.sum(target_folds, restriction),
        auxiliary.sum(auxiliary_folds, restriction) if auxiliary else None,
        lambda: blocks(target, target_folds),
        lambda: blocks(auxiliary, auxiliary_folds),
    )
