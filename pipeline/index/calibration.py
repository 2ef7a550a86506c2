"""Where the likely answers to a sentence end, and whether it is off the collection.

The score of a sentence with a photograph is compared with those that the sentence has with a *background*, photographs
of dev: z = (score - mean) / deviation. The least z of a likely answer is the split conformal quantile of dev's pairs
(Vovk et al. 2005; Angelopoulos and Bates 2021). Of sentences like those of dev, the photograph that is meant is then
among the likely ones in `index.coverage` of all cases in which the index has it. z depends on its pair and background,
so this holds for an index of any size, in one index shard or in several. The number of likely answers grows with the
index. There may be none.

A sentence is off the collection where the mean of its NEIGHBOURS best scores with the background is less than that of
all but FALSE_ALARMS of dev's sentences, which is the same for any index too, or where half of its words are unknown.
Nothing says that one photograph is missing: the best score hardly differs between sentences whose photograph is there
and others (docs/measured.md).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.json_files import Json
from pipeline.storage.stored_index import StoredIndex

FALSE_ALARMS, NEIGHBOURS = 0.05, 10
FEWEST = 50
"""Dev images with sentences from which on there is a calibration."""
BACKGROUND = "background.safetensors"
"""The file of an index shard with the background's vectors."""
LEAST = np.finfo(np.float32).min
"""Below any score."""
BLOCK = 1024
"""Sentences compared with the background at once."""


@dataclass(frozen=True)
class Calibration:
    """`score` is the least z of a likely answer, and `nearness` the least mean of the nearest scores of a sentence of
    the collection, against the `background` (b, c), which compares by `metric`."""

    background: np.ndarray
    metric: str
    score: float
    nearness: float
    coverage: float

    @classmethod
    def fit(cls, images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str, coverage: float) -> Self:
        """Calibrates with dev's `images` (n, c), which are also the background, and their `sentences` (m, c).

        Sentence j belongs to image `owners[j]`, which is left out of the background of this sentence. At most a share
        1 - `coverage` of m + 1 sentences may score below the line; this number is computed without rounding errors.
        """
        scores, nearness = [], []
        for start in range(0, len(sentences), BLOCK):
            owned = owners[start : start + BLOCK, None]
            products = compare(sentences[start : start + BLOCK], images, metric)
            right = np.take_along_axis(products, owned, axis=1)
            others = products[np.arange(len(images)) != owned].reshape(len(owned), -1)
            mean, deviation, nearest = stand(others)
            scores.append((right[:, 0] - mean) / deviation)
            nearness.append(nearest)
        missed = math.floor((1 - Fraction(str(coverage))) * (len(sentences) + 1))
        # With few sentences, none may be missed: then every score is above the line.
        ascending = np.array([LEAST, *np.sort(np.concatenate(scores))])
        near = np.quantile(np.concatenate(nearness), FALSE_ALARMS)
        return cls(images, metric, float(ascending[missed]), float(near), coverage)

    @classmethod
    def of_index(cls, index: StoredIndex) -> "Calibration | None":
        """Read the calibration of an index, or None if it has none."""
        card = index.card
        if card.calibration is None:
            return None
        background = index.first.arrays(BACKGROUND).get("images")
        if background is None or background.shape[1:] != (card.dim,) or not np.isfinite(background).all():
            raise IntegrityError(f"the background in {index.folder} does not fit its model; run build-index again")
        stored = card.calibration
        return cls(background, card.metric, stored.score, stored.nearness, stored.coverage)

    def card(self) -> dict[str, Json]:
        """Return the calibration as an index's card has it."""
        return {"version": 1, "coverage": self.coverage, "score": self.score, "nearness": self.nearness}

    def judge(
        self, query: np.ndarray, scores: Sequence[float], count: int | None, words: tuple[int, int]
    ) -> "Judgement":
        """Judge the answers to a sentence with the vector `query` (1, c) by their falling `scores`. `count` is the
        number of photos that were searched, or None; `words` has the numbers of all and of unknown words."""
        products = compare(query, self.background, self.metric)
        (mean,), (deviation,), (nearness,) = stand(products)
        least = float(mean + self.score * deviation)
        expected = None if count is None else round(float(np.mean(products >= least)) * count)
        likely = sum(score >= least for score in scores)
        return Judgement(likely, len(scores), expected, self.coverage, bool(nearness < self.nearness), *words)


@dataclass(frozen=True)
class Judgement:
    """The likely answers to a sentence: the first `likely` of the `shown`, and about `expected` in the whole index.
    The sentence is `far` from the photos or not, and `unknown` of its `words` are unknown."""

    likely: int
    shown: int
    expected: int | None
    coverage: float
    far: bool
    words: int
    unknown: int

    @property
    def off_topic(self) -> bool:
        """Whether the query does not fit the collection."""
        return self.warning is not None

    @property
    def remark(self) -> str:
        """A sentence that says where the likely answers end."""
        share = f"{100 * self.coverage:.0f} %"
        if not self.likely:
            return f"nothing here is likely: in {share} of searches, the photo that is meant scores higher"
        if self.likely < self.shown or self.expected is None:
            these = f"among these {self.likely}" if self.likely > 1 else "this one"
            return f"the photo you mean, if it is here, is {these} in {share} of searches"
        if more := max(0, self.expected - self.shown):
            return f"all of these are likely, and about {more:,} more; a longer query would tell them apart"
        return f"all of these are likely: the photo you mean, if it is here, is among them in {share} of searches"

    @property
    def warning(self) -> str | None:
        """A warning if the query does not fit the collection, or None."""
        if self.unknown and 2 * self.unknown >= self.words:
            return f"this seems off the collection: {self.unknown} of its {self.words} words are unknown"
        if self.far:
            share = f"{100 * (1 - FALSE_ALARMS):.0f} %"
            return f"this seems off the collection: {share} of its own captions match photos better"
        return None


def compare(queries: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """(q, n): products, or minus squared distances."""
    products = queries @ vectors.T
    if metric == "inner_product":
        return products
    return 2 * products - (queries**2).sum(axis=1)[:, None] - (vectors**2).sum(axis=1)


def stand(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(q,) the mean, the deviation and the mean of the NEIGHBOURS greatest of each row of `scores` (q, n)."""
    few = min(NEIGHBOURS, scores.shape[1])
    nearest = np.partition(scores, -few, axis=1)[:, -few:].mean(axis=1)
    return scores.mean(axis=1), np.maximum(scores.std(axis=1), np.finfo(np.float32).tiny), nearest
