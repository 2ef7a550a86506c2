"""Detection of wrong captions by cross-fitting: every pair is scored by a model that was fitted without this pair.

The photos are split into folds. All captions of a photo and of its near-duplicates belong to the same fold. A fold is
embedded by the normalized CCA (Gong et al. 2014, eq. 2) of all other folds. The moments of the other folds are the
total moments minus the moments of this fold. A pair is compared only with other pairs of its fold, and is scored by
CSLS (Conneau et al. 2018, section 2.3):

    s(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the photo x with the NEIGHBOURS nearest captions of other photos, and r(y) is the mean
product of the caption y with the NEIGHBOURS nearest other photos. The score of a photo with all of its captions is the
mean of the captions' scores. For the score of a single caption, x is replaced by a context: the sum of x and
SIBLING_WEIGHT times each of the photo's other captions, scaled to unit length, because all captions of a photo should
agree with each other. The fewer other captions there are, the more the photo counts, because a caption may be wrong.

The scores of wrong pairs can be measured without labels: a photo with the captions of another photo is a wrong pair,
which is called an exchanged pair. `fit_mixture` compares the scores of all pairs with the scores of exchanged pairs.
The fitted mixture estimates the number of wrong pairs, and the share of right pairs in a list of the pairs with the
lowest scores.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import scipy
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.compute.lazy_rows import DiskRows, LazyRows
from pipeline.errors import InputError
from pipeline.models.linear.accumulation import sum_blocks
from pipeline.models.linear.cca import CCASolver, NormalizedCCA
from pipeline.models.linear.hubness import mean_of_greatest
from pipeline.models.linear.moments import sum_moments
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView, NumberedPairBlock, TextView, owner_matrix

if TYPE_CHECKING:
    import torch

FOLDS = 5
"""Number of folds into which the photos are split for cross-fitting."""
TERMS = 1000
"""Number of columns of a sparse text encoder, such as tf-idf, that the audit uses. It uses the first columns, which
belong to the most common words."""
RIDGE = 2.0
"""Ridge of the image view and of the text view in the CCA of cross-fitting, relative to the view's mean variance."""
DIMENSIONS = 128
"""Maximum number of dimensions of the space in which photos and captions are compared."""
POWER = 1.0
"""Power of the canonical correlations by which the directions of this space are scaled (t in eq. 2)."""
SIBLING_WEIGHT = 0.4
"""Weight of each other caption of the same photo in the context of a caption. The weight of the photo is 1."""
NEIGHBOURS = 10
"""Number of nearest photos or captions whose products are averaged in a hub correction r(x) or r(y). If there are
fewer, all products are averaged."""
MAX_RIVALS = 2048
"""Maximum number of photos of a fold that are compared with each other. A fold with more photos is divided into groups
of nearly equal size, and photos of different groups are not compared."""
MIN_PHOTOS = 100
"""Minimum number of photos with captions in a collection whose captions the audit checks. A model that is fitted to
fewer photos is too poor to judge captions."""
MAX_FOLD_SHARE = 0.9
"""Largest share of all captions that may be in one fold. Without near-duplicates each fold has a share of about
1 / FOLDS. `cross_fit` raises InputError for a greater share than MAX_FOLD_SHARE."""
PAIR_COLUMNS = ("image_id", "sentence_id", "rank", "rivals", "rather")
"""Names of the columns of `Scores.pairs`, in order. The docstring of Scores describes the columns."""

TOP_QUANTILE = 0.99
"""Quantile of the scores of exchanged pairs. The mixture is fitted only to scores below this quantile."""
BINS = 4096
"""Number of equal intervals in which scores are counted, so that the fit takes the same time for any number of
pairs."""
MAX_LOGARITHM = 50.0
"""Greatest absolute value of a + b s in ScoreMixture during the fit. Greater values are clipped, so that the
exponential is finite and not zero."""
MIN_SLOPE = 0.5
"""Least slope b that `fit_mixture` allows in ScoreMixture, as a share of the slope that is expected. The expected slope
is the distance between the median of all scores and the mean of the exchanged scores, in standard deviations of the
exchanged scores: with two normal densities of the same variance and few wrong pairs, b is equal to this distance."""
PRIOR_COUNT = 0.5
"""Number that is added to the estimated number of right pairs in a list, so that short lists do not have more right
pairs than their false discovery rate says. For a number with a Poisson distribution, the posterior mean under the prior
of Jeffreys exceeds the estimate by this value."""
FIRST_SHARES = (1e-3, 1e-2, 1e-1)
"""Shares of wrong pairs from which the optimiser starts, once from each. The result with the greatest likelihood is
used."""


