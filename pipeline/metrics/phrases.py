"""Phrases and the regions that they speak of: how well they find each other within their image and among those of a
whole split (Niu et al. 2017, Table 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.compute.precision import require_finite
from pipeline.compute.ragged import runs
from pipeline.errors import UsageError
from pipeline.metrics.retrieval import Bootstrap, measure

CHANCE_DIM = 16
"""Dimensions of the random vectors that the chance level is measured with."""
BLOCK = 256
"""Queries whose scores with the whole gallery are made at once."""
TIE = 1e-12
"""Difference of float64 products of unit vectors that are the same but for rounding."""


@dataclass(frozen=True)
class PhraseSet:
    """p noun phrases: their words, their heads, the image of each (p,), ascending, and unit `vectors` (p, c)."""

    texts: Sequence[str]
    heads: Sequence[str]
    images: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class RegionSet:
    """r regions, none a whole image: the image of each (r,), ascending, `boxes` (r, 4), unit `vectors` (r, c)."""

    images: np.ndarray
    boxes: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class Gold:
    """g boxes (g, 4) with the image (g,) and the label of each, and what each label may be called."""

    images: np.ndarray
    boxes: np.ndarray
    labels: Sequence[str]
    names: Mapping[str, frozenset[str]]


def measure_phrases(
    phrases: PhraseSet, regions: RegionSet, gold: Gold, least: float, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The share of right correspondences, and the ranking in both directions, each beside its chance level; and the
    ranks (k,) that these are measured from, DIRECTION.SCOPE, with the images (k,) of what was ranked (of a phrase in
    the split, which may be of several, its own number), DIRECTION.SCOPE.images.

    A phrase is named where a gold box of its image has a label for it; a region is right for it that overlaps such a
    box by at least `least`. `correspondence`: of the named phrases, those whose most similar region is right.
    `image`: ranks among the regions, or noun phrases, of the image. `split`: among all regions, or all named phrases
    of different words, where those of one image or another that were called so are right (Niu et al. 2017, Table 4).
    Raises UsageError where no phrase is named.
    """
    named = named_boxes(phrases.texts, phrases.heads, phrases.images, gold.labels, gold.images, gold.names)
    within = pairs_within(phrases.images, regions.images)
    right = judge_pairs(within, regions.boxes, named, gold.boxes, least)
    if not right.any():
        raise UsageError(
            "no region is right for any noun phrase: no box's label names one, or no region overlaps such a box;"
            " correct phrases.names, or add labelled boxes to the collection"
        )
    require_finite("embeddings", "regions", regions.vectors)
    require_finite("embeddings", "phrases", phrases.vectors)
    owning = np.unique(named[:, 0])
    texts, first, text_of = np.unique(np.array(phrases.texts)[owning], return_index=True, return_inverse=True)
    number = np.full(len(phrases.texts), -1)
    number[owning] = text_of
    matched = within[right]
    together = np.unique(np.stack([number[matched[:, 0]], matched[:, 1]], axis=1), axis=0)
    owners = {
        ("phrase_to_region", "image"): phrases.images,
        ("phrase_to_region", "split"): np.arange(len(texts)),
        ("region_to_phrase", "image"): regions.images,
        ("region_to_phrase", "split"): regions.images,
    }

    def rank(phrase_vectors: np.ndarray, region_vectors: np.ndarray) -> dict[tuple[str, str], np.ndarray]:
        """(direction, scope) -> ranks of all that asks; 0 where nothing is right."""
        scores = scores_of(within, phrase_vectors, region_vectors)
        distinct = phrase_vectors[owning[first]]
        return {
            ("phrase_to_region", "image"): rank_within(scores, right, within[:, 0], len(phrase_vectors)),
            ("region_to_phrase", "image"): rank_within(scores, right, within[:, 1], len(region_vectors)),
            ("phrase_to_region", "split"): rank_among_all(distinct, region_vectors, together),
            ("region_to_phrase", "split"): rank_among_all(region_vectors, distinct, together[:, ::-1]),
        }

    rng = np.random.default_rng(bootstrap.seed)
    random = rank(*(rng.standard_normal((len(side), CHANCE_DIM)) for side in (phrases.texts, regions.images)))
    ranks = rank(phrases.vectors, regions.vectors)
    measured: dict[str, dict[str, Any]] = {}
    kept: dict[str, np.ndarray] = {}
    for (direction, scope), images in owners.items():
        chance = _measure(random[direction, scope], images, Bootstrap(0, bootstrap.seed))
        found = _measure(ranks[direction, scope], images, bootstrap)
        measured.setdefault(direction, {})[scope] = {**found, "chance": chance}
        ranked = ranks[direction, scope] > 0
        kept[f"{direction}.{scope}"] = ranks[direction, scope][ranked].astype(np.int32)
        kept[f"{direction}.{scope}.images"] = images[ranked].astype(np.int32)

    n_right = np.bincount(matched[:, 0], minlength=len(phrases.texts))[owning]
    n_regions = np.bincount(within[:, 0], minlength=len(phrases.texts))[owning]
    first_right = ranks["phrase_to_region", "image"][owning] == 1
    value = {
        "n_phrases": len(phrases.texts),
        "n_named": len(owning),
        "n_without_right_region": int((n_right == 0).sum()),
        "n_texts": len(texts),
        "n_regions": len(regions.images),
        "correspondence": {
            "right": 100 * float(first_right.mean()),
            "chance": 100 * float((n_right / np.maximum(n_regions, 1)).mean()),
        },
        **measured,
    }
    return value, kept


