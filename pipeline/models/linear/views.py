"""The views of a linear model: the features of image encoders, and the vectors of text encoders, side by side, each
normalised on its own; sparse and dense, without a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from itertools import product
from operator import add
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
import scipy  # Its parts are imported when they are used: dense views do not need them.

from pipeline.compute.precision import scale_to_unit_length, to_float32
from pipeline.encoders.tfidf import unit_rows
from pipeline.errors import IntegrityError
from pipeline.models.joint_model import Features, Settings, TextVectors, read_list

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from torch import Tensor
    from typing_extensions import TypeIs

Matrix = TypeVar("Matrix", bound="np.ndarray | csr_array | Tensor")
"""A matrix (n, d) of NumPy, SciPy or PyTorch."""
Other = TypeVar("Other", bound="np.ndarray | csr_array | Tensor")


class Columns(Generic[Matrix]):
    """One view of d columns: the `matrices`, each (n, d_k), dense or sparse, side by side."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.matrices = tuple(matrices)
        self.shape = (shape_of(self.matrices[0])[0], sum(shape_of(matrix)[1] for matrix in self.matrices))

    def __getitem__(self, rows: slice | np.ndarray) -> "Columns":
        return Columns([matrix[rows] for matrix in self.matrices])

    def __matmul__(self, right: "np.ndarray | Tensor") -> Any:
        """Multiply by `right` (d, c) of the same library, (n, c)."""
        return reduce(add, [matrix @ right[columns] for columns, matrix in spans(self)])


Rows: TypeAlias = "np.ndarray | csr_array | Columns"
"""Images (n, D) dense, or sentences (n, d) sparse, dense, or both side by side."""


def shape_of(matrix: "np.ndarray | csr_array | Tensor | Columns") -> tuple[int, int]:
    """Return the shape of a matrix."""
    return matrix.shape  # pyright: ignore[reportReturnType]  # SciPy has no types for the shape of a sparse array


def is_sparse(matrix: "np.ndarray | csr_array | Tensor") -> "TypeIs[csr_array]":
    """Return whether a matrix of NumPy, SciPy or PyTorch is sparse."""
    return not isinstance(matrix, np.ndarray) and getattr(matrix, "is_sparse", True)


def matrices_of(rows: "Matrix | Columns[Matrix]") -> Sequence[Matrix]:
    """Return the matrices of `rows` from left to right."""
    return rows.matrices if isinstance(rows, Columns) else (rows,)


def spans(rows: "Matrix | Columns[Matrix]") -> Iterator[tuple[slice, Matrix]]:
    """Yield each matrix with its columns."""
    start = 0
    for matrix in matrices_of(rows):
        width = shape_of(matrix)[1]
        yield slice(start, start + width), matrix
        start += width


def side_by_side(matrices: Sequence[Matrix]) -> "Matrix | Columns[Matrix]":
    """Join `matrices` into one view; a single one stays as it is."""
    return matrices[0] if len(matrices) == 1 else Columns(matrices)


def map_matrices(rows: "Matrix | Columns[Matrix]", function: Callable[[Matrix], Other]) -> "Other | Columns[Other]":
    """Apply `function` to each matrix."""
    if isinstance(rows, Columns):
        return Columns([function(matrix) for matrix in rows.matrices])
    return function(rows)


def stack_blocks(blocks: Sequence[Rows]) -> Rows:
    """Stack the rows of all `blocks`, one after another."""
    return side_by_side([_stack(matrices) for matrices in zip(*map(matrices_of, blocks), strict=True)])


def _stack(matrices: "Sequence[TextVectors]") -> "TextVectors":
    dense = [matrix for matrix in matrices if not is_sparse(matrix)]
    return np.concatenate(dense) if dense else scipy.sparse.vstack(matrices, format="csr")


def one_matrix(rows: Rows) -> "TextVectors":
    """Join the values in one matrix, which is sparse if one of its matrices is."""
    matrices = matrices_of(rows)
    if len(matrices) == 1:
        return matrices[0]
    dense = [matrix for matrix in matrices if not is_sparse(matrix)]
    if len(dense) == len(matrices):
        return np.concatenate(dense, axis=1)
    return scipy.sparse.hstack([scipy.sparse.csr_array(matrix) for matrix in matrices], format="csr")


def as_sparse(rows: Rows) -> "csr_array":
    """Join the values in one sparse matrix."""
    return scipy.sparse.csr_array(one_matrix(rows))


STEPS = ("sqrt", "l2")
"""Steps of `normalise`."""
Steps = tuple[str, ...]


def _require_known(steps: Sequence[Steps]) -> None:
    """Check the steps of a view that was stored, perhaps elsewhere."""
    if unknown := {name for names in steps for name in names} - {*STEPS}:
        raise ValueError(f"unknown step {min(unknown)}; there are {', '.join(STEPS)}")


