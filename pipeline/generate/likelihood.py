"""Retrieval by a generator, which ranks sentences and images by how probable it finds them together: the m-RNN that
Kiros et al. 2014, section 3.1, compare with."""

import numpy as np


def likelihood_scores(log_probabilities: np.ndarray, lengths: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    """(n, m) float64 scores of n images by m sentences from log P of each sentence given each image (n, m).

    `lengths` (m,) count a sentence's words and its END. Without a `prior`, the score is minus the logarithm of the
    sentence's perplexity. With `prior` (k, m), log P given k training images, the logarithm of its mean probability
    over these is subtracted first, so that a common sentence does not describe every image. Which image is best for a
    sentence does not depend on it.
    """
    scores = log_probabilities.astype(np.float64)
    if prior is not None:
        scores -= np.logaddexp.reduce(prior.astype(np.float64), axis=0) - np.log(len(prior))
    return scores / lengths
