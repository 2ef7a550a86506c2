"""Protocols: which sentences of a split are queries and gallery."""

from collections.abc import Callable

import numpy as np

from pipeline.errors import UsageError


def all_sentences(owners: np.ndarray) -> np.ndarray:
    """Every sentence (Karpathy and Fei-Fei)."""
    return np.arange(len(owners))


def first_sentence(owners: np.ndarray) -> np.ndarray:
    """The first sentence of each image only (Gong et al.)."""
    return np.unique(owners, return_index=True)[1]


PROTOCOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "all-sentences": all_sentences,
    "first-sentence": first_sentence,
}
"""Name -> the function that takes `owners` (m,), the image of each sentence, to the rows of the sentences used."""


def select_sentences(owners: np.ndarray, protocol: str) -> np.ndarray:
    """The rows of the sentences that `protocol` uses. UsageError lists the known protocols."""
    if protocol not in PROTOCOLS:
        raise UsageError(f"unknown protocol {protocol}; there are {', '.join(PROTOCOLS)}")
    return PROTOCOLS[protocol](owners)
