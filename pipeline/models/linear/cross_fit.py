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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline.errors import InputError
from pipeline.models.linear.accumulation import sum_blocks
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.hubness import mean_of_greatest
from pipeline.models.linear.moments import sum_moments
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.views import ImageView, TextView, owner_matrix

FOLDS = 5
TERMS = 1000
"""Columns of a sparse view of the text that are used: the most common words."""
RIDGE, DIMENSIONS, POWER = 1.0, 128, 1.0
"""Of both views, relative to their mean variance; of the space."""
NEIGHBOURS = 10
RIVALS = 2048
"""Photographs of a fold that are compared with each other, at most."""
LEAST_PHOTOGRAPHS = 100
"""With captions; of fewer nothing can be learned."""
MOST_IN_A_FOLD = 0.9
"""Largest share of all captions in one fold; without near-duplicates it is about 1 / FOLDS."""
QUANTILES = np.linspace(0.3, 0.5, 5)
"""Of the exchanged pairs' scores, at which F/F0 is looked at: below, too few pairs are counted."""
RIGHT_QUANTILE = 0.9
"""Quantile of the exchanged pairs' scores below which most pairs are right."""


@dataclass(frozen=True)
class Scores:
    """Pairs (k,) of the photographs `image_id` and the captions `sentence_id`, -1 for all of a photograph's: their
    `scores`, the lower the worse, and what as many `exchanged` pairs score; the `rank` from 1 of the captions among
    those of the `rivals` in number, and of these the caption that the photograph would `rather` have."""

    image_id: np.ndarray
    sentence_id: np.ndarray
    scores: np.ndarray
    exchanged: np.ndarray
    rank: np.ndarray
    rivals: np.ndarray
    rather: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Scores"]) -> "Scores":
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

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
    blocks: Callable[[int], Iterable[Any]], view: ImageView, text: TextView, threads: int, device: Any = None
) -> tuple[Scores, Scores]:
    """Score photos with all their captions, and single captions. `blocks(fold)` are blocks as `sum_blocks` takes them,
    with `image_id` and `sentence_id`; moments are summed on `device`. Raises InputError if nearly all captions are in
    one fold, because their photos are near-duplicates."""
    moments = [sum_blocks(blocks(fold), view, text, threads, device) for fold in range(FOLDS)]
    total, greatest = sum_moments(moments), max(own.n for own in moments)
    if greatest > MOST_IN_A_FOLD * total.n:
        raise InputError(
            f"{greatest:,.0f} of {total.n:,.0f} captions belong to photos that are near-duplicates of each other, so"
            " too few others are left to judge them by; leave out near-duplicates or add other photos"
        )
    parts = []
    for fold, own in enumerate(moments):
        others = total - own
        directions = NormalizedCCA.solver(others).solve(RIDGE, RIDGE, DIMENSIONS)
        model = NormalizedCCA(view, text, others.mean_x, others.mean_y, directions, POWER)
        embedded = [
            (block.image_id, block.sentence_id, block.image_id[block.owners])
            + (model.embed_images(block.features), model.embed_sentences(block.sentences))
            for block in blocks(fold)
        ]
        if not embedded:
            continue
        image_id, sentence_id, sentence_images, x, y = map(np.concatenate, zip(*embedded, strict=True))
        for rows in np.array_split(np.arange(len(image_id)), -(-len(image_id) // RIVALS)):
            first, last = np.searchsorted(sentence_images, [image_id[rows[0]], image_id[rows[-1]] + 1])
            owners = np.searchsorted(image_id[rows], sentence_images[first:last])
            parts.append(score_rivals(image_id[rows], sentence_id[first:last], owners, x[rows], y[first:last]))
    photographs, captions = zip(*parts, strict=True)
    return Scores.join(photographs), Scores.join(captions)


def score_rivals(
    image_id: np.ndarray, sentence_id: np.ndarray, owners: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[Scores, Scores]:
    """The scores of photographs (n,), embedded as x (n, c), and of their captions (m,), embedded as y (m, c), unit
    vectors; caption j is of the photograph `owners[j]`, ascending."""
    n, m = len(x), len(y)
    photographs, captions = np.arange(n), np.arange(m)
    products = x @ y.T
    others = products.copy()
    others[owners, captions] = -1
    near_x, near_y = (mean_of_greatest(rivals, min(NEIGHBOURS, rivals.shape[1])) for rivals in (others, others.T))
    scores = 2 * products - near_x[:, None] - near_y
    others = scores.copy()
    others[owners, captions] = -np.inf
    rather = sentence_id[others.argmax(axis=1)]

    sums, counts = owner_matrix(owners, n), np.bincount(owners, minlength=n)
    together = (sums @ scores.T).T / counts
    own = np.diag(together)
    rank = 1 + (together > own[:, None]).sum(axis=1)
    exchanged = together[photographs, (photographs + n // 2) % n]
    none, rivals = np.full(n, -1), np.full(n, n - 1)
    of_photographs = Scores(image_id, none, own, exchanged, rank, rivals, rather)

    siblings = ((sums @ y)[owners] - y) / np.maximum(counts[owners] - 1, 1)[:, None]
    context = unit_rows(x[owners] + siblings)
    own, exchanged = (
        2 * np.einsum("ij,ij->i", context, y[order]) - near_x[owners] - near_y[order]
        for order in (captions, (captions + m // 2) % m)
    )
    others.sort(axis=1)
    rank = np.array([1 + m - np.searchsorted(others[i], scores[i, j], side="right") for j, i in enumerate(owners)])
    rivals = m - counts[owners]
    return of_photographs, Scores(image_id[owners], sentence_id, own, exchanged, rank, rivals, rather[owners])
