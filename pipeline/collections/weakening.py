"""Simulated weak text: titles, tags and descriptions made from true sentences, with adjustable noise."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from pipeline.config.collection import SimulationSettings
from pipeline.errors import InputError

MIN_TITLE_WORDS = 2
"""Smallest number of words of a simulated title, unless its sentence is shorter."""
MAX_TITLE_WORDS = 6
"""Largest number of words of a simulated title."""


def simulate(image_id: np.ndarray, texts: Sequence[str], noise: SimulationSettings, seed: int) -> pa.Table:
    """Simulate a document (weak text) for each image. `image_id` (m,), ascending, is the image of each of the m
    sentences `texts`.

    `noise` says how many fields are wrong or missing. Returns a table with the columns image_id, title, tags (separated
    by blanks) and description. Each image has its own random generator, which depends only on `seed` and on the
    position of the image among all images with sentences. Raises InputError if fewer than two images have sentences.
    """
    images, starts = np.unique(image_id, return_index=True)
    if len(images) < 2:
        raise InputError(
            "Weak text is simulated from the captions of auxiliary images, but fewer than 2 auxiliary images have"
            " captions. Add train to auxiliary.splits, or remove the entries of `documents` with `simulate`."
        )
    bounds = np.append(starts, len(image_id))
    own = [texts[first:last] for first, last in zip(bounds[:-1], bounds[1:], strict=True)]
    rows = [_document(own, row, noise, np.random.default_rng([seed, row])) for row in range(len(images))]
    return pa.table({"image_id": images, **{name: [row[name] for row in rows] for name in rows[0]}})


def _document(
    own: list[Sequence[str]], row: int, noise: SimulationSettings, rng: np.random.Generator
) -> dict[str, str]:
    def sentence(of_another: bool) -> str:
        image = row
        if of_another:
            image = int(rng.integers(len(own) - 1))
            image += image >= row
        return own[image][int(rng.integers(len(own[image])))]

    words = sentence(rng.random() < noise.wrong).split()
    count = min(int(rng.integers(MIN_TITLE_WORDS, MAX_TITLE_WORDS + 1)), len(words))
    start = int(rng.integers(len(words) - count + 1))
    true = _content_words(own[row])
    tags = [str(word) for word in rng.permutation(true)[: noise.true_words]]
    while len(tags) < noise.tag_words:
        others = _content_words([sentence(of_another=True)])
        tags.append(str(rng.choice(others)) if others else "untitled")
    fields = {
        "title": " ".join(words[start : start + count]),
        "tags": " ".join(str(tag) for tag in rng.permutation(tags)),
        "description": sentence(rng.random() < noise.wrong),
    }
    return {name: "" if rng.random() < noise.missing else text for name, text in fields.items()}


def _content_words(sentences: Sequence[str]) -> list[str]:
    words = {word for text in sentences for word in re.findall(r"[a-z]+", text.lower())}
    return sorted(words - ENGLISH_STOP_WORDS)