@dataclass(frozen=True)
class ScoreMixture:
    """The mixture of wrong and right pairs: a `share` of the pairs is wrong, and right pairs have higher scores.

    Let f be the density of the scores of all pairs, and f0 the density of the scores of exchanged pairs, which are
    known to be wrong. Right pairs have the density f1, and a share p of all pairs is wrong (the two-group model, Efron
    2010, chapter 2):

        f(s) = p f0(s) + (1 - p) f1(s)

    Here f0 is measured, and f1 is not known. The higher the score of a pair, the more likely the pair is right. The
    model assumes that the logarithm of f1 / f0 is linear in the score, as it is for two normal densities with the same
    variance:

        f(s) / f0(s) = p + exp(a + b s)

    The parameters p, a and b maximise the likelihood of a classifier that tells all pairs from exchanged pairs, because
    the odds of this classifier are the ratio of the two densities (Qin 1998). Only scores below the quantile
    TOP_QUANTILE of the exchanged scores are used. Above this quantile, nearly all pairs are right, and the assumption
    need not hold. The probability that a pair with the score s is right is exp(a + b s) / (p + exp(a + b s)). The mean
    of this probability over a list of suspects is the false discovery rate of the list.

    If right and wrong pairs separate perfectly, no right pair has a score below the quantile, and the data do not
    determine a and b. Two limits then give a good list. First, b is at least MIN_SLOPE times the slope of two normal
    densities. With b = 0, exp(a) would be a constant like p, and wrong pairs could count as right pairs. Second, a list
    has at most p k wrong pairs, where k is the number of all pairs, whatever the probabilities are.

    The `share` is p, and a + b s is `intercept` + `slope` * (s - `mean`) / `deviation`.
    """

    share: float
    intercept: float
    slope: float
    mean: float
    deviation: float

    def right_probability(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities (k,) that pairs with the `scores` (k,) are right. A pair with a higher score never
        has a lower probability. If `share` is 0, all probabilities are 1."""
        if self.share == 0:
            return np.ones(len(scores))
        logarithm = self.intercept + self.slope * (scores - self.mean) / self.deviation
        return scipy.special.expit(logarithm - np.log(self.share))

    def false_discovery_rates(self, scores: np.ndarray) -> np.ndarray:
        """Return the false discovery rates (k,) of all k pairs, from 0 to 1, in the order of `scores` (k,). The scores
        must be in ascending order.

        A list of suspects has all pairs up to some score. The rate of a pair is the least estimated share of right
        pairs in a list of suspects that includes the pair. The rates never descend (the q-values of Storey 2002).
        """
        lengths = np.arange(1, len(scores) + 1)
        right = np.maximum(np.cumsum(self.right_probability(scores)), lengths - self.share * len(scores))
        rates = np.minimum((right + PRIOR_COUNT) / lengths, 1)
        return np.minimum.accumulate(rates[::-1])[::-1]


def fit_mixture(scores: np.ndarray, exchanged: np.ndarray) -> ScoreMixture:
    """Fit a ScoreMixture to the `scores` (k,) of all pairs and to the scores `exchanged` (e,) of exchanged pairs. Both
    arrays may be in any order."""
    mean = float(exchanged.mean())
    deviation = float(exchanged.std()) or 1.0
    top = np.quantile(exchanged, TOP_QUANTILE)
    edges = np.linspace(min(scores.min(), exchanged.min()), top, BINS + 1)
    of_all = np.histogram(scores, edges)[0]
    of_exchanged = np.histogram(exchanged, edges)[0]
    z = (edges[:-1] + edges[1:] - 2 * mean) / (2 * deviation)
    min_slope = MIN_SLOPE * max(0.0, (float(np.median(scores)) - mean) / deviation)
    size_ratio = len(scores) / len(exchanged)

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        share, intercept, slope = parameters
        right = np.exp(np.clip(intercept + slope * z, -MAX_LOGARITHM, MAX_LOGARITHM))
        odds = size_ratio * (share + right)
        value = of_all @ (np.log1p(odds) - np.log(odds)) + of_exchanged @ np.log1p(odds)
        by_odds = size_ratio * ((of_all + of_exchanged) / (1 + odds) - of_all / odds)
        return value, np.array([by_odds.sum(), by_odds @ right, by_odds @ (right * z)])

    bounds = [(0, 1), (None, None), (min_slope, None)]
    starts = [(share, -4.0, max(1.5, min_slope)) for share in FIRST_SHARES]
    fits = [scipy.optimize.minimize(loss, start, jac=True, bounds=bounds) for start in starts]
    share, intercept, slope = min(fits, key=lambda fit: fit.fun).x
    return ScoreMixture(share, intercept, slope, mean, deviation)


@dataclass(frozen=True)
class Scores:
    """The scores of k pairs. In one object, all pairs are photos with all of their captions, or all pairs are photos
    with a single caption.

    A pair with a low value in `scores` (k,) is probably wrong. `exchanged` (k,) are the scores of k wrong pairs, in
    which the captions belong to another photo. `pairs` (k, 5) has one row per pair, with the columns PAIR_COLUMNS:

    - `image_id`: the id of the photo.
    - `sentence_id`: the id of the caption, or -1 if the pair has all captions of the photo.
    - `rank`: the rank of the pair by CSLS, from 1 for the best. The other candidates are the pairs of the same photo
      with the captions of its rivals. The rivals are the other photos with which the photo is compared.
    - `rivals`: the number of the rivals, or the number of the rivals' captions if the pair has a single caption.
    - `rather`: the id of the caption of a rival that fits the photo best.
    """

    scores: np.ndarray
    exchanged: np.ndarray
    pairs: LazyRows

    @cached_property
    def mixture(self) -> ScoreMixture:
        """The mixture of wrong and right pairs. It is fitted to `scores` and `exchanged` when it is first used."""
        return fit_mixture(self.scores, self.exchanged)

    @property
    def wrong(self) -> int:
        """The estimated number of wrong pairs among the k pairs, as a whole number."""
        return round(self.mixture.share * len(self.scores))

    def lowest(self) -> tuple[np.ndarray, np.ndarray]:
        """Sort the pairs by score, the lowest first. Return in this order the row numbers (k,) of the pairs in `scores`
        and `pairs`, and the false discovery rates (k,) of the pairs.

        The false discovery rate of a pair is the least estimated share of right pairs in a list of the pairs with the
        lowest scores that includes the pair. The rates never descend.
        """
        order = np.argsort(self.scores, kind="stable")
        return order, self.mixture.false_discovery_rates(self.scores[order])


def draw_folds(copies: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw a fold for each of `count` photos at random, as `seed` decides. Return the numbers (count,) of the folds,
    from 0 to FOLDS - 1.

    `copies` (p, 2) are pairs of row numbers of photos that are near-duplicates. Both photos of a pair get the same
    fold, and so do photos that a chain of pairs connects.
    """
    links = coo_array((np.ones(len(copies)), (copies[:, 0], copies[:, 1])), shape=(count, count))
    groups = connected_components(links, directed=False)[1]
    return np.random.default_rng(seed).integers(FOLDS, size=count)[groups]


@dataclass(frozen=True)
class Rivals:
    """A group of n photos and their m captions that are compared with each other: a fold, or a part of a large fold.

    The ids `image_id` (n,) and `sentence_id` (m,) ascend. Caption j belongs to the photo in row `owners[j]` of x. Each
    photo has at least one caption. `x` (n, c) and `y` (m, c) are the embeddings of the photos and captions, of unit
    length.
    """

    image_id: np.ndarray
    sentence_id: np.ndarray
    owners: np.ndarray
    x: np.ndarray
    y: np.ndarray


def embed_rivals(
    blocks: Callable[[int], Iterable[NumberedPairBlock]],
    view: ImageView,
    text: TextView,
    threads: int,
    device: "torch.device | None" = None,
    ridges: tuple[float, float] = (RIDGE, RIDGE),
) -> Iterator[Rivals]:
    """Yield all pairs in groups of at most MAX_RIVALS photos of one fold. Each group is embedded by a model that was
    fitted to the other folds.

    `ridges` are the ridge of the image view and the ridge of the text view, each relative to the mean variance of the
    view. The other arguments are as in `cross_fit`. Raises InputError if one fold has a greater share of all captions
    than MAX_FOLD_SHARE, or if no CCA can be fitted to the other folds.
    """
    moments = [sum_blocks(blocks(fold), view, text, threads, device) for fold in range(FOLDS)]
    total = sum_moments(moments)
    greatest = max(own.n for own in moments)
    if greatest > MAX_FOLD_SHARE * total.n:
        raise InputError(
            f"{greatest:,.0f} of {total.n:,.0f} captions are in one fold of the cross-fitting, because most photos are"
            f" near-duplicates of each other. At most {MAX_FOLD_SHARE:.0%} may be in one fold, so that captions of"
            " enough other photos are left to judge this fold. Leave out near-duplicates, or add other photos."
        )
    for fold, own in enumerate(moments):
        others = total - own
        directions = CCASolver(others).solve(*ridges, DIMENSIONS)
        model = NormalizedCCA(view, text, others.mean_x, others.mean_y, directions, POWER)
        x = DiskRows(directions.w.shape[1])
        y = DiskRows(directions.u.shape[1])
        ids = []
        for block in blocks(fold):
            x.append(model.embed_images(block.features))
            y.append(model.embed_sentences(block.sentences))
            ids.append((block.image_id, block.sentence_id, block.image_id[block.owners]))
        if not ids:
            continue
        image_id, sentence_id, sentence_images = map(np.concatenate, zip(*ids, strict=True))
        for rows in np.array_split(np.arange(len(image_id)), -(-len(image_id) // MAX_RIVALS)):
            captions = np.arange(*np.searchsorted(sentence_images, [image_id[rows[0]], image_id[rows[-1]] + 1]))
            owners = np.searchsorted(image_id[rows], sentence_images[captions])
            yield Rivals(image_id[rows], sentence_id[captions], owners, x[rows], y[captions])


def cross_fit(
    blocks: Callable[[int], Iterable[NumberedPairBlock]],
    view: ImageView,
    text: TextView,
    threads: int,
    device: "torch.device | None" = None,
) -> tuple[Scores, Scores]:
    """Return the Scores of every photo with all of its captions, and the Scores of every single caption.

    `blocks(fold)` yields the pairs of a fold, from 0 to FOLDS - 1, in ascending order of their ids. It is called twice
    for each fold. `view` and `text` describe the features and text vectors. The moments are summed with `threads`
    threads on the CPU, or on `device` if `device` is not None. Only `scores` and `exchanged` are in memory, with 16
    bytes for each pair. The embeddings of a fold and `pairs` are in temporary files. Raises InputError if one fold has
    a greater share of all captions than MAX_FOLD_SHARE, or if no CCA can be fitted to the other folds.
    """
    photos = _Collected()
    captions = _Collected()
    for rivals in embed_rivals(blocks, view, text, threads, device):
        scores = score_rivals(rivals)
        photos.append(scores[0])
        captions.append(scores[1])
    return photos.scores(), captions.scores()


class _Collected:
    """The collected scores of several groups of pairs. The rows of `pairs` are in a temporary file."""

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._exchanged: list[np.ndarray] = []
        self._pairs = DiskRows(len(PAIR_COLUMNS), dtype=np.int64)

    def append(self, group: Scores) -> None:
        """Append the scores and the rows of `pairs` of a group."""
        self._scores.append(group.scores)
        self._exchanged.append(group.exchanged)
        self._pairs.append(group.pairs[np.arange(len(group.scores))])

    def scores(self) -> Scores:
        """Return the Scores of all appended groups, in the order in which they were appended."""
        return Scores(np.concatenate(self._scores), np.concatenate(self._exchanged), self._pairs)


def score_rivals(rivals: Rivals) -> tuple[Scores, Scores]:
    """Return the Scores of the n photos of a group with all their captions, and the Scores of each of the m captions.
    Photos and captions are only compared within the group."""
    products = rivals.x @ rivals.y.T
    csls = 2 * products - np.add.outer(*_hub_corrections(products, rivals.owners))
    preferred = rivals.sentence_id[_replace_own(csls, rivals.owners, -np.inf).argmax(axis=1)]
    return _score_photos(csls, rivals, preferred), _score_captions(csls, rivals, preferred)


def _hub_corrections(products: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hub corrections r(x) (n,) of photos and r(y) (m,) of captions, given their `products` (n, m).

    Caption j belongs to photo `owners[j]`. The product of a photo with its own caption counts as -1, the least possible
    product, so that it is not among the greatest.
    """
    with_others = _replace_own(products, owners, -1)
    r_x = mean_of_greatest(with_others, NEIGHBOURS)
    return np.asarray(r_x), np.asarray(mean_of_greatest(with_others.T, NEIGHBOURS))


def _replace_own(scores: np.ndarray, owners: np.ndarray, value: float) -> np.ndarray:
    """Return a copy of `scores` (n, m) in which `value` replaces the scores of each photo with its own captions.
    Caption j belongs to photo `owners[j]`."""
    replaced = scores.copy()
    replaced[owners, np.arange(len(owners))] = value
    return replaced


def _score_photos(csls: np.ndarray, rivals: Rivals, preferred: np.ndarray) -> Scores:
    """Score each of n photos with all of its captions, by the mean of the CSLS scores of the captions.

    An exchanged pair has the captions of the photo n // 2 rows later, where the first photo follows the last.
    `csls` (n, m) are the CSLS scores of photos and captions. `preferred` (n,) has for each photo the id of the caption
    of another photo that fits the photo best.
    """
    n = len(rivals.image_id)
    photos = np.arange(n)
    counts = np.bincount(rivals.owners, minlength=n)
    # means[i, k] is the mean CSLS score of photo i with the captions of photo k.
    means = (owner_matrix(rivals.owners, n) @ csls.T).T / counts
    own = means.diagonal().copy()  # Without the copy, this NumPy view would keep all means in memory.
    exchanged = means[photos, (photos + n // 2) % n]
    rank = 1 + (means > own[:, None]).sum(axis=1)
    pairs = np.stack([rivals.image_id, np.full(n, -1), rank, np.full(n, n - 1), preferred], axis=1)
    return Scores(own, exchanged, pairs)


def _score_captions(csls: np.ndarray, rivals: Rivals, preferred: np.ndarray) -> Scores:
    """Score each of m captions with its context, which is its photo and the photo's other captions.

    An exchanged pair has the context of a caption and the caption m // 2 rows later, where the first caption follows
    the last. `csls` (n, m) are the CSLS scores of photos and captions without context, and decide the ranks.
    `preferred` (n,) has for each photo the id of the caption of another photo that fits the photo best.
    """
    owners = rivals.owners
    y = rivals.y
    n = len(rivals.x)
    m = len(rivals.y)
    captions = np.arange(m)
    counts = np.bincount(owners, minlength=n)
    siblings = (owner_matrix(owners, n) @ y)[owners] - y
    contexts = unit_rows(rivals.x[owners] + SIBLING_WEIGHT * siblings)
    # The hub corrections need one context per photo, but each caption has its own context, which leaves out the
    # caption. The context of the photo's first caption is used.
    r_context, r_y = _hub_corrections(contexts[np.searchsorted(owners, np.arange(n))] @ y.T, owners)

    def score_with(others: np.ndarray) -> np.ndarray:
        return 2 * np.einsum("ij,ij->i", contexts, y[others]) - r_context[owners] - r_y[others]

    others = _replace_own(csls, owners, -np.inf)
    above = [np.count_nonzero(others[photo] >= csls[photo, row]) for row, photo in enumerate(owners)]
    image_id = rivals.image_id[owners]
    rank = 1 + np.array(above)
    pairs = np.stack([image_id, rivals.sentence_id, rank, m - counts[owners], preferred[owners]], axis=1)
    return Scores(score_with(captions), score_with((captions + m // 2) % m), pairs)
