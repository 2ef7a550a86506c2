"""Sums the moments of blocks of pairs on a CPU or a GPU. For models with feature maps, a second pass over the pairs
sums the moments of the mapped views."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from scipy.linalg.blas import get_blas_funcs
from scipy.sparse import csr_array

from pipeline.compute import runtime
from pipeline.models.joint_model import TextVectors
from pipeline.models.linear.moments import (
    MAX_DOUBLE_PRECISION_COLUMNS,
    SHIFT_ROWS,
    Moments,
    mapped_result,
    mapped_sums,
    mirror,
)
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
# BLAS's product of two matrices, and of a matrix with itself, in single precision.
_sgemm, _ssyrk = get_blas_funcs(("gemm", "syrk"), dtype=np.float32)
CROSS_COLUMNS = 256
"""Number of columns of a dense matrix that one task of a thread multiplies by a sparse matrix, as in the product Y'X of
sparse sentences Y and images X. A block of this width fits into the cache."""


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
    so two items are in memory. The second thread waits while the caller is in a function of scipy.linalg.blas, which
    holds the GIL."""
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
    if device is None:
        accumulator = MappedAccumulator(known, maps, runtime.threads())
    else:
        from pipeline.models.linear.device import DeviceMappedAccumulator  # The import of torch takes seconds.

        accumulator = DeviceMappedAccumulator(known, maps, device)
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
        _add_cross(self._yx, sums, z, self._threads)

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
        _in_threads(lambda rows: np.subtract(x[rows], shift, out=z[rows]), len(x), SHIFT_ROWS, self._threads)
        return z

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


class MappedAccumulator:
    """Accumulator of the moments of mapped views, in a second pass over the pairs, with NumPy and SciPy on the CPU.

    `maps` computes the new columns P (b, p) of the images and Q (m, q) of the sentences of a block. The method `add`
    sums the products of P and Q with each other and with the columns of the views. `known` are the moments of the views
    for the same pairs, from the first pass, and `threads` is the number of threads outside BLAS. P and Q are centred
    about their mean in the first block, because sums of squares about zero lose small variances in single precision.
    """

    def __init__(self, known: Moments, maps: "FeatureMaps", threads: int) -> None:
        self._known = known
        self._maps = maps
        self._threads = threads
        self._center = known.mean_x.astype(np.float32)
        self._shifts: tuple[np.ndarray, np.ndarray] | None = None
        self._sums = mapped_sums(known, maps)

    def add(self, block: ViewBlock) -> None:
        """Add the pairs of a block. Images without a sentence add nothing."""
        n = len(block.x)
        counts = np.bincount(block.owners, minlength=n).astype(np.float32)
        if not counts.any():
            return
        # An image without a sentence stays in x, but has the weight zero in all sums below.
        p = self._maps.image(block.x) if self._maps.image else np.empty((n, 0), np.float32)
        q = self._maps.text(block.y) if self._maps.text else np.empty((len(block.owners), 0), np.float32)
        if self._shifts is None:
            self._shifts = p.mean(axis=0), q.mean(axis=0)
        p -= self._shifts[0]
        q -= self._shifts[1]
        z = block.x - self._center
        sums = self._sums
        sums["x"] += counts @ z
        if self._maps.image:
            sums["p"] += counts @ p
            text_by_image = sum_by_owner(block.y, block.owners, n)
            _add_cross(sums["y_p"], text_by_image, p, self._threads)
        if self._maps.text:
            sums["q"] += q.sum(axis=0)
            _add_cross(sums["y_q"], block.y, q, self._threads)
            _add_square(sums["qq"], q)
            q_by_image = sum_by_owner(q, block.owners, n)
            _add_product(sums["x_q"], z, q_by_image)
            _add_product(sums["pq"], p, q_by_image)
        if self._maps.image:
            # These products count an image once for each of its sentences, so the factors are multiplied by the square
            # root of this number. The products above need no factor, because they sum over all sentences of an image.
            if (counts != 1).any():
                roots = np.sqrt(counts)[:, None]
                p *= roots
                z *= roots
            _add_product(sums["x_p"], z, p)
            _add_square(sums["pp"], p)

    def result(self) -> Moments:
        """Return the moments of the mapped views. All pairs of `known` must have been added, and there must be a pair.

        The accumulator must not be used afterwards.
        """
        assert self._shifts is not None  # At least one pair was added.
        return mapped_result(self._known, self._maps, self._sums, self._shifts)


def _add_product(total: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
    """Add the product left' right to `total` (d, e) in place, for `left` (n, d) and `right` (n, e). All arrays are
    float32 and contiguous, so that BLAS copies none of them: their transposes are in Fortran order."""
    if total.size:
        _sgemm(1, right.T, left.T, beta=1, c=total.T, trans_b=True, overwrite_c=True)


def _add_square(total: np.ndarray, rows: np.ndarray) -> None:
    """Add the lower triangle of rows' rows to `total` (d, d) in place, for `rows` (n, d), both float32 and contiguous.

    BLAS (`syrk`) computes only one triangle of this symmetric product.
    """
    _ssyrk(1, rows.T, beta=1, c=total.T, overwrite_c=True)


def _add_cross(total: np.ndarray, y: Rows, other: np.ndarray, threads: int) -> None:
    """Add the product y' other to `total` (d, k) in place, for y (n, d), dense or sparse, and `other` (n, k). Sparse
    matrices are multiplied in several `threads`."""
    for rows, part in spans(y):
        if is_sparse(part):
            _add_sparse_cross(total[rows], part.T.tocsr(), other, threads)
        else:
            total[rows] += part.T @ other


def _add_sparse_cross(total: np.ndarray, transposed: csr_array, other: np.ndarray, threads: int) -> None:
    def add_columns(columns: slice) -> None:
        total[:, columns] += transposed @ other[:, columns]

    _in_threads(add_columns, other.shape[1], CROSS_COLUMNS, threads)


def _in_threads(function: Callable[[slice], object], length: int, step: int, threads: int) -> None:
    """Call `function` in several `threads` on slices of `step` items, which together cover `length` items. Return after
    all calls have ended.

    The threads run at the same time, because NumPy and the sparse products of SciPy release the GIL.
    """
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(function, [slice(start, start + step) for start in range(0, length, step)]))


def scale_rows(part: "TextVectors", factors: np.ndarray) -> "TextVectors":
    """Return a copy of `part` (n, d), dense or sparse, whose row i is multiplied by factors[i]."""
    return csr_array(part.multiply(factors[:, None])) if is_sparse(part) else part * factors[:, None]
