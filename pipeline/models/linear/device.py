"""Linear models in PyTorch, on a CPU or a GPU: views as tensors, projections, and moments.

DeviceAccumulator sums the moments of views on a GPU. DeviceMappedAccumulator sums the moments of mapped views on a GPU,
in a second pass over the data.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional

from pipeline.compute.device import OomBatcher, full_float32, upload
from pipeline.compute.precision import fast_at_float64
from pipeline.models.joint_model import Features, TextVectors
from pipeline.models.linear.feature_maps import DeviceMap, FeatureMap, FeatureMaps, project
from pipeline.models.linear.moments import (
    BLOCK_ROWS,
    MAX_DOUBLE_PRECISION_COLUMNS,
    SHIFT_ROWS,
    Moments,
    mapped_result,
    mapped_sums,
    mirror,
)
from pipeline.models.linear.views import (
    Columns,
    ImageView,
    Rows,
    ViewBlock,
    factor_of,
    is_sparse,
    map_matrices,
    matrices_of,
    owner_matrix,
    shape_of,
    spans,
    sum_by_owner,
)

MAX_PROJECTED_ROWS = 1 << 15
"""Maximum number of images, or of sentences, that `Projections` projects at once. If the memory of a GPU is too small,
the number is lowered."""


def stack_on(view: ImageView, features: Features, device: torch.device, rows: slice = slice(None)) -> Tensor:
    """Compute `view.stack(features)` for the images in the slice `rows`, by default all images. Return a tensor (k,
    dim) float32 on `device`.

    If `device` is a GPU, the stored features are copied to the GPU, which also converts and normalises them. Raises
    IntegrityError if an encoder of the view is missing or its features have another shape.
    """
    features = {name: block[rows] for name, block in features.items()}
    if device.type == "cpu":
        return torch.from_numpy(view.stack(features))
    blocks = zip(view.select_blocks(features), view.steps_of_each, strict=True)
    parts = [normalise_tensor(upload(block, device).float(), steps) for block, steps in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def normalise_tensor(x: Tensor, steps: Sequence[str]) -> Tensor:
    """Apply `steps` to the rows of x (n, d), as `pipeline.models.linear.views.normalise` does. x is not changed. Return
    a new tensor, or x itself if there are no steps."""
    for step in steps:
        if step == "sqrt":
            x = x.abs().sqrt_().copysign_(x)
        elif step == "l2":
            x = unit_length(x)
        else:
            x = x * factor_of(step)
    return x


def unit_length(vectors: Tensor) -> Tensor:
    """Return a copy of `vectors` (n, d) whose rows have unit length. Rows of zeros stay zero. PyTorch can compute
    gradients through this function.

    Each row is divided by a power of two first, which is exact. The squares of large or small numbers then neither
    overflow nor vanish.
    """
    exponents = torch.frexp(vectors.detach().abs().amax(dim=1, keepdim=True)).exponent
    return functional.normalize(torch.ldexp(vectors, -exponents), dim=1)


def sparse_on(matrix: csr_array, device: torch.device) -> Tensor:
    """Copy a sparse `matrix` (n, d) to `device`. Return a sparse tensor (COO) with the same type of numbers."""
    count = shape_of(matrix)[0]
    rows = np.repeat(np.arange(count), np.diff(matrix.indptr))
    positions = upload(np.stack([rows, matrix.indices]), device)
    values = upload(matrix.data, device)
    return torch.sparse_coo_tensor(positions, values, shape_of(matrix), is_coalesced=True, check_invariants=False)


def matrix_on(matrix: "TextVectors", device: torch.device) -> Tensor:
    """Copy a matrix (n, d) to `device`. Return a tensor, which is sparse if the matrix is sparse."""
    return sparse_on(matrix, device) if is_sparse(matrix) else upload(matrix, device)


def transposed_on(matrix: "TextVectors", device: torch.device) -> Tensor:
    """Copy a matrix (n, d) to `device`, and return its transpose (d, n) as a tensor, which is sparse if the matrix is
    sparse."""
    return sparse_on(csr_array(matrix.T), device) if is_sparse(matrix) else upload(matrix, device).T


def rows_on(rows: Rows, device: torch.device) -> Tensor | Columns[Tensor]:
    """Copy the rows (n, d) of a view to `device`. Return one tensor, or Columns of tensors if the view has several
    matrices side by side. Sparse matrices become sparse tensors."""
    return map_matrices(rows, lambda matrix: matrix_on(matrix, device))


class ProjectedSide(NamedTuple):
    """The projection of one view: (mapped rows - `mean`) `matrix`, with `mean` (p,) and `matrix` (p, c).

    The mapped rows (n, p) are the columns that `mapped_columns` returns for the rows of the view and `feature_map`. If
    `feature_map` is None, the mapped rows are the rows of the view.
    """

    mean: np.ndarray
    matrix: np.ndarray
    feature_map: FeatureMap | None


class Projections:
    """The projections of images and of sentences by a linear model, which are computed on `device`.

    `image` projects the features that `view` stacks, and `text` projects the stacked vectors of sentences. The feature
    maps of both must be DeviceMaps or None.
    """

    def __init__(self, view: ImageView, image: ProjectedSide, text: ProjectedSide, device: torch.device) -> None:
        self._view = view
        self._device = device
        self._dim = image.matrix.shape[1]
        self._image = self._side(image)
        self._text = self._side(text)
        self._batcher = OomBatcher(MAX_PROJECTED_ROWS, "row")

    def _side(self, side: ProjectedSide) -> Callable[[Tensor | Columns[Tensor]], Tensor]:
        """Return a function that maps and projects the rows of one view, from (n, D) to (n, c), as tensors on the
        device."""
        mean_on = upload(side.mean, self._device)
        matrix_on = upload(side.matrix, self._device)
        feature_map = side.feature_map
        assert feature_map is None or isinstance(feature_map, DeviceMap)  # LinearModel.to has checked `can_use_gpu`.
        mapped = None if feature_map is None else feature_map.on(self._device)

        def project_side(rows: Tensor | Columns[Tensor]) -> Tensor:
            columns = list(matrices_of(rows)) if feature_map is None or feature_map.keep else []
            return project([*columns, mapped(rows)] if mapped else columns, mean_on, matrix_on)

        return project_side

    def images(self, features: Features) -> np.ndarray:
        """Project n images with the stored `features`, encoder -> array (n, dim of the encoder). Return an array (n, c)
        float32. Raises IntegrityError if an encoder of the view is missing or its features have another shape."""
        count = self._view.count_rows(features)
        return self._join(lambda rows: self._image(stack_on(self._view, features, self._device, rows)), count)

    def sentences(self, y: Rows) -> np.ndarray:
        """Project the stacked vectors y (m, d) of m sentences, dense or sparse. Return an array (m, c) float32."""
        return self._join(lambda rows: self._text(rows_on(y[rows], self._device)), shape_of(y)[0])

    def _join(self, embed: Callable[[slice], Tensor], count: int) -> np.ndarray:
        with full_float32():
            parts = self._batcher.map(lambda rows: embed(rows).cpu().numpy(), count)
        return np.concatenate(parts) if parts else np.empty((0, self._dim), np.float32)


# --- moments

STRIP_COLUMNS = 1024
"""Number of columns of a symmetric product, such as X'X, that `lower_products` computes at once. The part above the
diagonal is computed only in the square blocks on the diagonal, because the rest follows by symmetry."""
MAX_MAPPED_IMAGES = 1 << 16
"""Maximum number of images whose mapped rows DeviceMappedAccumulator adds at once. If the memory of a GPU is too small,
the number is lowered."""


class DeviceAccumulator:
    """Accumulator of the same moments as MomentsAccumulator, but with PyTorch on `device`. `view` stacks the image
    features, and the text view has `dim_y` columns.

    The sums are in double precision if both views together have at most MAX_DOUBLE_PRECISION_COLUMNS columns, or if the
    device is fast at float64, and otherwise in single precision. The result is in double precision only if both views
    together have at most MAX_DOUBLE_PRECISION_COLUMNS columns.
    """

    def __init__(self, view: ImageView, dim_y: int, device: torch.device) -> None:
        small = view.dim + dim_y <= MAX_DOUBLE_PRECISION_COLUMNS
        self._view = view
        self._device = device
        self._batcher = OomBatcher(BLOCK_ROWS, "image")
        self._stored = torch.float64 if small else torch.float32
        self._type = torch.float64 if small or fast_at_float64(device) else torch.float32
        self._shifts: tuple[Tensor, Tensor] | None = None
        self._n = 0
        dims = {"x": view.dim, "y": dim_y}
        self._sums = {name: torch.zeros(dim, dtype=torch.float64, device=device) for name, dim in dims.items()}
        for left, right in ("xx", "yx", "yy"):
            self._sums[left + right] = torch.zeros(dims[left], dims[right], dtype=self._type, device=device)

    def add(self, features: Features, y: Rows, owners: np.ndarray) -> None:
        """Add a block of n images with their m sentences. `features` maps an encoder to the stored features of the
        images, (n, dim of the encoder).

        y (m, d) are the stacked vectors of the sentences. Sentence j belongs to the image in row `owners[j]`. Images
        without a sentence add nothing. If the memory of the device is full, the block is added in smaller parts.
        """

        def add_rows(rows: slice) -> None:
            inside = np.flatnonzero((owners >= rows.start) & (owners < rows.stop))
            self._add(stack_on(self._view, features, self._device, rows), y[inside], owners[inside] - rows.start)

        with full_float32():
            self._batcher.map(add_rows, len(next(iter(features.values()))))

    def _add(self, x: Tensor, y: Rows, owners: np.ndarray) -> None:
        """Add images x (b, D) with their sentences y (m, d), which belong to the rows `owners` (m,) of x. An image
        without a sentence has the weight zero in all sums."""
        if not len(owners):
            return
        x = x.to(self._type)
        blocks = [(columns, part.to(self._type)) for columns, part in spans(rows_on(y, self._device))]
        if self._shifts is None:
            self._shifts = provisional_mean(x), torch.cat([provisional_mean(part) for _, part in blocks])
        z = x - self._shifts[0]
        shift_y = self._shifts[1]
        blocks = [(columns, part if part.is_sparse else part - shift_y[columns]) for columns, part in blocks]
        by_image = sparse_on(owner_matrix(owners, len(x)), self._device).to(self._type)
        weights = upload(np.bincount(owners, minlength=len(x)), self._device).to(self._type)
        weighted = weights[:, None] * z
        ones = weights.new_ones(len(owners))
        changes = [
            (self._sums["x"], weights @ z),
            (self._sums["y"], torch.cat([part.T @ ones for _, part in blocks])),
            (self._sums["yx"], torch.cat([(by_image @ part).T @ z for _, part in blocks])),
            *lower_products(self._sums["xx"], z, weighted),
        ]
        for number, (rows, left) in enumerate(blocks):
            yy = self._sums["yy"][rows]
            changes += [(yy[:, columns], left_product(left, right)) for columns, right in blocks[number:]]
        # The sums are only changed after all products exist, because a block for which the memory is too small is added
        # again in smaller parts.
        for total, change in changes:
            total += change
        self._n += len(owners)

    def result(self) -> Moments:
        """Return the moments of all added blocks. The moments are zero if no pair was added. The accumulator must not
        be used afterwards, because this method changes its sums in place."""
        if self._shifts is None:
            return Moments.zero(len(self._sums["x"]), len(self._sums["y"]))
        x, y = (self._sums[name] / self._n for name in ("x", "y"))
        for name, left, right in (("xx", x, x), ("yx", y, x), ("yy", y, y)):
            self._sums[name].addr_(left.to(self._type), right.to(self._type), alpha=-self._n)
        xx, yx, yy = (self._sums[name].to(self._stored).cpu().numpy() for name in ("xx", "yx", "yy"))
        mean_x, mean_y = ((shift + mean).cpu().numpy() for shift, mean in zip(self._shifts, (x, y), strict=True))
        return Moments(float(self._n), mean_x, mean_y, mirror(xx.T), yx.T, mirror(yy))


def provisional_mean(part: Tensor) -> Tensor:
    """Compute the mean (d,) of the first SHIFT_ROWS rows of `part` (n, d), about which a dense matrix of a view is
    centred.

    The result is zero for a sparse matrix, because subtracting a mean would make the matrix dense.
    """
    if part.is_sparse:
        return torch.zeros(part.shape[1], dtype=part.dtype, device=part.device)
    return part[:SHIFT_ROWS].mean(dim=0)


def left_product(left: Tensor, right: Tensor) -> Tensor:
    """Compute left' right (d, e) as a dense tensor, for `left` (n, d) and `right` (n, e). Each of the two may be dense
    or sparse."""
    return ((right.T @ left).T if right.is_sparse else left.T @ right).to_dense()


def lower_products(total: Tensor, left: Tensor, right: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Compute left' right on and below the diagonal, for `left` and `right` (n, d) whose product is symmetric.

    Returns pairs of a strip of STRIP_COLUMNS columns of `total` (d, d), and the tensor that the caller has to add to
    this strip in place. This function does not change `total`.
    """
    strips = [slice(start, start + STRIP_COLUMNS) for start in range(0, len(total), STRIP_COLUMNS)]
    return [(total[strip.start :, strip], left[:, strip.start :].T @ right[:, strip]) for strip in strips]