@dataclass(frozen=True)
class View:
    """`encoders` in order and the `dims` of their vectors, side by side."""

    vectors: ClassVar[str]
    encoders: tuple[str, ...]
    dims: tuple[int, ...]

    @property
    def dim(self) -> int:
        return sum(self.dims)

    def select_blocks(self, blocks: Mapping[str, Matrix]) -> Iterator[Matrix]:
        """Yield the vectors of each encoder among `blocks`, encoder -> (n, its dim), unchanged. Raises IntegrityError
        if an encoder is missing or has another dimension."""
        n = shape_of(next(iter(blocks.values())))[0] if blocks else 0
        for name, dim in zip(self.encoders, self.dims, strict=True):
            if name not in blocks:
                raise IntegrityError(f"{self.vectors} {name} are missing (given: {', '.join(blocks)})")
            if blocks[name].shape != (n, dim):
                raise IntegrityError(f"{self.vectors} {name} have shape {blocks[name].shape}, not {(n, dim)}")
            yield blocks[name]

    def places(self, encoders: Sequence[str]) -> list[int]:
        """The places of some of the encoders, in this view's order. Raises IntegrityError for one that it has not."""
        if missing := set(encoders) - set(self.encoders):
            raise IntegrityError(f"no {self.vectors} {min(missing)} (there are {', '.join(self.encoders)})")
        return [place for place, name in enumerate(self.encoders) if name in encoders]

    def columns(self, part: "View") -> np.ndarray:
        """The columns of another view, `part`, which has some of the encoders and the first columns of each."""
        starts = dict(zip(self.encoders, np.cumsum([0, *self.dims[:-1]]), strict=True))
        chosen = zip(part.encoders, part.dims, strict=True)
        return np.concatenate([np.arange(starts[name], starts[name] + dim) for name, dim in chosen])


@dataclass(frozen=True)
class ImageView(View):
    """Features of image encoders, with `steps` (`sqrt`, `l2`): one tuple for all encoders, or one per encoder."""

    vectors: ClassVar[str] = "features of encoder"
    steps: Steps | tuple[Steps, ...]

    @classmethod
    def from_dict(cls, value: Settings) -> "ImageView":
        """Restore a view from JSON; other keys are ignored. Raises ValueError for a step that is not one of STEPS."""
        steps = read_list(value, "steps")
        view = cls(tuple(read_list(value, "encoders")), tuple(read_list(value, "dims")), _to_steps(steps))
        _require_known(view.steps_of_each)
        return view

    @property
    def steps_of_each(self) -> tuple[Steps, ...]:
        """The steps of each encoder."""
        if shared := [step for step in self.steps if isinstance(step, str)]:
            return (tuple(shared),) * len(self.encoders)
        return tuple(steps for steps in self.steps if not isinstance(steps, str)) or ((),) * len(self.encoders)

    def stack(self, features: Features) -> np.ndarray:
        """Stack `features`, encoder -> (n, its dim), to (n, dim) float32. Raises as `select_blocks`."""
        x = np.empty((len(next(iter(features.values()))), self.dim), np.float32)
        blocks = zip(self.select_blocks(features), self.split(x).values(), self.steps_of_each, strict=True)
        for block, part, steps in blocks:
            normalise(to_float32(block, part), steps)
        return x

    def split(self, stacked: np.ndarray) -> dict[str, np.ndarray]:
        """Encoder -> its columns of `stacked` (n, dim)."""
        return dict(zip(self.encoders, np.split(stacked, np.cumsum(self.dims)[:-1], axis=1), strict=True))

    def select(self, encoders: Sequence[str]) -> "ImageView":
        """The view of some of the encoders, in this view's order."""
        kept = self.places(encoders)
        names = tuple(self.encoders[place] for place in kept)
        dims = tuple(self.dims[place] for place in kept)
        steps = tuple(self.steps_of_each[place] for place in kept)
        return ImageView(names, dims, steps[0] if len(set(steps)) == 1 else steps)


def _to_steps(steps: Sequence[str | Sequence[str]]) -> Steps | tuple[Steps, ...]:
    """Convert JSON's lists of steps: one list for all encoders, or one per encoder."""
    names = tuple(step for step in steps if isinstance(step, str))
    return names or tuple(tuple(step) for step in steps)


def normalise(x: np.ndarray, steps: Sequence[str]) -> np.ndarray:
    """Apply `steps` to the rows of x (n, d) in place: `sqrt` keeps the sign, `l2` leaves zero rows unchanged."""
    for step in steps:
        if step == "sqrt":
            root = np.abs(x)
            np.sqrt(root, out=root)
            np.copysign(root, x, out=x)
        else:
            scale_to_unit_length(x)
    return x


