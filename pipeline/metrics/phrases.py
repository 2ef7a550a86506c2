"""Retrieval between noun phrases and image regions, within an image and within a whole split (Niu et al. 2017, Table
4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.compute.precision import require_finite
from pipeline.compute.ragged import runs
from pipeline.errors import UsageError
from pipeline.metrics.retrieval import Bootstrap, measure

CHANCE_DIM = 16
"""Number of dimensions of the random vectors with which the chance level is measured."""
BLOCK_QUERIES = 256
"""Number of queries whose scores with the whole gallery are computed at once."""
TIE_TOLERANCE = 1e-12
"""Largest difference of two scores that counts as a tie. Rounding errors of float64 products of unit vectors are
smaller."""


@dataclass(frozen=True)
class PhraseSet:
    """The p noun phrases of a split.

    `texts` are the words of each phrase, and `heads` the head word of each phrase. `images` (p,) are the row numbers of
    the images to which the phrases belong, in ascending order. `vectors` (p, c) are the embeddings of the phrases. The
    inner product of a phrase and a region is their score. The vectors have unit length if the model compares by cosine,
    as `hmlstm` does, but not for multi-vector models such as `dvsa`.
    """

    texts: Sequence[str]
    heads: Sequence[str]
    images: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class RegionSet:
    """The r regions of the images of a split. No region is a whole image.

    `images` (r,) are the row numbers of the images to which the regions belong, in ascending order. `boxes` (r, 4) are
    x1, y1, x2, y2 in pixels. `vectors` (r, c) are the embeddings of the regions. They have unit length if the model
    compares by cosine (see PhraseSet).
    """

    images: np.ndarray
    boxes: np.ndarray
    vectors: np.ndarray


@dataclass(frozen=True)
class Gold:
    """The g annotated boxes of the images of a split.

    `boxes` (g, 4) are x1, y1, x2, y2 in pixels, `images` (g,) are the row numbers of the images to which the boxes
    belong, and `labels` are the labels of the boxes. `names` maps a label to the words or phrases that name it. A label
    that is not in `names` is its own only name.
    """

    images: np.ndarray
    boxes: np.ndarray
    labels: Sequence[str]
    names: Mapping[str, frozenset[str]]


def measure_phrases(
    phrases: PhraseSet, regions: RegionSet, gold: Gold, least: float, bootstrap: Bootstrap
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Measure how well noun phrases and regions retrieve each other (Niu et al. 2017, Table 4).

    A phrase is *named* if its image has a gold box whose label names the phrase. A region of the image is *right* for a
    named phrase if it overlaps such a box with an intersection over union of at least `least`. The measures are:

    - `correspondence`: the percentage of named phrases whose most similar region in their image is right.
    - `phrase_to_region` and `region_to_phrase`, with the scope `image`: recalls, median rank and mean rank of the best
      right item among the wrong items of the same image. The items are the regions if a phrase is the query, and the
      noun phrases if a region is the query.
    - The same directions with the scope `split`: the same measures among all regions of the split, or among all
      different named phrases of the split. Phrases with the same words in several images count as one phrase.

    `bootstrap` says how often the images are resampled for the confidence intervals. For `phrase_to_region` with the
    scope `split`, the different phrases are resampled instead. Each measure has a chance level. Returns two values:

    - The measures, with the counts `n_phrases`, `n_named`, `n_without_right_region` (named phrases without a right
      region in their image), `n_texts` (different named phrases) and `n_regions`.
    - A mapping with two arrays for each direction and scope. `DIRECTION.SCOPE` has the ranks (k,) of the k queries that
      have a right item. `DIRECTION.SCOPE.images` has the images (k,) of these queries. An exception is
      `phrase_to_region.split.images`, which has the numbers of the different phrases, because a phrase may belong to
      several images.

    Raises UsageError if no region is right for any phrase, and IntegrityError if a vector is not finite.
    """
    named = named_boxes(phrases.texts, phrases.heads, phrases.images, gold.labels, gold.images, gold.names)
    within = pairs_within(phrases.images, regions.images)
    right = judge_pairs(within, regions.boxes, named, gold.boxes, least)
    if not right.any():
        raise UsageError(
            "Phrases cannot be evaluated, because no noun phrase has a correct region: no label of a box is a name of a"
            f" phrase, or no region overlaps such a box with an intersection over union of {least:g} or more. Correct"
            " phrases.names, or add labelled boxes to the collection."
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
        """Return (direction, scope) -> ranks (q,). The rank of a query is the rank of its best right item, or 0 if no
        item is right for the query."""
        scores = score_pairs(within, phrase_vectors, region_vectors)
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
    """Compute the measures of `measure` from the `ranks` (q,) of q queries. A query with the rank 0 has no right item
    and is left out. The number of the other queries is returned as `n`.

    `owners` (q,) has the image, or the phrase, to which each query belongs. The bootstrap resamples these images or
    phrases.
    """
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
    """Find the pairs of a phrase and a box of the same image in which the label of the box names the phrase. Return the
    number of the phrase and the number of the box of each pair, (k, 2), in ascending order.

    A label names a phrase if the whole phrase (in `texts`) or its head word (in `heads`) is among the `names` of the
    label. A label that is not in `names` is its own only name. `images` (p,) and `box_images` (g,) are the images of
    the p phrases and of the g boxes, and `labels` are the labels of the boxes.
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
    """Return all pairs (k, 2) of one of p items and one of r other items that belong to the same image.

    `images` (p,) are the images of the items, and `other_images` (r,) are the images of the other items, in ascending
    order. A pair has the row numbers of both items. The pairs are in ascending order.
    """
    first = np.searchsorted(other_images, images, "left")
    counts = np.searchsorted(other_images, images, "right") - first
    return np.stack([np.repeat(np.arange(len(images)), counts), runs(first, counts)], axis=1)


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compute the intersection over union (n,) of `boxes` (n, 4) with `others` (n, 4), row by row.

    A box is x1, y1, x2, y2. The result is 0 for two boxes without area.
    """
    low = np.maximum(boxes[:, :2], others[:, :2])
    high = np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others))
    union = sum(areas) - shared
    return np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)


