"""Counting, exactly, the scores that are at least as high as a bound: most of them in single precision.

Exact scores need double precision (see pipeline.metrics.lattice), which takes twice as long. But a score in single
precision is wrong by no more than a known tolerance, so it tells on which side of the bound the exact one is, unless
both are nearer to each other than that: some scores in ten thousand, which are computed again.

Images are taken in the order of their bounds, and sentences too, so that the bounds of a block are alike: where few of
its scores reach the lowest of them, which one comparison with a number tells, only these are looked at.
"""

from collections.abc import Callable, Iterable

import numpy as np

from pipeline.metrics.lattice import lengths_of, to_lattice, unit_above

IMAGE_ROWS = 255
"""Images in a block, at most: the counts of a block's columns are bytes."""
SENTENCE_ROWS = 2040
"""Sentences in a block, at most, of 8 x 255: the counts of a block's rows are eight bytes."""
MOST_DOUBTFUL = 1 / 32
"""Share of a block's groups of eight scores among which some are in doubt; with more, all of it is computed again."""
FEW = 1 / 32
"""Share of a block's groups of eight scores that may hold one above the lowest bound for only these to be looked at."""
SETTLED, MANY = 512, 1 << 16
"""Scores in doubt, or targets, that are computed at once; scores in doubt that are kept before they are settled."""
KEPT_BYTES = 1 << 26
"""Of the images in single precision, which each thread keeps from one block of sentences to the next."""
SPARE_ROUNDINGS = 16
"""Of converting coordinates, and of the columns that make a distance a product, beside one a coordinate."""


class Side:
    """The vectors (n, c) of one side as whole numbers of `unit`, block by block.

    Products of `exact(rows)` (k, d) float64 with those of the other side are scores; products of `single(rows)` (k, d')
    float32 are scores to within `tolerances`.
    """

    def __init__(self, vectors: np.ndarray, lengths: np.ndarray, unit: float, euclidean: str | None = None) -> None:
        self.vectors, self.unit, self.euclidean = vectors, unit, euclidean
        self.lengths = lengths / unit + np.sqrt(vectors.shape[1])  # whole numbers differ by at most a half each

    def exact(self, rows: slice | np.ndarray) -> np.ndarray:
        # -|a - b|**2 as an inner product: (2a, -|a|**2, 1) . (b, 1, -|b|**2)
        return self._extended(rows, lambda squares: [-squares])

    def single(self, rows: slice | np.ndarray) -> np.ndarray:
        if self.euclidean is None:
            return np.multiply(self.vectors[rows], 1 / self.unit, dtype=np.float32)

        def parts(squares: np.ndarray) -> list[np.ndarray]:  # whose sum has the digits that one float32 lacks
            high = squares.astype(np.float32).astype(np.float64)
            return [-high, high - squares]

        return self._extended(rows, parts).astype(np.float32)

    def _extended(self, rows: slice | np.ndarray, negated: Callable[[np.ndarray], list[np.ndarray]]) -> np.ndarray:
        x = to_lattice(self.vectors[rows], self.unit)
        if self.euclidean is None:
            return x
        own = negated(np.einsum("ij,ij->i", x, x)[:, None])
        ones = np.ones((len(x), len(own)))
        return np.hstack([2 * x, *own, ones] if self.euclidean == "left" else [x, ones, *own])

    def tolerances(self, other: "Side") -> np.ndarray:
        """(n,) by how much a score in single precision with any vector of the other side may be wrong: k u / (1 - k u)
        times the sum of the sizes of its products, for k roundings of u = 2**-24 in any order (Higham, Accuracy and
        Stability of Numerical Algorithms, 2002, section 3.1), and what coordinates lack that are not whole."""
        dim, most = self.vectors.shape[1], other.lengths.max(initial=0)
        rounding = (dim + SPARE_ROUNDINGS) * 2.0**-24
        if self.euclidean:
            return rounding / (1 - rounding) * (self.lengths + most) ** 2
        return rounding / (1 - rounding) * self.lengths * most + np.sqrt(dim) * (self.lengths + most)


