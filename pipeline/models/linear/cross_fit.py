"""Detection of wrong captions by cross-fitting: every pair is scored by a model that was fitted without this pair.

The photos are split into folds. All captions of a photo and of its near-duplicates belong to the same fold. A fold is
embedded by the normalized CCA (Gong et al. 2014, eq. 2) of the moments of all other folds, which are the total moments
minus the moments of the fold. A pair is scored together with the other pairs of its fold, its rivals, by CSLS
(Conneau et al. 2018, section 2.3):

    s(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the photo x with the NEIGHBOURS nearest captions of other photos, and r(y) is the mean
product of the caption y with the NEIGHBOURS nearest other photos. The score of a photo with all of its captions is the
mean of the captions' scores. For the score of a single caption, x is replaced by the sum of x and the mean of the
photo's other captions, scaled to unit length, because all captions of a photo should agree with each other.

The scores of wrong pairs can be measured without labels: a photo with the caption of another photo is a wrong pair. Let
F be the distribution function of the scores of all pairs, and F0 the distribution function of the scores of such
exchanged pairs. The share of wrong pairs is at most min F(s)/F0(s), because right pairs only add to F (Storey 2002,
with F0 instead of the uniform distribution). The pairs with the lowest scores, up to this share, are reported as
probably wrong.

The share is an upper bound: right pairs with unusual captions raise it. Towards lower scores, the number of right pairs
falls about as fast as the odds F0/(1 - F0), or faster. If every pair below a high quantile of F0 were right, the odds
would bound the number of right pairs below a lower quantile. Only pairs beyond this number are likely to be wrong.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
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
TERMS = 1000
"""Number of columns of a sparse text view that are used. They belong to the most common words."""
RIDGE = 1.0
"""Ridge of both views, relative to their mean variance."""
DIMENSIONS = 128
"""Dimensions of the space in which photos and captions are compared."""
POWER = 1.0
"""Power of the eigenvalues that scales the directions."""
NEIGHBOURS = 10
"""Number of nearest items whose products are averaged in a hub correction r(x) or r(y)."""
MAX_RIVALS = 2048
"""Maximum number of photos of a fold that are compared with each other. A fold with more photos is divided into equal
groups."""
MIN_PHOTOS = 100
"""Minimum number of photos with captions. With fewer photos, captions are not checked, because the model is too poor to
judge them."""
MAX_FOLD_SHARE = 0.9
"""Largest share of all captions in one fold. Without near-duplicates the share is about 1 / FOLDS. `cross_fit` raises
InputError for a greater share."""
QUANTILES = np.linspace(0.3, 0.5, 5)
"""Quantiles of the exchanged pairs' scores at which the shares of all pairs and of exchanged pairs with lower scores
are compared. Below the lowest quantile, too few pairs are counted."""
RIGHT_QUANTILE = 0.9
"""Quantile of the exchanged pairs' scores below which most pairs are right."""
PAIR_COLUMNS = ("image_id", "sentence_id", "rank", "rivals", "rather")
"""Columns of `Scores.pairs`."""


@dataclass(frozen=True)
class Scores:
    """The scores of k pairs of a photo and its captions. A pair with a low value in `scores` (k,) is probably wrong.

    `exchanged` (k,) are the scores of k wrong pairs. `pairs` (k, 5) has the columns PAIR_COLUMNS: the id of the photo,
    the id of the caption (-1 for all captions of the photo), the rank of the pair among its rivals, from 1 (`rank`),
    the number of photos, or of captions, with which it was compared (`rivals`), and the id of the rivals' caption that
    fits the photo best (`rather`).
    """

    scores: np.ndarray
    exchanged: np.ndarray
    pairs: LazyRows

    @property
    def wrong(self) -> int:
        """The upper bound of the number of wrong pairs. The pairs with the lowest scores, up to this number, are
        probably wrong."""
        return int(min(self._count_below(QUANTILES) / QUANTILES))

    @property
    def likely_wrong(self) -> int:
        """The number of pairs with the lowest scores that are wrong with few exceptions. It is at most `wrong`."""
        odds, high = QUANTILES / (1 - QUANTILES), RIGHT_QUANTILE / (1 - RIGHT_QUANTILE)
        right = self._count_below(np.array([RIGHT_QUANTILE])) * odds / high
        right += np.sqrt(right)  # Adds a standard deviation, so that few right pairs count as wrong.
        excess = (self._count_below(QUANTILES) - right) / QUANTILES
        return max(0, int(min(excess)))

    def _count_below(self, quantiles: np.ndarray) -> np.ndarray:
        """Count the pairs whose scores are at most each of the `quantiles` (q,) of the exchanged pairs' scores."""
        return np.searchsorted(np.sort(self.scores), np.quantile(self.exchanged, quantiles), side="right")