def judge_pairs(pairs: np.ndarray, boxes: np.ndarray, named: np.ndarray, gold: np.ndarray, least: float) -> np.ndarray:
    """Return for each pair of a phrase and a region whether the region is right for the phrase, (k,) bool.

    A region is right if its box overlaps one of the phrase's gold boxes with an intersection over union of at least
    `least`. `pairs` (k, 2) are the pairs to judge, in ascending order, as numbers of a phrase and a region. `boxes`
    (r, 4) are the boxes of the regions, and `gold` (g, 4) are the gold boxes. `named` (q, 2) are the numbers of a
    phrase and of one of its gold boxes.
    """
    right = np.zeros(len(pairs), bool)
    matches = pairs_within(named[:, 0], pairs[:, 0])  # Pairs (row of `named`, row of `pairs`) of one phrase.
    overlaps = overlap(boxes[pairs[matches[:, 1], 1]], gold[named[matches[:, 0], 1]]) >= least
    right[matches[overlaps, 1]] = True
    return right


def score_pairs(pairs: np.ndarray, phrases: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Compute the inner products (k,) float64 of `pairs` of vectors. A pair in `pairs` (k, 2) is a row number of
    `phrases` (p, c) and a row number of `regions` (r, c)."""
    return np.einsum("ij,ij->i", phrases[pairs[:, 0]], regions[pairs[:, 1]], dtype=np.float64)


def rank_within(scores: np.ndarray, right: np.ndarray, queries: np.ndarray, count: int) -> np.ndarray:
    """Rank the best right candidate of each of `count` queries among the query's wrong candidates.

    Candidate i of k has the score `scores[i]` for the query with the number `queries[i]`, and `right[i]` says whether
    it is right for this query. Returns the ranks (count,) from 1, or 0 if a query has no right candidate. Ties count
    against the model.
    """
    best = np.full(count, -np.inf)
    np.maximum.at(best, queries[right], scores[right])
    above = ~right & (scores >= best[queries] - TIE_TOLERANCE)
    ranks = 1 + np.bincount(queries[above], minlength=count)
    return np.where(np.isfinite(best), ranks, 0)


def rank_among_all(queries: np.ndarray, gallery: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Rank the best right item of the `gallery` (m, c) for each of `queries` (n, c) among all wrong items, by inner
    products.

    A pair in `pairs` (k, 2) is a row number of `queries` and the row number of an item that is right for this query.
    Returns the ranks (n,) from 1, or 0 if a query has no right item. Ties count against the model.
    """
    gallery = gallery.astype(np.float64)
    ranks = np.zeros(len(queries), np.int64)
    owning = np.unique(pairs[:, 0])
    for start in range(0, len(owning), BLOCK_QUERIES):
        rows = owning[start : start + BLOCK_QUERIES]
        own = pairs[np.isin(pairs[:, 0], rows)]
        right = np.zeros((len(rows), len(gallery)), bool)
        right[np.searchsorted(rows, own[:, 0]), own[:, 1]] = True
        scores = queries[rows] @ gallery.T
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        ranks[rows] = 1 + ((scores >= best - TIE_TOLERANCE) & ~right).sum(axis=1)
    return ranks


def best_within(
    images: np.ndarray, phrases: np.ndarray, region_images: np.ndarray, regions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Find the region of the same image that is most similar to each of p phrases.

    `phrases` (p, c) belong to `images` (p,), and `regions` (r, c) belong to `region_images` (r,), which must be in
    ascending order. Returns for each phrase the row number of the region (p,), and the inner product (p,) of the phrase
    and the region. If the image of a phrase has no region, the row number is -1 and the inner product is minus
    infinity.
    """
    pairs = pairs_within(images, region_images)
    scores = score_pairs(pairs, phrases, regions)
    order = np.lexsort([-scores, pairs[:, 0]])
    owning, first = np.unique(pairs[order, 0], return_index=True)
    best = np.full(len(images), -1)
    similarity = np.full(len(images), -np.inf)
    best[owning] = pairs[order[first], 1]
    similarity[owning] = scores[order[first]]
    return best, similarity
