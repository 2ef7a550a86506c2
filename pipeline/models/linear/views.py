"""The views of a linear model: the features of image encoders side by side, and the vectors of text encoders side by
side.

The vectors of each encoder are normalised separately. The image features of all encoders are then copied into one
array. The vectors of text encoders stay separate matrices, each of which is sparse or dense.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from itertools import product
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import scipy  # SciPy loads its parts on first use, so dense views do not load them.

from pipeline.compute.precision import (
    FLOAT16_VALUES,
    float16_values,
    look_up,
    scale_to_unit_length,
    to_float32,
)
from pipeline.encoders.tfidf import unit_rows
from pipeline.errors import IntegrityError
from pipeline.models.joint_model import Features, Settings, TextVectors, read_list

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from torch import Tensor
    from typing_extensions import TypeIs

Matrix = TypeVar("Matrix", bound="np.ndarray | csr_array | Tensor")
"""The type of a matrix (n, d): a dense array of NumPy, a sparse array of SciPy, or a tensor of PyTorch."""
Other = TypeVar("Other", bound="np.ndarray | csr_array | Tensor")


class Columns(Generic[Matrix]):
    """The rows (n, d) of a view as several `matrices` (n, d_k) side by side, each of which is dense or sparse. d is the
    sum of all d_k. The matrices are not copied into one array."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.matrices = tuple(matrices)
        self.shape = (shape_of(self.matrices[0])[0], sum(shape_of(matrix)[1] for matrix in self.matrices))

    def __getitem__(self, rows: slice | np.ndarray) -> "Columns":
        return Columns([matrix[rows] for matrix in self.matrices])

    def __matmul__(self, right: "np.ndarray | Tensor") -> Any:
        """Multiply the rows by `right` (d, c), a dense matrix of the same library. Return a dense matrix (n, c)."""
        return reduce(add, [matrix @ right[columns] for columns, matrix in spans(self)])


Rows: TypeAlias = "np.ndarray | csr_array | Columns"
"""The rows of a view: images (n, D) as a dense array, or sentences (n, d) as a dense or sparse matrix. The sentences of
several encoders are Columns, in which some matrices may be sparse and others dense."""


def shape_of(matrix: "np.ndarray | csr_array | Tensor | Columns") -> tuple[int, int]:
    """Return the shape (n, d) of a matrix or of Columns."""
    return matrix.shape  # pyright: ignore[reportReturnType]  # SciPy has no types for the shape of a sparse array


def is_sparse(matrix: "np.ndarray | csr_array | Tensor") -> "TypeIs[csr_array]":
    """Return whether a matrix of NumPy, SciPy or PyTorch is sparse. An array of NumPy is never sparse, and a matrix of
    SciPy is always sparse."""
    return not isinstance(matrix, np.ndarray) and getattr(matrix, "is_sparse", True)


def matrices_of(rows: "Matrix | Columns[Matrix]") -> Sequence[Matrix]:
    """Return the matrices of `rows` from left to right. If `rows` is a single matrix, return only this matrix."""
    return rows.matrices if isinstance(rows, Columns) else (rows,)


def spans(rows: "Matrix | Columns[Matrix]") -> Iterator[tuple[slice, Matrix]]:
    """Yield a pair for each matrix of `rows` from left to right: the slice of its columns in the view, and the
    matrix."""
    start = 0
    for matrix in matrices_of(rows):
        width = shape_of(matrix)[1]
        yield slice(start, start + width), matrix
        start += width


def side_by_side(matrices: Sequence[Matrix]) -> "Matrix | Columns[Matrix]":
    """Join `matrices` (n, d_k) into Columns (n, d), without copying the matrices. A single matrix is returned
    unchanged."""
    return matrices[0] if len(matrices) == 1 else Columns(matrices)


def map_matrices(rows: "Matrix | Columns[Matrix]", function: Callable[[Matrix], Other]) -> "Other | Columns[Other]":
    """Apply `function` to each matrix of `rows`, and return the results side by side as Columns. If `rows` is a single
    matrix, return the result for this matrix."""
    if isinstance(rows, Columns):
        return Columns([function(matrix) for matrix in rows.matrices])
    return function(rows)


def stack_blocks(blocks: Sequence[Rows]) -> Rows:
    """Stack the rows (n_k, d) of all `blocks`, block after block. There must be at least one block. All blocks must
    have the same number of matrices, and matrix i must have the same number of columns and be sparse in all blocks or
    in none."""
    return side_by_side([_stack(matrices) for matrices in zip(*map(matrices_of, blocks), strict=True)])


