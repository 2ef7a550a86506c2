"""Phrases and the regions that they speak of: ranking (seed 002, Table 4), and correspondences against gold boxes."""

from dataclasses import dataclass

import numpy as np

from pipeline.evaluate.ranks import count_ranks


@dataclass(frozen=True)
class RegionPhraseRanking:
    """Of each region, the rank of its best phrase among all phrases but its other ones: shares in percent."""

    recall_1: float
    recall_5: float
    recall_10: float
    median_rank: float
    n_regions: int
    n_phrases: int


def rank_phrases(regions: np.ndarray, phrases: np.ndarray, owners: np.ndarray) -> RegionPhraseRanking:
    """Ranking of phrases (p, c) by regions (r, c), unit vectors, where phrase j describes region owners[j].

    Raises as `count_ranks` does.
    """
    ranks = count_ranks(regions, phrases, owners, "inner_product").image_to_sentence
    recalls = (100 * float((ranks <= k).mean()) for k in (1, 5, 10))
    return RegionPhraseRanking(*recalls, float(np.median(ranks)), len(regions), len(phrases))


def overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(n,) intersection over union of boxes (n, 4) with others (n, 4), pair by pair; x1, y1, x2, y2."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    areas = (np.prod(each[:, 2:] - each[:, :2], axis=1) for each in (boxes, others))
    union = sum(areas) - shared
    return np.divide(shared, union, out=np.zeros(len(boxes)), where=union > 0)


def judge_correspondences(chosen: np.ndarray, gold: np.ndarray, owners: np.ndarray, least: float) -> np.ndarray:
    """(p,) bool: whether chosen[j] (p, 4) overlaps a gold box of phrase j by at least `least`.

    gold (g, 4), owners (g,) the phrase of each; a phrase without a gold box is false.
    """
    right = np.zeros(len(chosen), bool)
    np.logical_or.at(right, owners, overlap(chosen[owners], gold) >= least)
    return right
