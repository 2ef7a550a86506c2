"""The views of a linear model: the features of image encoders, and the vectors of text encoders, side by side, each
normalised on its own; sparse and dense, without a copy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import scipy  # whose parts it imports when they are used: dense views do without

from pipeline.compute.precision import scale_to_unit_length, to_float32
from pipeline.encoders.tfidf import unit_rows
from pipeline.errors import IntegrityError

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Columns:
    """The `matrices`, each (n, d_k), dense or sparse, of numpy or of torch: one view of d columns."""

    def __init__(self, matrices: Sequence[Any]) -> None:
        self.matrices = tuple(matrices)
        self.shape = (self.matrices[0].shape[0], sum(matrix.shape[1] for matrix in self.matrices))

    def __getitem__(self, rows: Any) -> "Columns":
        """The rows `rows`, a slice or an array."""
        return self.map(lambda matrix: matrix[rows])

    def map(self, function: Callable[[Any], Any]) -> "Columns":
        """`function` of each matrix."""
        return Columns([function(matrix) for matrix in self.matrices])

    def __matmul__(self, right: Any) -> Any:
        """(n, c): the product with `right` (d, c)."""
        return sum(matrix @ right[columns] for columns, matrix in spans(self))


Rows = "np.ndarray | csr_array | Columns"
"""Images (n, D) dense, or sentences (n, d) sparse, dense, or both side by side."""


def is_sparse(matrix: Any) -> bool:
    """Whether a matrix of numpy, scipy or torch is sparse."""
    return not isinstance(matrix, np.ndarray) and getattr(matrix, "is_sparse", True)


def matrices_of(rows: Any) -> Sequence[Any]:
    """The matrices that `rows` consist of, from left to right."""
    return rows.matrices if isinstance(rows, Columns) else (rows,)


def spans(rows: Any) -> Iterator[tuple[slice, Any]]:
    """Each matrix with its columns."""
    start = 0
    for matrix in matrices_of(rows):
        yield slice(start, start + matrix.shape[1]), matrix
        start += matrix.shape[1]


def side_by_side(matrices: Sequence[Any]) -> Any:
    """`matrices` as one view; a single one as it is."""
    return matrices[0] if len(matrices) == 1 else Columns(matrices)


def map_matrices(rows: Rows, function: Callable[[Any], Any]) -> Rows:
    """`function` of each matrix, side by side."""
    return side_by_side([function(matrix) for matrix in matrices_of(rows)])


def stack_blocks(blocks: Sequence[Rows]) -> Rows:
    """The rows of all `blocks`, one after another."""
    return side_by_side([_stacked(matrices) for matrices in zip(*map(matrices_of, blocks), strict=True)])


def _stacked(matrices: Sequence[Any]) -> Any:
    return scipy.sparse.vstack(matrices, format="csr") if is_sparse(matrices[0]) else np.concatenate(matrices)


def one_matrix(rows: Rows) -> "np.ndarray | csr_array":
    """The same values in one matrix, which is sparse where a matrix of it is."""
    matrices = matrices_of(rows)
    if len(matrices) == 1:
        return matrices[0]
    if any(map(is_sparse, matrices)):
        return scipy.sparse.hstack([scipy.sparse.csr_array(matrix) for matrix in matrices], format="csr")
    return np.concatenate(matrices, axis=1)


def as_sparse(rows: Rows) -> "csr_array":
    """The same values in one sparse matrix."""
    return scipy.sparse.csr_array(one_matrix(rows))


STEPS = ("sqrt", "l2")
"""What can be done to the features of an image, in `normalise`."""


def _require_known(steps: Sequence[str | Sequence[str]]) -> None:
    """Of a view that was stored, perhaps elsewhere."""
    named = {name for step in steps for name in ((step,) if isinstance(step, str) else step)}
    if unknown := named - {*STEPS}:
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

    def select_blocks(self, blocks: Mapping[str, Any]) -> Iterator[Any]:
        """The vectors of each encoder among `blocks`, encoder -> (n, its dim), unchanged. Raises IntegrityError when an
        encoder is missing or has another dimension."""
        n = next(iter(blocks.values())).shape[0] if blocks else 0
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
    """The features of encoders of images, with the `steps` (`sqrt`, `l2`) applied to each block; a tuple of steps for
    each encoder, where these differ."""

    vectors: ClassVar[str] = "features of encoder"
    steps: tuple[str, ...] | tuple[tuple[str, ...], ...]

    @classmethod
    def from_dict(cls, value: Mapping[str, Sequence]) -> "ImageView":
        """From JSON's lists; ignores other keys. Raises ValueError for a step that is none of STEPS."""
        steps = [step if isinstance(step, str) else tuple(step) for step in value["steps"]]
        _require_known(steps)
        return cls(tuple(value["encoders"]), tuple(value["dims"]), tuple(steps))

    @property
    def steps_of_each(self) -> tuple[tuple[str, ...], ...]:
        """The steps of each encoder."""
        alike = not self.steps or isinstance(self.steps[0], str)
        return (self.steps,) * len(self.encoders) if alike else self.steps

    def stack(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, dim) float32 from `features`, encoder -> (n, its dim) float16 or float32. Raises as `select_blocks`."""
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
        names, dims, steps = (
            tuple(column[place] for place in kept) for column in (self.encoders, self.dims, self.steps_of_each)
        )
        return ImageView(names, dims, steps[0] if len(set(steps)) == 1 else steps)


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
    def of(cls, sentences: Mapping[str, Any], steps: Mapping[str, Sequence[str]] | None = None) -> "TextView":
        """That of `sentences`, text encoder -> (n, its dim), each by its `steps` and with the weight 1."""
        dims, kinds = zip(*((block.shape[1], is_sparse(block)) for block in sentences.values()), strict=True)
        of_encoders = tuple(tuple((steps or {}).get(name, ())) for name in sentences)
        return cls(tuple(sentences), dims, kinds, of_encoders, (1.0,) * len(dims))

    @classmethod
    def from_dict(cls, value: Mapping[str, Sequence]) -> "TextView":
        """From JSON's lists; ignores other keys. Raises ValueError for a step that is none of STEPS."""
        steps = tuple(map(tuple, value["steps"]))
        _require_known(steps)
        return cls(**{**{entry.name: tuple(value[entry.name]) for entry in fields(cls)}, "steps": steps})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def weight_of(self) -> dict[str, float]:
        """The weight of each encoder's columns."""
        return dict(zip(self.encoders, self.weights, strict=True))

    def stack(self, sentences: Mapping[str, Any]) -> Rows:
        """(n, dim) from `sentences`, text encoder -> (n, its dim), sparse or dense; sparse ones stay sparse. Raises as
        `select_blocks`."""
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


def _prepared(block: Any, steps: Sequence[str], weight: float) -> Any:
    """The vectors (n, d) of one encoder, normalised and weighted."""
    if is_sparse(block):
        for step in steps:
            block = unit_rows(block) if step == "l2" else block.sign() * abs(block).sqrt()
        return block if weight == 1 else block * np.float32(weight)
    if not steps and weight == 1 and block.dtype == np.float32:
        return block
    block = normalise(to_float32(block), steps)
    block *= np.float32(weight)
    return block


def weightings(tried: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of the weights `tried` of each text encoder, but for those without a positive one."""
    every = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    return [weights for weights in every if any(weights.values())]


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
