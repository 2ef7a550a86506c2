"""What a random ranking gives: the expected values behind the row `Random` of Socher et al. 2014, Table 1."""

import numpy as np

from pipeline.metrics.retrieval import CUTOFFS


def chance(owners: np.ndarray) -> dict[str, dict[str, float]]:
    """The measures that a random ranking has on average, of each direction and, where every image has two sentences, of
    `sentence_similarity`; sentence j of `owners` (m,) is of image `owners[j]`.

    The median rank is that of all queries' ranks together.
    """
    counts, m = np.bincount(owners), len(owners)
    found = {
        "image_to_sentence": random_measures(counts, m),
        "sentence_to_image": random_measures(np.ones(m, np.int64), len(counts)),
    }
    if counts.min() > 1:
        found["sentence_similarity"] = random_measures(counts[owners] - 1, m - 1)
    return found


def random_measures(right: np.ndarray, total: int) -> dict[str, float]:
    """Of queries that each have `right` (q,) right answers among `total` in random order, by the place of the first.

    P(place > t) is the chance that the first t answers are wrong, the product of (total - right - j) / (total - j) over
    j from 0 to t - 1; its sum over t from 0 on, the mean place, is (total + 1) / (right + 1).
    """
    kinds, counts = np.unique(right, return_counts=True)
    shares, places = counts / counts.sum(), np.arange(total)
    wrong = np.maximum(total - kinds[:, None] - places, 0) / (total - places)
    later = np.concatenate([[1.0], shares @ np.cumprod(wrong, axis=1)])  # of all queries, P(place > t) for t from 0 on
    recalls = {f"recall@{k}": 100 * float(1 - later[min(k, total)]) for k in CUTOFFS}
    mean = float(shares @ ((total + 1) / (kinds + 1)))
    return {**recalls, "median_rank": float(np.argmax(later <= 0.5)), "mean_rank": mean}
