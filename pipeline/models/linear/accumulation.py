"""Sums the moments of blocks of pairs on a CPU or a GPU. For models with feature maps, a second pass over the pairs
sums the moments of the mapped views."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.linalg.blas import get_blas_funcs
from scipy.sparse import csr_array

from pipeline.models.joint_model import TextVectors
from pipeline.models.linear.moments import MAX_DOUBLE_PRECISION_COLUMNS, SHIFT_ROWS, Moments, mirror
from pipeline.models.linear.views import (
    ImageView,
    PairBlock,
    Rows,
    TextView,
    ViewBlock,
    is_sparse,
    map_matrices,
    matrices_of,
    shape_of,
    side_by_side,
    spans,
    sum_by_owner,
)

if TYPE_CHECKING:
    import torch

    from pipeline.models.linear.feature_maps import FeatureMaps

Item = TypeVar("Item")
CROSS_COLUMNS = 256
"""Number of columns of X in one task of a thread that computes the product Y'X of sparse sentences Y and images X. A
block of this width fits into the cache."""


def sum_blocks(
    blocks: Iterable[PairBlock], view: ImageView, text: TextView, threads: int, device: "torch.device | None" = None
) -> Moments:
    """Return the moments of all pairs in `blocks`, summed in one pass on `device`, or with NumPy if `device` is None.

    `view` and `text` normalise the stored vectors. A block should have at most BLOCK_ROWS images, because its products
    may be summed in single precision. `threads` is the number of threads besides the threads of BLAS, and is only used
    with NumPy. Without pairs, the moments are zero.
    """
    if device is None:
        accumulator = MomentsAccumulator(view.dim, text.dim, threads)
        for block in ahead(blocks):
            accumulator.add(view.stack(block.features), text.stack(block.sentences), block.owners)
        return accumulator.result()
    from pipeline.models.linear.device import DeviceAccumulator  # The import of torch takes seconds.

    on_device = DeviceAccumulator(view, text.dim, device)
    for block in ahead(blocks):
        on_device.add(block.features, text.stack(block.sentences), block.owners)
    return on_device.result()


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the `items` in their order. While the caller uses an item, a second thread already produces the next item,
    so two items are in memory."""
    waiting = iter(items)
    end = object()
    with ThreadPoolExecutor(1) as thread:
        coming: Future[Any] = thread.submit(next, waiting, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, waiting, end)
            yield item


def mapped_moments(
    known: Moments, blocks: Iterable[ViewBlock], maps: "FeatureMaps", device: "torch.device | None" = None
) -> Moments:
    """Return the moments of the mapped views [x, P] and [y, Q] of the pairs in `blocks`, summed on `device`, or on the
    CPU if `device` is None.

    P and Q are the columns that `maps` computes from x and y. If a map does not keep the columns of its view, the
    mapped view is P or Q alone. A view without a map stays unchanged. `known` are the moments of x and y for the same
    pairs, so only products with P or Q are computed. Sparse matrices of y stay sparse. P and Q are computed for one
    block at a time.
    """
    import torch  # The import takes seconds, and only fits with feature maps need torch.

    from pipeline.models.linear.device import MappedAccumulator

    accumulator = MappedAccumulator(known, maps, device or torch.device("cpu"))
    for block in ahead(blocks):
        accumulator.add(block)
    return accumulator.result()