def draw_folds(copies: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Draw the fold of each of `count` photos at random, and return the folds (count,).

    `copies` (p, 2) are pairs of row numbers of photos that are near-duplicates. They get the same fold.
    """
    links = coo_array((np.ones(len(copies)), (copies[:, 0], copies[:, 1])), shape=(count, count))
    groups = connected_components(links, directed=False)[1]
    return np.random.default_rng(seed).integers(FOLDS, size=count)[groups]


def cross_fit(
    blocks: Callable[[int], Iterable[NumberedPairBlock]],
    view: ImageView,
    text: TextView,
    threads: int,
    device: "torch.device | None" = None,
) -> tuple[Scores, Scores]:
    """Score every photo with all of its captions, and every single caption. Return both Scores.

    `blocks(fold)` yields the pairs of a fold, in ascending order of their ids. `view` and `text` describe the features
    and text vectors. The moments are summed with `threads` threads, or on the GPU `device`. Only `scores` and
    `exchanged` are in memory, with 16 bytes for each pair. The embeddings of a fold and `pairs` are in temporary files.
    Raises InputError if one fold has nearly all captions, because their photos are near-duplicates.
    """
    moments = [sum_blocks(blocks(fold), view, text, threads, device) for fold in range(FOLDS)]
    total = sum_moments(moments)
    greatest = max(own.n for own in moments)
    if greatest > MAX_FOLD_SHARE * total.n:
        raise InputError(
            f"{greatest:,.0f} of {total.n:,.0f} captions belong to photos that are near-duplicates of each other, and"
            f" at most {MAX_FOLD_SHARE:.0%} may, so that enough other photos are left to judge these captions. Leave"
            " out near-duplicates, or add other photos."
        )
    photos, captions = _Collected(), _Collected()
    for fold, own in enumerate(moments):
        others = total - own
        directions = CCASolver(others).solve(RIDGE, RIDGE, DIMENSIONS)
        model = NormalizedCCA(view, text, others.mean_x, others.mean_y, directions, POWER)
        x, y, ids = DiskRows(directions.w.shape[1]), DiskRows(directions.u.shape[1]), []
        for block in blocks(fold):
            x.append(model.embed_images(block.features))
            y.append(model.embed_sentences(block.sentences))
            ids.append((block.image_id, block.sentence_id, block.image_id[block.owners]))
        if not ids:
            continue
        image_id, sentence_id, sentence_images = map(np.concatenate, zip(*ids, strict=True))
        for rows in np.array_split(np.arange(len(image_id)), -(-len(image_id) // MAX_RIVALS)):
            own_captions = np.arange(*np.searchsorted(sentence_images, [image_id[rows[0]], image_id[rows[-1]] + 1]))
            owners = np.searchsorted(image_id[rows], sentence_images[own_captions])
            scores = score_rivals(image_id[rows], sentence_id[own_captions], owners, x[rows], y[own_captions])
            photos.append(scores[0])
            captions.append(scores[1])
    return photos.scores(), captions.scores()


class _Collected:
    """The scores of several groups of pairs, whose `pairs` are on disk."""

    def __init__(self) -> None:
        self._scores: list[np.ndarray] = []
        self._exchanged: list[np.ndarray] = []
        self._pairs = DiskRows(len(PAIR_COLUMNS), dtype=np.int64)

    def append(self, group: Scores) -> None:
        """Append the scores of a group."""
        self._scores.append(group.scores)
        self._exchanged.append(group.exchanged)
        self._pairs.append(group.pairs[np.arange(len(group.scores))])

    def scores(self) -> Scores:
        """Return the scores of all groups."""
        return Scores(np.concatenate(self._scores), np.concatenate(self._exchanged), self._pairs)


def score_rivals(
    image_id: np.ndarray, sentence_id: np.ndarray, owners: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[Scores, Scores]:
    """Score n photos with all their captions, and each of their m captions. Return both Scores.

    x (n, c) and y (m, c) are the embeddings, of unit length. Caption j belongs to the photo `owners[j]` (m,), which
    ascends. `image_id` (n,) and `sentence_id` (m,) are the ids of photos and captions.
    """
    products = x @ y.T
    with_others = _replace_own(products, owners, -1)
    r_x = np.asarray(mean_of_greatest(with_others, NEIGHBOURS))
    r_y = np.asarray(mean_of_greatest(with_others.T, NEIGHBOURS))
    csls = _HubCorrected(2 * products - r_x[:, None] - r_y, r_x, r_y)
    preferred = sentence_id[_replace_own(csls.scores, owners, -np.inf).argmax(axis=1)]
    return (
        _score_photos(csls.scores, image_id, owners, preferred),
        _score_captions(csls, x, y, image_id, sentence_id, owners, preferred),
    )


class _HubCorrected(NamedTuple):
    """The CSLS scores (n, m) of photos with captions, and the hub corrections r(x) (n,) and r(y) (m,)."""

    scores: np.ndarray
    image_corrections: np.ndarray
    caption_corrections: np.ndarray


def _replace_own(scores: np.ndarray, owners: np.ndarray, value: float) -> np.ndarray:
    """Return a copy of `scores` (n, m) in which each photo's scores with its own captions are `value`."""
    replaced = scores.copy()
    replaced[owners, np.arange(len(owners))] = value
    return replaced


def _score_photos(scores: np.ndarray, image_id: np.ndarray, owners: np.ndarray, preferred: np.ndarray) -> Scores:
    """Score each photo with all of its captions. An exchanged pair has the captions of the photo n // 2 rows later.

    `scores` (n, m) are the CSLS scores, and `preferred` (n,) the ids of the rivals' captions that fit the photos best.
    """
    n = len(image_id)
    photos = np.arange(n)
    means = (owner_matrix(owners, n) @ scores.T).T / np.bincount(owners, minlength=n)  # (n photos, n sets of captions)
    own = means.diagonal().copy()  # A view would keep all means in memory.
    exchanged = means[photos, (photos + n // 2) % n]
    rank = 1 + (means > own[:, None]).sum(axis=1)
    pairs = np.stack([image_id, np.full(n, -1), rank, np.full(n, n - 1), preferred], axis=1)
    return Scores(own, exchanged, pairs)


def _score_captions(
    csls: _HubCorrected,
    x: np.ndarray,
    y: np.ndarray,
    image_id: np.ndarray,
    sentence_id: np.ndarray,
    owners: np.ndarray,
    preferred: np.ndarray,
) -> Scores:
    """Score each caption with its photo and the photo's other captions. An exchanged pair has the caption m // 2 rows
    later.

    `csls` has the CSLS scores, and `preferred` (n,) the ids of the rivals' captions that fit the photos best. The other
    arguments are as in `score_rivals`.
    """
    n, m = len(x), len(y)
    captions = np.arange(m)
    counts = np.bincount(owners, minlength=n)
    siblings = ((owner_matrix(owners, n) @ y)[owners] - y) / np.maximum(counts[owners] - 1, 1)[:, None]
    context = unit_rows(x[owners] + siblings)

    def score_with(others: np.ndarray) -> np.ndarray:
        corrections = csls.image_corrections[owners] + csls.caption_corrections[others]
        return 2 * np.einsum("ij,ij->i", context, y[others]) - corrections

    rivals = np.sort(_replace_own(csls.scores, owners, -np.inf), axis=1)
    higher = [
        m - np.searchsorted(rivals[photo], csls.scores[photo, caption], side="right")
        for caption, photo in enumerate(owners)
    ]
    columns = (image_id[owners], sentence_id, 1 + np.array(higher), m - counts[owners], preferred[owners])
    return Scores(score_with(captions), score_with((captions + m // 2) % m), np.stack(columns, axis=1))