@dataclass(frozen=True)
class TextView(View):
    """The vectors of text encoders: of each whether they are `sparse`, the `steps` (`sqrt`, `l2`) of their
    normalisation, and the `weights` by which its columns are multiplied then."""

    vectors: ClassVar[str] = "vectors of text encoder"
    sparse: tuple[bool, ...]
    steps: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, sentences: "Mapping[str, TextVectors]", steps: Mapping[str, Sequence[str]] | None = None) -> "TextView":
        """Describe `sentences`, text encoder -> (n, its dim), each with its `steps` and the weight 1."""
        dims = tuple(shape_of(block)[1] for block in sentences.values())
        sparse = tuple(is_sparse(block) for block in sentences.values())
        of_encoders = tuple(tuple((steps or {}).get(name, ())) for name in sentences)
        return cls(tuple(sentences), dims, sparse, of_encoders, (1.0,) * len(dims))

    @classmethod
    def from_dict(cls, value: Settings) -> "TextView":
        """Restore a view from JSON; other keys are ignored. Raises ValueError for a step that is not one of STEPS."""
        steps = tuple(map(tuple, read_list(value, "steps")))
        _require_known(steps)
        return cls(**{**{entry.name: tuple(read_list(value, entry.name)) for entry in fields(cls)}, "steps": steps})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def weight_of(self) -> dict[str, float]:
        """The weight of each encoder's columns."""
        return dict(zip(self.encoders, self.weights, strict=True))

    def stack(self, sentences: "Mapping[str, TextVectors]") -> Rows:
        """Stack text encoder -> (n, its dim) to (n, dim); sparse vectors stay sparse. Raises as `select_blocks`."""
        blocks = zip(self.select_blocks(sentences), self.steps, self.weights, strict=True)
        return side_by_side([_prepared(block, steps, weight) for block, steps, weight in blocks])

    def select(self, encoders: Sequence[str]) -> "TextView":
        """The view of some of the encoders, in this view's order."""
        kept = self.places(encoders)
        return TextView(*(tuple(value[i] for i in kept) for value in vars(self).values()))

    def weighted(self, weights: Mapping[str, float]) -> "TextView":
        """This view with other weights, without the encoders whose weight is 0."""
        view = self.select([name for name in self.encoders if weights.get(name, 1.0)])
        return replace(view, weights=tuple(float(weights.get(name, 1.0)) for name in view.encoders))

    @property
    def unnormalised(self) -> "TextView":
        """This view without its steps."""
        return replace(self, steps=((),) * len(self.encoders))

    def first_terms(self, terms: int | None) -> "TextView":
        """This view with at most the first `terms` columns of each sparse block; None: all."""
        if terms is None:
            return self
        dims = (min(dim, terms) if is_sparse else dim for dim, is_sparse in zip(self.dims, self.sparse, strict=True))
        return replace(self, dims=tuple(dims))

    def factors(self) -> np.ndarray:
        """(dim,) the weight of each column."""
        return np.repeat(self.weights, self.dims)


def _prepared(block: "TextVectors", steps: Sequence[str], weight: float) -> "TextVectors":
    """Normalise and weight the vectors (n, d) of one encoder."""
    if is_sparse(block):
        for step in steps:
            block = unit_rows(block) if step == "l2" else _signed_roots(block)
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
    """Every combination of the weights `tried` of each text encoder, but for those without a positive one."""
    every = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    return [weights for weights in every if any(weights.values())]


class PairBlock(Protocol):
    """Stored images, `features`, with m `sentences`, text encoder -> (m, dim), and `owners` (m,), their images."""

    @property
    def features(self) -> Features: ...
    @property
    def sentences(self) -> "Mapping[str, TextVectors]": ...
    @property
    def owners(self) -> np.ndarray: ...


class NumberedPairBlock(PairBlock, Protocol):
    """A block that also has the id of each image and of each sentence."""

    @property
    def image_id(self) -> np.ndarray: ...
    @property
    def sentence_id(self) -> np.ndarray: ...


@dataclass(frozen=True)
class ViewBlock:
    """Pairs: images x (b, D) float32, their sentences y (m, d), and owners (m,), the row of x of each."""

    x: np.ndarray
    y: Rows
    owners: np.ndarray

    def images(self, rows: slice) -> "ViewBlock":
        """The images `rows`, from a start to a stop, with their sentences."""
        if rows == slice(0, len(self.x)):
            return self
        inside = (self.owners >= rows.start) & (self.owners < rows.stop)
        return ViewBlock(self.x[rows], self.y[inside], self.owners[inside] - rows.start)


def sum_by_owner(y: Rows, owners: np.ndarray, n: int) -> Rows:
    """(n, d): the sum of the rows of y of each owner."""
    if len(owners) == n and (owners == np.arange(n)).all():
        return y
    left = owner_matrix(owners, n)
    return map_matrices(y, lambda part: left @ part)


def owner_matrix(owners: np.ndarray, n: int) -> "csr_array":
    """(n, m) with a 1 at (owners[j], j)."""
    ones = np.ones(len(owners), np.float32)
    return scipy.sparse.csr_array((ones, (owners, np.arange(len(owners)))), shape=(n, len(owners)))