class MomentsAccumulator:
    """Accumulator of the moments of blocks of pairs in one pass, with NumPy and SciPy on the CPU.

    `add` adds a block, and `result` returns the moments. `dim_x` and `dim_y` are the numbers of columns of the image
    view X and of the text view Y, and `threads` is the number of threads outside BLAS. The sums are float64 if both
    views together have at most MAX_DOUBLE_PRECISION_COLUMNS columns, and otherwise float32.

    BLAS (`syrk`) computes only half of each symmetric product X'X. Sparse matrices of Y are multiplied as sparse
    matrices, and dense matrices as dense matrices. Dense columns are centred about a provisional mean, which is the
    mean of the first rows of the first block, because a float32 sum of squares about zero loses the variance of a
    feature whose mean is far from zero. On a CPU, this class takes half to three quarters of the CPU seconds of
    DeviceAccumulator.
    """

    def __init__(self, dim_x: int, dim_y: int, threads: int) -> None:
        self._dtype = np.float64 if dim_x + dim_y <= MAX_DOUBLE_PRECISION_COLUMNS else np.float32
        self._n = 0.0
        self._shift: np.ndarray | None = None
        self._shift_y: np.ndarray | None = None
        self._sum_x = np.zeros(dim_x)
        self._sum_y = np.zeros(dim_y)
        self._xx = np.zeros((dim_x, dim_x), self._dtype)  # Only the upper triangle is summed.
        self._yx = np.zeros((dim_y, dim_x), self._dtype)
        self._yy = np.zeros((dim_y, dim_y), self._dtype)
        self._squares_y = np.zeros(dim_y)
        (self._add_square_of,) = get_blas_funcs(("syrk",), dtype=self._dtype)
        self._threads = threads
        self._buffer = np.empty((0, dim_x), self._dtype)

    def add(self, x: np.ndarray, y: Rows, owners: np.ndarray) -> None:
        """Add a block of image vectors x (b, D) float32 and sentence vectors y (m, d), ideally with b = BLOCK_ROWS.

        x and y are already normalised by their views. Sentence j belongs to the image in row `owners[j]` of x, for
        `owners` (m,). Images without a sentence add nothing. The arrays are not changed.
        """
        sums, counts = self._sum_sentences(y, owners, len(x))
        if not counts.all():
            x = x[counts > 0]
            sums = sums[counts > 0]
            counts = counts[counts > 0]
        if not len(x):
            return
        if self._shift is None:
            self._shift = self._mean_of(x)
        z = self._subtract_shift(x)
        # Each row of x is added once for each of its sentences. If all rows have the same number of sentences, the
        # products are multiplied by this number. Otherwise each row is multiplied by the square root of its number of
        # sentences.
        equal = (counts == counts[0]).all()
        factor, root = (counts[0], np.ones(len(z), self._dtype)) if equal else (1, np.sqrt(counts, dtype=self._dtype))
        if not equal:
            z *= root[:, None]
            sums = map_matrices(sums, lambda part: scale_rows(part, 1 / root))
        self._sum_x += factor * (root @ z)
        # The transposed arrays are in Fortran order, so BLAS does not copy them.
        self._xx = self._add_square_of(factor, z.T, beta=1, c=self._xx.T, lower=1, overwrite_c=1).T
        self._add_cross(z, sums)

    def _sum_sentences(self, y: Rows, owners: np.ndarray, n: int) -> tuple[Rows, np.ndarray]:
        """Add the sentence vectors y (m, d), and their products with each other, to the sums of the text view.

        Return for each of the `n` images the sum of its sentence vectors (n, d), whose dense columns are centred, and
        the number of its sentences (n,). Sentence j belongs to image `owners[j]`.
        """
        if not len(owners):
            return sum_by_owner(y, owners, n), np.zeros(n, int)
        if self._shift_y is None:
            self._shift_y = np.concatenate([self._mean_of(part) for part in matrices_of(y)])
        shift = self._shift_y
        self._n += len(owners)
        blocks = [(columns, self._centred(part, shift[columns])) for columns, part in spans(y)]
        for number, (rows, left) in enumerate(blocks):
            if is_sparse(left):
                exact = left.astype(np.float64)
                self._sum_y[rows] += exact.sum(axis=0)
                self._squares_y[rows] += exact.multiply(exact).sum(axis=0)
            else:
                self._sum_y[rows] += left.sum(axis=0)
            for columns, right in blocks[number:]:
                self._add_square((rows, columns), left, right)
        y = side_by_side([part for _, part in blocks])
        return sum_by_owner(y, owners, n), np.bincount(owners, minlength=n)

    def _mean_of(self, part: "TextVectors") -> np.ndarray:
        """Compute the provisional mean (d,) of `part` (n, d), a matrix of a view: the mean of its first SHIFT_ROWS
        rows. The mean of a sparse matrix is taken as zero, because the matrix would become dense if a mean were
        subtracted."""
        if is_sparse(part):
            return np.zeros(shape_of(part)[1], self._dtype)
        return part[:SHIFT_ROWS].mean(axis=0, dtype=self._dtype)

    def _centred(self, part: "TextVectors", shift: np.ndarray) -> "TextVectors":
        """Convert sentence vectors `part` (m, d) to the precision of the sums, and subtract the provisional mean
        `shift` (d,) if they are dense. Sparse vectors stay sparse, and nothing is subtracted from them."""
        if is_sparse(part):
            return part if part.dtype == self._dtype else csr_array(part, dtype=self._dtype)
        return np.subtract(part, shift, dtype=self._dtype)

    def _add_square(self, block: tuple[slice, slice], left: "TextVectors", right: "TextVectors") -> None:
        """Add the product left' right of two matrices of y, which may be the same matrix, to a `block` of Y'Y.

        `block` has the slices of rows and columns of Y'Y where the product belongs. The block is on or above the
        diagonal of Y'Y.
        """
        if is_sparse(left) and is_sparse(right):
            square = (left.T @ right).tocoo()
            row = square.row.astype(np.int64) + block[0].start
            column = square.col + block[1].start
            self._yy.reshape(-1)[row * len(self._yy) + column] += square.data
        else:
            self._yy[block] += (right.T @ left).T if is_sparse(right) else left.T @ right

    def _subtract_shift(self, x: np.ndarray) -> np.ndarray:
        """Compute image vectors x (b, D) minus the provisional mean. The result is a buffer that the next call
        overwrites, because the allocation of new memory takes as long as the subtraction."""
        assert self._shift is not None
        shift = self._shift
        if len(self._buffer) < len(x):
            self._buffer = np.empty(x.shape, self._dtype)
        z = self._buffer[: len(x)]
        self._in_threads(lambda rows: np.subtract(x[rows], shift, out=z[rows]), len(x), SHIFT_ROWS)
        return z

    def _add_cross(self, z: np.ndarray, sums: Rows) -> None:
        for rows, part in spans(sums):
            if is_sparse(part):
                self._add_sparse_cross(self._yx[rows], part.T.tocsr(), z)
            else:
                self._yx[rows] += part.T @ z

    def _add_sparse_cross(self, total: np.ndarray, transposed: csr_array, z: np.ndarray) -> None:
        def add_columns(columns: slice) -> None:
            total[:, columns] += transposed @ z[:, columns]

        self._in_threads(add_columns, z.shape[1], CROSS_COLUMNS)

    def _in_threads(self, function: Callable[[slice], object], length: int, step: int) -> None:
        """Call `function` in several threads on slices of `step` items, which together cover `length` items. Return
        after all calls have ended.

        The threads run at the same time, because NumPy and SciPy release the GIL.
        """
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(function, [slice(start, start + step) for start in range(0, length, step)]))

    def result(self) -> Moments:
        """Return the moments of all added blocks. The moments are zero if no pair was added. The accumulator must not
        be used afterwards, because this method changes its sums in place."""
        if self._shift is None or self._shift_y is None:
            return Moments.zero(len(self._sum_x), len(self._sum_y))
        offset = self._sum_x / self._n
        offset_y = self._sum_y / self._n
        left, right = ((np.sqrt(self._n) * mean).astype(self._dtype) for mean in (offset, offset_y))
        # BLAS subtracts the products of the means in place. NumPy would need three more passes over each sum.
        (subtract,) = get_blas_funcs(("ger",), dtype=self._dtype)
        xx, xy, yy = (
            subtract(-1.0, a, b, a=total.T, overwrite_a=1)
            for a, b, total in ((left, left, self._xx), (left, right, self._yx), (right, right, self._yy))
        )
        # Sparse columns have no provisional mean, so single precision would lose the variance of a nearly constant
        # column. The variances of sparse columns are therefore replaced by values in double precision.
        exact = np.flatnonzero(self._squares_y)
        yy[exact, exact] = (self._squares_y - self._n * offset_y**2)[exact]
        return Moments(float(self._n), self._shift + offset, self._shift_y + offset_y, mirror(xx.T), xy, mirror(yy.T))


def scale_rows(part: "TextVectors", factors: np.ndarray) -> "TextVectors":
    """Return a copy of `part` (n, d), dense or sparse, whose row i is multiplied by factors[i]."""
    return csr_array(part.multiply(factors[:, None])) if is_sparse(part) else part * factors[:, None]
