"""Is one method better than another? A paired bootstrap over images and draws."""

from collections.abc import Mapping

import numpy as np

from pipeline.metrics.retrieval import INTERVAL, Bootstrap


def paired_difference(
    ours: np.ndarray, theirs: np.ndarray, cutoff: int, bootstrap: Bootstrap
) -> Mapping[str, float | list[float]]:
    """recall@`cutoff` of `ours` minus that of `theirs`, in points, from ranks (draws, n) of the same images and draws.

    A resample draws images and, independently, training draws with replacement, the same ones for both. `ci95` bounds
    its percentiles, `p` is the share of resamples in which ours is not better.
    """
    gain = 100.0 * ((ours <= cutoff).astype(float) - (theirs <= cutoff))
    rng = np.random.default_rng(bootstrap.seed)
    n_draws, n_images = gain.shape
    resamples = np.empty(bootstrap.resamples)
    for i in range(bootstrap.resamples):
        rows, columns = rng.integers(n_draws, size=n_draws), rng.integers(n_images, size=n_images)
        resamples[i] = gain[rows][:, columns].mean()
    low, high = np.percentile(resamples, INTERVAL)
    return {
        "difference": float(gain.mean()),
        "ci95": [float(low), float(high)],
        "p": float(np.mean(resamples <= 0)),
    }
