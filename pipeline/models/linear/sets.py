"""The training sets of a model, which are stored pairs in folds. A model may use only some encoders, and only some
terms (columns of sparse vectors)."""

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

BLOCK_IMAGES = 2048
"""Maximum number of images per block of a second pass over the training pairs. The number is small, because the mapped
rows of all sentences of a block are in memory."""


def assign_folds(splits: np.ndarray, count: int, order: str, seed: int) -> np.ndarray:
    """Assign each of n images to a fold from 0 to `count` - 1. Each split is divided among the folds in parts whose
    sizes differ by at most one.

    `splits` (n,) has the name of the split of each image. If `order` is `listed`, the first images of a split are in
    fold 0, the next images are in fold 1, and so on. If `order` is `shuffled`, the images of each split are shuffled
    before they are divided, as `seed` decides. Returns the number of the fold of each image, (n,) int64.
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
    """The part of the stored views that a model uses.

    The model uses the features of the image `encoders` and the vectors of the text encoders in `text_weights`, name ->
    weight. The vectors of a text encoder are multiplied by its weight, and a text encoder with the weight 0 is left
    out. Sparse vectors have only their first `terms` columns, or all columns if `terms` is None.
    """

    encoders: tuple[str, ...]
    text_weights: Mapping[str, float]
    terms: int | None = None

    def cut(self, sentences: "Mapping[str, TextVectors]") -> "dict[str, TextVectors]":
        """Return the vectors (m, dim) of the text encoders that the model uses, text encoder -> vectors. Sparse vectors
        are cut to their first `terms` columns. The vectors are not multiplied by the weights."""
        return {
            name: sentences[name][:, : self.terms] if is_sparse(sentences[name]) else sentences[name]
            for name in self.text_encoders
        }

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return tuple(name for name, weight in self.text_weights.items() if weight)

    def pairs(self, rows: PairBlock) -> PairArrays:
        """Return the pairs of a stored block in the form that `tune` reads. The features of all image encoders of the
        block are kept, and the text vectors are the result of `cut`."""
        return PairArrays(rows.features, self.cut(rows.sentences), rows.owners)

    def text(self, stored: TextView) -> TextView:
        """Return a copy of the text view `stored` that has only the text encoders and terms that the model uses. The
        weights of the copy are the weights in `text_weights`."""
        return stored.weighted(self.text_weights).select(self.text_encoders).first_terms(self.terms)


class PairSource(Protocol):
    """Stored pairs in `n_folds` folds. `view` has the settings of the image view, which ImageView.from_dict restores,
    and `text` has the settings of the text view, which TextView.from_dict restores. pipeline.storage.pairs.PairSet
    fulfils this contract."""

    @property
    def view(self) -> Settings: ...
    @property
    def text(self) -> Settings: ...
    @property
    def n_folds(self) -> int: ...

    def moments(self, folds: Sequence[int]) -> Sequence[Callable[[], dict[str, np.ndarray]]]:
        """Return functions, each of which reads the arrays of stored moments in the form of `Moments.to_arrays`. The
        sum of these moments is the moments of all pairs in `folds`. There are no functions if the folds have no
        pairs."""
        ...

    def blocks(
        self, folds: Sequence[int], encoders: tuple[str, ...], text_encoders: tuple[str, ...], rows: int
    ) -> Iterable[NumberedPairBlock]:
        """Yield the pairs of `folds` in blocks of at most `rows` images, with the stored features of the image
        `encoders` and the stored vectors of the `text_encoders`."""
        ...


Source = TypeVar("Source", bound=PairSource, covariant=True)


class FoldedMoments(Generic[Source]):
    """The moments of the folds of `source`. A fold is read when it is first needed, and its moments then stay in
    memory. `scheduler` is `local`, or the address of the Dask scheduler whose workers read and sum the moments."""

    def __init__(self, source: Source, scheduler: str = LOCAL) -> None:
        self.source = source
        self.scheduler = scheduler
        self.view = ImageView.from_dict(source.view)
        self.text = TextView.from_dict(source.text)
        self._folds: dict[int, Moments] = {}

    @property
    def n(self) -> float:
        """The number of pairs in the folds that `sum` has read so far, which is 0 before the first call."""
        return sum(fold.n for fold in self._folds.values())

    def sum(self, folds: Sequence[int], restriction: Restriction) -> Moments:
        """Return the moments of the pairs in `folds`, in the views that `restriction` leaves. If `folds` is empty,
        return the moments of no pairs."""
        view = self.view.select(restriction.encoders)
        text = restriction.text(self.text)
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
    """Read moments by each of `readers`, and return the sum of the moments. There must be at least one reader.
    `scheduler` is `local`, or the address of a Dask scheduler. Raises UsageError if the scheduler does not answer."""
    return map_reduce(load_moments, readers, add, scheduler, absorb=Moments.absorb)


def load_moments(read: Callable[[], dict[str, np.ndarray]]) -> Moments:
    """Call `read`, which returns arrays in the form of `Moments.to_arrays`, and restore the moments from the arrays."""
    return Moments.from_arrays(read())


def make_sets(
    target: FoldedMoments,
    target_folds: Sequence[int],
    auxiliary: FoldedMoments | None,
    auxiliary_folds: Sequence[int],
    restriction: Restriction,
) -> Sets:
    """Return the training data of a model in the views that `restriction` leaves: the pairs in the folds `target_folds`
    of `target`, and the pairs in the folds `auxiliary_folds` of `auxiliary`. If `auxiliary` is None, there are no
    auxiliary pairs. The moments are summed during this call. The blocks of pairs are read only when the caller iterates
    over them."""
    view = target.view.select(restriction.encoders)
    text = restriction.text(target.text)

    def blocks(pairs: FoldedMoments | None, folds: Sequence[int]) -> Iterator[ViewBlock]:
        for block in pairs.source.blocks(folds, view.encoders, text.encoders, BLOCK_IMAGES) if pairs else ():
            yield ViewBlock(view.stack(block.features), text.stack(restriction.cut(block.sentences)), block.owners)

    return Sets(
        target.sum(target_folds, restriction),
        auxiliary.sum(auxiliary_folds, restriction) if auxiliary else None,
        lambda: blocks(target, target_folds),
        lambda: blocks(auxiliary, auxiliary_folds),
    )