def _stack(matrices: "Sequence[TextVectors]") -> "TextVectors":
    dense = [matrix for matrix in matrices if not is_sparse(matrix)]
    return np.concatenate(dense) if dense else scipy.sparse.vstack(matrices, format="csr")


def one_matrix(rows: Rows) -> "TextVectors":
    """Join the matrices of `rows` into one matrix (n, d), which is sparse if any of the matrices is sparse. A single
    matrix is returned unchanged."""
    matrices = matrices_of(rows)
    if len(matrices) == 1:
        return matrices[0]
    dense = [matrix for matrix in matrices if not is_sparse(matrix)]
    if len(dense) == len(matrices):
        return np.concatenate(dense, axis=1)
    return scipy.sparse.hstack([scipy.sparse.csr_array(matrix) for matrix in matrices], format="csr")


def as_sparse(rows: Rows) -> "csr_array":
    """Join the matrices of `rows` into one sparse matrix (n, d), even if all of them are dense."""
    return scipy.sparse.csr_array(one_matrix(rows))


STEPS = ("sqrt", "l2")
"""Names of the steps of normalisation that `normalise` applies: signed square roots, and scaling to unit length. A
third kind of step is a product with a number, such as `times 1.5`."""
TIMES = "times "
"""Beginning of the name of a step that multiplies all values by the number after it."""
Steps = tuple[str, ...]


def _require_known(steps: Sequence[Steps]) -> None:
    """Check `steps`, the steps of normalisation of a stored view, one tuple per encoder. The stored view may come from
    another machine. Raises ValueError for a step that is neither one of STEPS nor a product with a number."""
    for step in sorted({name for names in steps for name in names} - {*STEPS}):
        if not re.fullmatch(re.escape(TIMES) + r"\d{1,17}(\.\d{1,20})?(e[-+]?\d{1,2})?", step):
            raise ValueError(
                f"The stored view has the unknown step {step} of normalisation. The known steps are"
                f" {', '.join(STEPS)} and {TIMES}NUMBER. Fit the model again with this version of jointspace."
            )


@dataclass(frozen=True)
class View:
    """The description of a view, in which the vectors of several `encoders` are side by side, in this order.

    This is the base class of ImageView and TextView, which hold no vectors themselves. `dims` has the number of columns
    of each encoder. `vectors` is the name of the vectors in error messages.
    """

    vectors: ClassVar[str]
    encoders: tuple[str, ...]
    dims: tuple[int, ...]

    @property
    def dim(self) -> int:
        return sum(self.dims)

    def select_blocks(self, blocks: Mapping[str, Matrix]) -> Iterator[Matrix]:
        """Yield the vectors (n, dim) of each encoder of this view, in the order of the view. `blocks` maps encoders to
        their vectors, which are yielded unchanged. Other encoders in `blocks` are ignored.

        n is the number of rows of the first block, and dim is the entry of the encoder in `dims`. Raises IntegrityError
        if `blocks` lacks an encoder of this view, or if the vectors of an encoder do not have the shape (n, dim).
        """
        n = shape_of(next(iter(blocks.values())))[0] if blocks else 0
        for name, dim in zip(self.encoders, self.dims, strict=True):
            if name not in blocks:
                given = f"Only the {self.vectors} {', '.join(blocks)} were given" if blocks else "None were given"
                raise IntegrityError(
                    f"The {self.vectors} {name} are missing, but the model needs them. {given}. Compute the missing"
                    f" vectors with the encoder {name}."
                )
            if blocks[name].shape != (n, dim):
                raise IntegrityError(
                    f"The {self.vectors} {name} have the shape {blocks[name].shape}, but must have the shape"
                    f" {(n, dim)}: {n} rows of {dim} dimensions. Compute the vectors of all rows with the encoder with"
                    " which the model was fitted."
                )
            yield blocks[name]

    def positions(self, encoders: Sequence[str]) -> list[int]:
        """Return the positions, from 0, of the named `encoders` among the encoders of this view, in ascending order.

        Raises IntegrityError if this view lacks one of the named encoders.
        """
        if missing := set(encoders) - set(self.encoders):
            raise IntegrityError(
                f"The model does not use the {self.vectors} {min(missing)}, but only {', '.join(self.encoders)}. Name"
                " only encoders of the model."
            )
        return [position for position, name in enumerate(self.encoders) if name in encoders]

    def columns(self, narrow: "View") -> np.ndarray:
        """Return the column numbers (k,) in this view of the k columns of the view `narrow`, in the order of `narrow`.

        `narrow` has some or all of the encoders of this view, and the first columns or all columns of each of these
        encoders.
        """
        starts = dict(zip(self.encoders, np.cumsum([0, *self.dims[:-1]]), strict=True))
        chosen = zip(narrow.encoders, narrow.dims, strict=True)
        return np.concatenate([np.arange(starts[name], starts[name] + dim) for name, dim in chosen])


