"""Which captions are probably wrong: every pair scored in a space that was fitted without it.

The pairs are dealt into folds, all captions of a photograph and of its copies into the same one. A fold is embedded by
the normalized CCA of the moments of all others, which are the sum less its own (Gong et al. 2014, eq. 2). There a pair
is scored against the fold's other pairs, its rivals, which the space has not seen either, by CSLS (Conneau et al. 2018,
section 2.3):

    s(x, y) = 2 x'y - r(x) - r(y)

where r(x) is the mean product of the photograph x with the NEIGHBOURS nearest captions of others, and r(y) likewise. A
photograph's captions together have the mean of their scores. A single one is scored by x'y with x and the mean of the
photograph's other captions, added and scaled to unit length, in place of x: they should speak of the same thing.

What wrong pairs score needs no labels: the captions of another photograph are wrong. With the distribution function F
of the scores of all pairs and F0 of such exchanged ones, at most min F(s)/F0(s) of all pairs are wrong, since right
ones only add to F (Storey 2002, with F0 in place of the uniform distribution). The lowest so many are taken for wrong.

This is an upper bound, which right pairs with unusual captions raise. Right pairs become rarer downwards about as fast
as the odds F0/(1 - F0), or faster. So if all pairs below a high quantile of F0 are taken for right, the odds bound the
number of right pairs below a lower quantile, and only the pairs in excess of this number are likely to be wrong.
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
"""Columns of a sparse view of the text that are used: the most common words."""
RIDGE = 1.0
"""Ridge of both views, relative to their mean variance."""
DIMENSIONS = 128
"""Dimensions of the space."""
POWER = 1.0
"""Power of the eigenvalues that scales the directions."""
NEIGHBOURS = 10
"""Number of nearest items in a hub correction r."""
MAX_RIVALS = 2048
"""Maximum number of photos of a fold that are compared with each other."""
LEAST_PHOTOGRAPHS = 100
"""Minimum number of photos with captions; from fewer nothing can be learned."""
MAX_SHARE_OF_A_FOLD = 0.9
"""Largest share of all captions in one fold; without near-duplicates it is about 1 / FOLDS."""
QUANTILES = np.linspace(0.3, 0.5, 5)
"""Quantiles of the exchanged pairs' scores at which F/F0 is compared; below them too few pairs are counted."""
RIGHT_QUANTILE = 0.9
"""Quantile of the exchanged pairs' scores below which most pairs are right."""
PAIR_COLUMNS = ("image_id", "sentence_id", "rank", "rivals", "rather")
"""Columns of `Scores.pairs`."""


@dataclass(frozen=True)
class Scores:
    """The scores of k pairs of a photo and its captions. Low `scores` (k,) are bad.

    `exchanged` (k,) are the scores of as many wrong pairs. The columns PAIR_COLUMNS of `pairs` (k, 5) are the ids of
    the photo and of the caption, -1 for all captions of the photo, then a rank that counts from 1 among the captions of
    the `rivals`, a number of photos or captions, and the rivals' caption that fits the photo best.
    """

    scores: np.ndarray
    exchanged: np.ndarray
    pairs: LazyRows

    @property
    def wrong(self) -> int:
        """The number of pairs that are probably wrong: the pairs with the lowest scores."""
        return int(min(self._count_below(QUANTILES) / QUANTILES))

    @property
    def likely_wrong(self) -> int:
        """The number of pairs, of the lowest scores, that are wrong with few exceptions; never more than `wrong`."""
        odds, high = QUANTILES / (1 - QUANTILES), RIGHT_QUANTILE / (1 - RIGHT_QUANTILE)
        right = self._count_below(np.array([RIGHT_QUANTILE])) * odds / high
        right += np.sqrt(right)  # and as many more as the standard deviation of a Poisson count
        excess = (self._count_below(QUANTILES) - right) / QUANTILES
        return max(0, int(min(excess)))

    def _count_below(self, quantiles: np.ndarray) -> np.ndarray:
        """Counts the pairs whose scores are below each of some quantiles of the exchanged pairs' scores."""
        return np.searchsorted(np.sort(self.scores), np.quantile(self.exchanged, quantiles), side="right")


def deal_folds(copies: np.ndarray, count: int, seed: int) -> np.ndarray:
    """(count,) the fold of each photograph, the same for `copies` (p, 2) of each other."""
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
    """Score photos with all their captions, and single captions. `blocks(fold)` yields the pairs of a fold; moments are
    summed on `device`.

    Only `scores` and `exchanged` are held in memory, 16 bytes for each pair. The embeddings of a fold and `pairs` are
    in temporary files. Raises InputError if nearly all captions are in one fold, because their photos are
    near-duplicates.
    """
    moments = [sum_blocks(blocks(fold), view, text, threads, device) for fold in range(FOLDS)]
    total, greatest = sum_moments(moments), max(own.n for own in moments)
    if greatest > MAX_SHARE_OF_A_FOLD * total.n:
        raise InputError(
            f"{greatest:,.0f} of {total.n:,.0f} captions belong to photos that are near-duplicates of each other, so"
            " too few others are left to judge them by; leave out near-duplicates or add other photos"
        )
    photographs, captions = _Collected(), _Collected()
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
            photographs.append(scores[0])
            captions.append(scores[1])
    return photographs.scores(), captions.scores()


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
    """Score n photos, embedded as x (n, c), and their m captions, embedded as y (m, c), both of unit length. Caption j
    is of the photo `owners[j]`, in ascending order."""
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
    """The CSLS `scores` (n, m) of photos with captions, and the corrections r(x) (n,) and r(y) (m,)."""

    scores: np.ndarray
    image_corrections: np.ndarray
    caption_corrections: np.ndarray


def _replace_own(scores: np.ndarray, owners: np.ndarray, value: float) -> np.ndarray:
    """Replace the scores of photos with their own captions by `value`, in a copy of `scores` (n, m)."""
    replaced = scores.copy()
    replaced[owners, np.arange(len(owners))] = value
    return replaced


def _score_photos(scores: np.ndarray, image_id: np.ndarray, owners: np.ndarray, preferred: np.ndarray) -> Scores:
    """Score each photo with all of its captions. The exchanged pairs take the captions of the photo n // 2 later."""
    n = len(image_id)
    photos = np.arange(n)
    means = (owner_matrix(owners, n) @ scores.T).T / np.bincount(owners, minlength=n)  # (n photos, n sets of captions)
    own = means.diagonal().copy()  # the view would keep all means
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
    """Score each caption with its photo and its other captions. The exchanged pairs take the caption m // 2 later."""
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