def sides(images: np.ndarray, sentences: np.ndarray, metric: str) -> tuple[Side, Side]:
    """Both sides, whose products are scores by the `metric`."""
    lengths = [lengths_of(x) for x in (images, sentences)]
    units = [unit_above(one.max(initial=0)) for one in lengths]
    if metric == "inner_product":
        return Side(images, lengths[0], units[0]), Side(sentences, lengths[1], units[1])
    if metric == "euclidean":
        unit = max(units)
        return Side(images, lengths[0], unit, "left"), Side(sentences, lengths[1], unit, "right")
    raise ValueError(f"unknown metric {metric}; there are inner_product and euclidean")


def score_pairs(left: Side, right: Side, i: np.ndarray, j: np.ndarray | slice) -> np.ndarray:
    """(p,) the exact scores of the pairs of rows i and j."""
    return np.einsum("ij,ij->i", left.exact(i), right.exact(j))


def blocks_of(count: int, most: int, shares: int = 1) -> list[slice]:
    """`count` rows in blocks of about the same size, at most `most`; their number is a multiple of `shares`."""
    blocks = shares * max(1, -(-count // (shares * most)))
    bounds = [count * number // blocks for number in range(blocks + 1)]
    return [slice(start, stop) for start, stop in zip(bounds, bounds[1:], strict=False) if start < stop]


class _Direction:
    """`counts` (n,) of the scores in each row (axis 0) or column (axis 1) that are at least its exact `bounds` (n,)."""

    def __init__(self, axis: int, bounds: np.ndarray, tolerances: np.ndarray, counts: np.ndarray) -> None:
        self.axis, self.bounds, self.counts = axis, bounds, counts
        low, high = ((bounds + sign * tolerances).astype(np.float32) for sign in (-1, 1))
        self.low, self.high = np.nextafter(low, np.float32(-np.inf)), np.nextafter(high, np.float32(np.inf))
        self.doubtful: list[tuple[np.ndarray, np.ndarray]] = []
        self._mask = np.empty(IMAGE_ROWS * SENTENCE_ROWS + 8, bool)

    def add(self, scores: np.ndarray, rows: np.ndarray, columns: np.ndarray, masks: np.ndarray) -> bool:
        """Count a block of scores in single precision, but for those in doubt; False, and nothing is counted, where
        these are too many. `masks` (2, rows, columns or more) are overwritten; beyond the columns they are False."""
        own = (rows, columns)[self.axis]
        low, high = self.low[own], self.high[own]
        if self._add_few(scores, rows, columns, low, high):
            return True
        for mask, bounds in zip(masks, (high, low), strict=True):
            np.greater_equal(scores, bounds if self.axis else bounds[:, None], out=mask[:, : scores.shape[1]])
        surely, perhaps = (mask.view(np.uint64).reshape(-1) for mask in masks)
        eights = np.flatnonzero(surely != perhaps)
        if len(eights) > MOST_DOUBTFUL * len(surely):
            return False
        if len(eights):
            at, within = np.nonzero((surely[eights] ^ perhaps[eights]).view(np.uint8).reshape(-1, 8))
            i, j = divmod(eights[at] * 8 + within, masks.shape[-1])
            self.doubtful.append((rows[i], columns[j]))
        self._sum(masks[0], rows, columns)
        return True

    def _add_few(
        self, scores: np.ndarray, rows: np.ndarray, columns: np.ndarray, low: np.ndarray, high: np.ndarray
    ) -> bool:
        """The same where few scores reach the lowest bound; False, and nothing is counted, where more do."""
        mask = self._mask[: scores.size + -scores.size % 8]
        np.greater_equal(scores.reshape(-1), low.min(), out=mask[: scores.size])
        mask[scores.size :] = False
        eights = np.flatnonzero(mask.view(np.uint64) != 0)
        if len(eights) > FEW * len(mask) / 8:
            return False
        at, within = np.nonzero(mask.reshape(-1, 8)[eights])
        found = eights[at] * 8 + within
        i, j = divmod(found, scores.shape[1])
        own, values = (i, j)[self.axis], scores.reshape(-1)[found]
        sure = values >= high[own]
        self.counts[(rows, columns)[self.axis]] += np.bincount(own[sure], minlength=len(low))
        doubtful = (values >= low[own]) & ~sure
        if doubtful.any():
            self.doubtful.append((rows[i[doubtful]], columns[j[doubtful]]))
        return True

    def add_exact(self, scores: np.ndarray, rows: np.ndarray, columns: np.ndarray, masks: np.ndarray) -> None:
        """Count a block of exact scores."""
        bounds = self.bounds[columns] if self.axis else self.bounds[rows, None]
        np.greater_equal(scores, bounds, out=masks[0, :, : scores.shape[1]])
        self._sum(masks[0], rows, columns)

    def _sum(self, mask: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
        if self.axis:
            self.counts[columns] += np.add.reduce(mask.view(np.uint8), axis=0, dtype=np.uint8)[: len(columns)]
        else:
            eights = mask.view(np.uint64).sum(axis=1).view(np.uint8)
            self.counts[rows] += eights.reshape(-1, 8).sum(axis=1, dtype=np.int64)

    def settle(self, left: Side, right: Side, owners: np.ndarray, targets: np.ndarray, least: int = 1) -> None:
        """Count what was in doubt, by exact scores, if it is at least so many. Those of a sentence with its own image,
        which is always in doubt, are its `targets`."""
        if sum(len(i) for i, _ in self.doubtful) >= least:
            i, j = (np.concatenate(side) for side in zip(*self.doubtful, strict=True))
            others = np.flatnonzero(owners[j] != i)
            scores, own = targets[j], (i, j)[self.axis]
            for part in blocks_of(len(others), SETTLED):
                pairs = others[part]
                scores[pairs] = score_pairs(left, right, i[pairs], j[pairs])
            np.add.at(self.counts, own[scores >= self.bounds[own]], 1)
            self.doubtful = []


def count(
    blocks: Iterable[slice], left: Side, right: Side, owners: np.ndarray, best: np.ndarray, targets: np.ndarray,
    above_target: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """For the sentences in `blocks`, places in the order of their `targets` (m,), their scores with the images `owners`
    (m,): (n,) how many score at least `best` (n,) with each image, and (m,) how many images score at least its target
    with each sentence, added to `above_target` (m,)."""
    above_target = np.zeros(len(targets), np.int64) if above_target is None else above_target
    above_best = np.zeros(len(best), np.int64)
    images = _Direction(0, best, left.tolerances(right), above_best)
    sentences = _Direction(1, targets, right.tolerances(left), above_target)
    memory = np.empty(IMAGE_ROWS * SENTENCE_ROWS, np.float32)  # fresh for every block it costs as much as the counting
    by_best, by_target = np.argsort(best, kind="stable"), np.argsort(targets, kind="stable")
    parts = [by_best[part] for part in blocks_of(len(best), IMAGE_ROWS)]
    kept = [left.single(rows) for rows in parts[: KEPT_BYTES // (4 * IMAGE_ROWS * left.vectors.shape[1])]]
    for block in blocks:
        columns = by_target[block]
        b, width = right.single(columns), len(columns)
        masks = np.zeros((2, IMAGE_ROWS, -(-width // 8) * 8), bool)  # whose groups of eight are compared as one number
        for number, rows in enumerate(parts):
            height, a = len(rows), kept[number] if number < len(kept) else left.single(rows)
            scores = np.matmul(a, b.T, out=memory[: height * width].reshape(height, width))
            for one in (images, sentences):
                if not one.add(scores, rows, columns, masks[:, :height]):
                    exact = left.exact(rows) @ right.exact(columns).T
                    one.add_exact(exact, rows, columns, masks[:, :height])
        for one in (images, sentences):
            one.settle(left, right, owners, targets, MANY)
    for one in (images, sentences):
        one.settle(left, right, owners, targets)
    return above_best, above_target