def _measure(ranks: np.ndarray, owners: np.ndarray, bootstrap: Bootstrap) -> dict[str, Any]:
    """The measures of the ranks that there are, of `n` that asked; `owners` are the units that are resampled."""
    ranked = ranks > 0
    units = np.unique(owners[ranked], return_inverse=True)[1]
    return {"n": int(ranked.sum()), **measure(ranks[ranked], units, bootstrap)}


def named_boxes(
    texts: Sequence[str],
    heads: Sequence[str],
    images: np.ndarray,
    labels: Sequence[str],
    box_images: np.ndarray,
    names: Mapping[str, frozenset[str]],
) -> np.ndarray:
    """(k, 2) pairs of a phrase and a box of its image whose label names it, ascending.

    A label names the phrases whose words (`texts`) or whose head (`heads`) are among its `names`, or, where it has
    none there, are the label itself. `images` (p,) and `box_images` (g,) say what image each is of.
    """
    by_image: dict[int, list[int]] = {}
    for box, image in enumerate(box_images.tolist()):
        by_image.setdefault(image, []).append(box)
    found = [
        (phrase, box)
        for phrase, (text, head, image) in enumerate(zip(texts, heads, images.tolist(), strict=True))
        for box in by_image.get(image, ())
        if not {text, head}.isdisjoint(names.get(labels[box], frozenset([labels[box]])))
    ]
    return np.array(found, np.int64).reshape(-1, 2)


def pairs_within(images: np.ndarray, other_images: np.ndarray) -> np.ndarray:
    """(k, 2) all pairs of two things of the same image, ascending; `other_images` (r,) ascend."""
    first = np.searchsorted(other_images, images, "left")
    counts = np.searchsorted(other_images, images, "right") - first
    return np.stack([np.repeat(np.arange(len(images)), counts), runs(first, counts)], axis=1)


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) intersection over union of boxes (n, 4) with others (n, 4), pair by pair; x1, y1, x2, y2."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others))
    union = sum(areas) - shared
    return np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)


def judge_pairs(pairs: np.ndarray, boxes: np.ndarray, named: np.ndarray, gold: np.ndarray, least: float) -> np.ndarray:
    """(k,) bool: of each of the `pairs` (k, 2) of a phrase and a region, whether the region's box overlaps one of the
    phrase's gold boxes by at least `least`.

    `pairs` ascend, and hold for every phrase all the regions that come into question. boxes (r, 4); `named` (q, 2)
    pairs of a phrase and a box of gold (g, 4).
    """
    right = np.zeros(len(pairs), bool)
    at = pairs_within(named[:, 0], pairs[:, 0])
    enough = overlap(boxes[pairs[at[:, 1], 1]], gold[named[at[:, 0], 1]]) >= least
    right[at[enough, 1]] = True
    return right


def scores_of(pairs: np.ndarray, phrases: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """(k,) products, in float64, of the rows `pairs` (k, 2) of phrases (p, c) and regions (r, c)."""
    return np.einsum("ij,ij->i", phrases[pairs[:, 0]], regions[pairs[:, 1]], dtype=np.float64)


def rank_within(scores: np.ndarray, right: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """(count,) the rank, from 1, of each query's best right candidate among its wrong ones; 0 where none is right.

    A candidate is of the query `queries` (k,), has `scores` (k,), and is `right` (k,). Ties count against the model.
    """
    best = np.full(count, -np.inf)
    np.maximum.at(best, queries[right], scores[right])
    above = ~right & (scores >= best[queries] - TIE)
    ranks = 1 + np.bincount(queries[above], minlength=count)
    return np.where(np.isfinite(best), ranks, 0)


def rank_among_all(queries: np.ndarray, gallery: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(n,) the rank, from 1, of the best of the `gallery` (m, c) that belongs to each of `queries` (n, c), among all
    that do not; 0 where none does.

    `pairs` (k, 2) are rows of queries and gallery that belong together. Ties count against the model.
    """
    gallery = gallery.astype(np.float64)
    ranks = np.zeros(len(queries), np.int64)
    owning = np.unique(pairs[:, 0])
    for start in range(0, len(owning), BLOCK):
        rows = owning[start : start + BLOCK]
        own = pairs[np.isin(pairs[:, 0], rows)]
        right = np.zeros((len(rows), len(gallery)), bool)
        right[np.searchsorted(rows, own[:, 0]), own[:, 1]] = True
        scores = queries[rows] @ gallery.T
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        ranks[rows] = 1 + ((scores >= best - TIE) & ~right).sum(axis=1)
    return ranks


def best_within(
    images: np.ndarray, phrases: np.ndarray, region_images: np.ndarray, regions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The row (p,) of the region of its image that each phrase is most similar to, -1 where the image has none, and
    the similarity (p,); phrases (p, c) of `images` (p,), regions (r, c) of `region_images` (r,), ascending."""
    pairs = pairs_within(images, region_images)
    scores = scores_of(pairs, phrases, regions)
    order = np.lexsort([-scores, pairs[:, 0]])
    owning, first = np.unique(pairs[order, 0], return_index=True)
    best, similarity = np.full(len(images), -1), np.full(len(images), -np.inf)
    best[owning] = pairs[order[first], 1]
    similarity[owning] = scores[order[first]]
    return best, similarity
