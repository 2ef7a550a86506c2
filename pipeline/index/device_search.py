"""The nearest by one product of matrices on a GPU."""

import numpy as np
from torch import Tensor

from pipeline.device import full_float32


def nearest_on(queries: Tensor, vectors: Tensor, count: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(q, count) the greatest scores of `queries` (q, c) among `vectors` (n, c), best first, and their rows.

    Both are float32 on one device; a score is the inner product, or minus the squared distance.
    """
    with full_float32():
        scores = queries @ vectors.T
    if metric == "euclidean":
        scores.mul_(2).sub_(queries.square().sum(dim=1, keepdim=True)).sub_(vectors.square().sum(dim=1))
    best = scores.topk(count, dim=1)
    return best.values.cpu().numpy(), best.indices.cpu().numpy()