class DeviceMappedAccumulator:
    """Accumulator of the same moments as MappedAccumulator, but with PyTorch on `device`.

    A map that is not a DeviceMap is computed with NumPy on the CPU. The other arguments and the columns P and Q are
    those of MappedAccumulator.
    """

    def __init__(self, known: Moments, maps: FeatureMaps, device: torch.device) -> None:
        self._known = known
        self._maps = maps
        self._device = device
        self._batcher = OomBatcher(MAX_MAPPED_IMAGES, "image")
        self._image, self._text = (self._placed(feature_map) for feature_map in (maps.image, maps.text))
        self._center = upload(known.mean_x.astype(np.float32), device)
        self._shifts: tuple[Tensor, Tensor] | None = None
        self._sums = {name: torch.from_numpy(array).to(device) for name, array in mapped_sums(known, maps).items()}

    def _placed(self, feature_map: FeatureMap | None) -> Callable[[Rows], Tensor] | None:
        """Return a function from the rows of a view to the new columns of `feature_map`, as a tensor on the device.
        Return None if `feature_map` is None."""
        if feature_map is None:
            return None
        device = self._device  # A function that refers to `self` would make a cycle, which keeps the sums in memory.
        if not isinstance(feature_map, DeviceMap):
            return lambda rows: upload(feature_map(rows), device)
        mapped = feature_map.on(device)
        return lambda rows: mapped(rows_on(rows, device))

    def add(self, block: ViewBlock) -> None:
        """Add the pairs of a block. Images without a sentence add nothing. If the memory of the device is full, the
        block is added in smaller parts."""
        with full_float32():
            self._batcher.map(lambda rows: self._add(block.images(rows)), len(block.x))

    def _add(self, block: ViewBlock) -> None:
        counts = np.bincount(block.owners, minlength=len(block.x)).astype(np.float32)
        if not counts.any():
            return
        # An image without a sentence stays in x, but has the weight zero in all sums below.
        x = upload(block.x, self._device)
        weights = upload(counts, self._device)
        z = x - self._center
        p = self._image(block.x) if self._image else x.new_empty(len(x), 0)
        q = self._text(block.y) if self._text else x.new_empty(len(block.owners), 0)
        if self._shifts is None:
            self._shifts = p.mean(dim=0), q.mean(dim=0)
        p = p - self._shifts[0]
        q = q - self._shifts[1]
        weighted = weights[:, None] * p
        products = {"x": weights @ z}
        if self._image:
            sums = sum_by_owner(block.y, block.owners, len(x))
            products |= {"p": weights @ p, "x_p": z.T @ weighted, "y_p": self._cross(sums, p)}
        if self._text:
            by_image = sparse_on(owner_matrix(block.owners, len(x)), self._device) @ q
            products |= {"q": q.sum(dim=0), "x_q": z.T @ by_image, "y_q": self._cross(block.y, q), "pq": p.T @ by_image}
        changes = [(self._sums[name], product) for name, product in products.items()]
        changes += lower_products(self._sums["pp"], p, weighted) + lower_products(self._sums["qq"], q, q)
        for total, change in changes:  # The sums are only changed after all products exist, as in DeviceAccumulator.
            total += change

    def _cross(self, y: Rows, other: Tensor) -> Tensor:
        """Compute y' other (d, k) from rows y (m, d) of the text view, dense or sparse, and a tensor `other` (m, k)."""
        return torch.cat([transposed_on(part, self._device) @ other for part in matrices_of(y)])

    def result(self) -> Moments:
        """Return the moments of the mapped views. All pairs of `known` must have been added, and there must be a pair.

        The accumulator must not be used afterwards.
        """
        assert self._shifts is not None  # At least one pair was added.
        sums = {name: total.cpu().numpy() for name, total in self._sums.items()}
        p, q = (shift.cpu().numpy() for shift in self._shifts)
        return mapped_result(self._known, self._maps, sums, (p, q))