@dataclass(frozen=True)
class ImageView(View):
    """The description of an image view: the normalised features of image encoders side by side.

    `steps` are the steps of normalisation (STEPS): one tuple for all encoders, or one tuple per encoder.
    """

    vectors: ClassVar[str] = "features of encoder"
    steps: Steps | tuple[Steps, ...]

    @classmethod
    def from_dict(cls, value: Settings) -> "ImageView":
        """Restore a view from the keys `encoders`, `dims` and `steps` of JSON settings. Other keys are ignored. Raises
        ValueError if a key is missing or not a list, or if a step of normalisation is unknown."""
        steps = read_list(value, "steps")
        view = cls(tuple(read_list(value, "encoders")), tuple(read_list(value, "dims")), _to_steps(steps))
        _require_known(view.steps_of_each)
        return view

    @property
    def steps_of_each(self) -> tuple[Steps, ...]:
        """The steps of normalisation, one tuple per encoder, even if `steps` is a single tuple for all encoders."""
        if shared := [step for step in self.steps if isinstance(step, str)]:
            return (tuple(shared),) * len(self.encoders)
        return tuple(steps for steps in self.steps if not isinstance(steps, str)) or ((),) * len(self.encoders)

    def count_rows(self, features: Features) -> int:
        """Return the number n of images in `features`, encoder -> array (n, dim of the encoder). Raises IntegrityError
        if an encoder of the view is missing or its features have another shape."""
        return [len(block) for block in self.select_blocks(features)][0]

    def stack(self, features: Features) -> np.ndarray:
        """Normalise the `features`, encoder -> array (n, dim of the encoder), and put them side by side in a new array
        (n, dim) float32.

        The columns are in the order of the view's encoders. `features` are not changed. Raises IntegrityError if an
        encoder of the view is missing or its features have another shape.
        """
        x = np.empty((len(next(iter(features.values()), ())), self.dim), np.float32)
        blocks = zip(self.select_blocks(features), self.split(x).values(), self.steps_of_each, strict=True)
        for block, columns, steps in blocks:
            _normalise_into(columns, block, steps)
        return x

    def split(self, stacked: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of each encoder in `stacked` (n, dim), encoder -> array (n, dim of the encoder). The
        arrays share the memory of `stacked`."""
        return dict(zip(self.encoders, np.split(stacked, np.cumsum(self.dims)[:-1], axis=1), strict=True))

    def select(self, encoders: Sequence[str]) -> "ImageView":
        """Return a view with only these `encoders`, in the order of this view. Raises IntegrityError if this view lacks
        one of these encoders."""
        kept = self.positions(encoders)
        names = tuple(self.encoders[position] for position in kept)
        dims = tuple(self.dims[position] for position in kept)
        steps = tuple(self.steps_of_each[position] for position in kept)
        return ImageView(names, dims, steps[0] if len(set(steps)) == 1 else steps)


def _to_steps(steps: Sequence[str | Sequence[str]]) -> Steps | tuple[Steps, ...]:
    """Convert `steps` from JSON to tuples. `steps` is one list of names for all encoders, or a list of such lists, one
    per encoder."""
    names = tuple(step for step in steps if isinstance(step, str))
    return names or tuple(tuple(step) for step in steps)


def normalise(x: np.ndarray, steps: Sequence[str]) -> np.ndarray:
    """Apply `steps` in their order to the rows of x (n, d), float32 or float64. Change x in place, and return it.

    `sqrt` takes the root of the absolute value and keeps the sign. `l2` scales rows to unit length, except rows of
    zeros. `times F` multiplies all values by the number F.
    """
    for step in steps:
        if step == "sqrt":
            root = np.abs(x)
            np.sqrt(root, out=root)
            np.copysign(root, x, out=x)
        elif step == "l2":
            scale_to_unit_length(x)
        else:
            x *= np.float32(factor_of(step))
    return x


def _normalise_into(out: np.ndarray, block: np.ndarray, steps: Steps) -> None:
    """Convert the features `block` (n, d), float16 or float32, to float32 and apply `steps` to them, as `normalise`
    does. The result is written to `out` (n, d), and `block` is not changed.

    All steps except `l2` change each number by itself, and there are only FLOAT16_VALUES different float16 numbers. The
    steps before `l2` are therefore applied to a table of all float16 numbers, in which the results for a large float16
    block are looked up. The results are the same as those of `normalise`.
    """
    first = steps[: steps.index("l2")] if "l2" in steps else steps
    if first and block.dtype == np.float16 and block.size > FLOAT16_VALUES:
        with np.errstate(invalid="ignore", over="ignore"):  # The table also has NaN and the greatest numbers.
            look_up(normalise(float16_values(), first), block, out)
        normalise(out, steps[len(first) :])
    else:
        normalise(to_float32(block, out), steps)


def factor_of(step: str) -> float:
    """Return the number F of the `step` `times F`, which multiplies all values by F."""
    return float(step.removeprefix(TIMES))


@dataclass(frozen=True)
class TextView(View):
    """The description of a text view: the normalised vectors of text encoders side by side.

    For each encoder, `sparse` says whether its vectors are sparse, `steps` are the steps of normalisation (STEPS), and
    `weights` are the factors by which the normalised vectors are multiplied.
    """

    vectors: ClassVar[str] = "vectors of text encoder"
    sparse: tuple[bool, ...]
    steps: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...]

    @classmethod
    def from_vectors(
        cls, sentences: "Mapping[str, TextVectors]", steps: Mapping[str, Sequence[str]] | None = None
    ) -> "TextView":
        """Return the description of a view for vectors such as `sentences`, text encoder -> (n, dim of the encoder).
        The view has the encoders, the dimensions and the sparsity of `sentences`. `steps` maps an encoder to its steps
        of normalisation.

        The vectors of an encoder that `steps` lacks are not normalised. If `steps` is None, no vectors are normalised.
        All weights are 1.
        """
        dims = tuple(shape_of(block)[1] for block in sentences.values())
        sparse = tuple(is_sparse(block) for block in sentences.values())
        of_encoders = tuple(tuple((steps or {}).get(name, ())) for name in sentences)
        return cls(tuple(sentences), dims, sparse, of_encoders, (1.0,) * len(dims))

    @classmethod
    def from_dict(cls, value: Settings) -> "TextView":
        """Restore a view from the result of `to_dict`, read from JSON. Other keys are ignored. Raises ValueError if a
        key is missing or not a list, or if a step of normalisation is unknown."""
        steps = tuple(map(tuple, read_list(value, "steps")))
        _require_known(steps)
        return cls(**{**{entry.name: tuple(read_list(value, entry.name)) for entry in fields(cls)}, "steps": steps})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def weight_of(self) -> dict[str, float]:
        """The weight of each encoder, encoder -> weight."""
        return dict(zip(self.encoders, self.weights, strict=True))

    def stack(self, sentences: "Mapping[str, TextVectors]") -> Rows:
        """Normalise and weight `sentences`, text encoder -> (n, dim of the encoder), and put them side by side as
        (n, dim).

        For several encoders the result is Columns. For a single encoder it is one matrix. Sparse vectors stay sparse,
        and dense vectors become float32. `sentences` are not changed. Raises IntegrityError if an encoder of the view
        is missing or its vectors have another shape.
        """
        blocks = zip(self.select_blocks(sentences), self.steps, self.weights, strict=True)
        return side_by_side([_normalise_block(block, steps, weight) for block, steps, weight in blocks])

    def select(self, encoders: Sequence[str]) -> "TextView":
        """Return a view with only these `encoders`, in the order of this view. Raises IntegrityError if this view lacks
        one of these encoders."""
        kept = self.positions(encoders)
        return TextView(*(tuple(value[i] for i in kept) for value in vars(self).values()))

    def weighted(self, weights: Mapping[str, float]) -> "TextView":
        """Return a copy of this view whose weights are replaced by `weights`, encoder -> weight. Encoders whose new
        weight is 0 are left out of the copy.

        An encoder that `weights` lacks gets the weight 1, whatever its weight was.
        """
        view = self.select([name for name in self.encoders if weights.get(name, 1.0)])
        return replace(view, weights=tuple(float(weights.get(name, 1.0)) for name in view.encoders))

    @property
    def unnormalised(self) -> "TextView":
        """A copy of this view that does not normalise vectors, but still multiplies them by the weights."""
        return replace(self, steps=((),) * len(self.encoders))

    def first_terms(self, terms: int | None) -> "TextView":
        """Return a view with at most the first `terms` columns of each sparse encoder. Dense encoders keep all columns.
        If `terms` is None, the view itself is returned."""
        if terms is None:
            return self
        dims = (min(dim, terms) if is_sparse else dim for dim, is_sparse in zip(self.dims, self.sparse, strict=True))
        return replace(self, dims=tuple(dims))

    def factors(self) -> np.ndarray:
        """Return the factor of each column of the view (dim,), which is the weight of the column's encoder."""
        return np.repeat(self.weights, self.dims)


def _normalise_block(block: "TextVectors", steps: Sequence[str], weight: float) -> "TextVectors":
    """Normalise the vectors `block` (n, d) of one encoder by `steps`, and multiply them by `weight`. `block` is not
    changed, and is returned itself if there is nothing to do."""
    if is_sparse(block):
        for step in steps:
            if step in STEPS:
                block = unit_rows(block) if step == "l2" else _signed_roots(block)
            else:
                block = block * np.float32(factor_of(step))
        return block if weight == 1 else block * np.float32(weight)
    if not steps and weight == 1 and block.dtype == np.float32:
        return block
    block = normalise(to_float32(block), steps)
    block *= np.float32(weight)
    return block


def _signed_roots(block: "csr_array") -> "csr_array":
    roots = block.copy()
    roots.data = np.copysign(np.sqrt(np.abs(block.data)), block.data)
    return roots


def weightings(tried: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Return a list of all combinations of the weights in `tried`, which maps a text encoder to the weights to try. A
    combination maps each text encoder to one weight.

    A combination whose weights are all 0 is left out, because it would use no text encoder.
    """
    every = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    return [weights for weights in every if any(weights.values())]


class PairBlock(Protocol):
    """A block of n stored images with m sentences, whose vectors are not yet normalised.

    `features` maps an image encoder to (n, dim), and `sentences` maps a text encoder to (m, dim). Sentence j belongs to
    the image in row `owners[j]` of the block, for `owners` (m,).
    """

    @property
    def features(self) -> Features: ...
    @property
    def sentences(self) -> "Mapping[str, TextVectors]": ...
    @property
    def owners(self) -> np.ndarray: ...


class NumberedPairBlock(PairBlock, Protocol):
    """A PairBlock that also has the ids of its images, `image_id` (n,), and of its sentences, `sentence_id` (m,)."""

    @property
    def image_id(self) -> np.ndarray: ...
    @property
    def sentence_id(self) -> np.ndarray: ...


@dataclass(frozen=True)
class ViewBlock:
    """A block of b images with m sentences, already normalised by their views.

    `x` (b, D) float32 are rows of the image view, and `y` (m, d) are rows of the text view. Sentence j belongs to the
    image in row `owners[j]` of x, for `owners` (m,).
    """

    x: np.ndarray
    y: Rows
    owners: np.ndarray

    def images(self, rows: slice) -> "ViewBlock":
        """Return a block with the images of the slice `rows` and the sentences of these images. The slice must have a
        start and a stop. The `owners` of the result are counted from the start of the slice."""
        if rows == slice(0, len(self.x)):
            return self
        inside = (self.owners >= rows.start) & (self.owners < rows.stop)
        return ViewBlock(self.x[rows], self.y[inside], self.owners[inside] - rows.start)


@overload
def sum_by_owner(y: np.ndarray, owners: np.ndarray, n: int) -> np.ndarray: ...
@overload
def sum_by_owner(y: Rows, owners: np.ndarray, n: int) -> Rows: ...
def sum_by_owner(y: Rows, owners: np.ndarray, n: int) -> Rows:
    """Sum the vectors of the sentences of each image. Sentence j has the vector in row j of y (m, d), and belongs to
    image `owners[j]` of `n`.

    Return the sums (n, d), which are zero for an image without sentences. If sentence i is the only sentence of image i
    for all i, return `y` itself.
    """
    if len(owners) == n and (owners == np.arange(n)).all():
        return y
    left = owner_matrix(owners, n)
    return map_matrices(y, lambda matrix: left @ matrix)


def owner_matrix(owners: np.ndarray, n: int) -> "csr_array":
    """Return the sparse matrix (n, m) that has a 1 at (owners[j], j) for each of m sentences, and zeros elsewhere."""
    ones = np.ones(len(owners), np.float32)
    return scipy.sparse.csr_array((ones, (owners, np.arange(len(owners)))), shape=(n, len(owners)))
