"""Calibration of text queries: which results are likely matches, and whether a query is out of domain.

The scores of a text query with the photos of the index are compared with its scores with a *background*, which are the
captioned photos of the dev split. The normalised score of a photo is z = (score - mean) / deviation, with the mean and
the standard deviation of the background's scores. A photo is a likely match if its z is at least a threshold. The
threshold is the split conformal quantile of the z of the dev captions and their photos (Vovk et al. 2005; Angelopoulos
and Bates 2021). For queries that resemble the dev captions, the right photo is then a likely match with the probability
`index.coverage`, if the index contains this photo. The threshold does not depend on the size of the index or on the
number of its shards, because z only depends on the query, the photo and the background. The number of likely matches
grows with the index, and may be zero.

The *nearness* of a query is the mean of its NEIGHBOURS best scores with the background. A query is out of domain if its
nearness is below a limit, or if at least half of its words are unknown. The limit is chosen so that the share
FALSE_ALARMS of the dev captions has a nearness below it. The limit does not depend on the size of the index either. A
query whose words are all in the texts of a result is never out of domain. The calibration cannot say that a particular
photo is missing from the index: the best score of a caption is about the same whether its photo is in the index or not
(docs/measured.md).

`jointspace calibrate` computes the threshold and the limit from captions that a user has written for photos of an
index. The background is then a sample of the photos of the index.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Self

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.files import REBUILD
from pipeline.storage.json_files import Json
from pipeline.storage.stored_index import StoredIndex

FALSE_ALARMS = 0.05
"""Share of the dev captions, or of a user's captions, that count as out of domain because of their scores."""
NEIGHBOURS = 10
"""Number of a query's best scores with the background whose mean says how well the query fits the collection."""
MIN_DEV_IMAGES = 50
"""Smallest number of captioned images, of the dev split or of a user's table, with which an index is calibrated."""
MAX_CHANGED_SHARE = 0.5
"""Largest share of added and removed photos (see `changed_share`) with which a calibration by `jointspace calibrate` is
still used. If the share is larger, searches do not say where likely matches end."""
BACKGROUND = "background.safetensors"
"""Name of the file of an index shard that contains the vectors of the background."""
LOWEST_SCORE = np.finfo(np.float32).min
"""Threshold below all normalised scores, with which every photo is a likely match."""
BLOCK_CAPTIONS = 1024
"""Number of captions that are compared with the background together."""


@dataclass(frozen=True)
class Calibration:
    """The calibration of an index for text queries, as the module explains it.

    `background` (b, c) are the image vectors of the background, which are compared with queries by `metric`. `score` is
    the smallest normalised score z of a likely match. `nearness` is the smallest nearness of a query that fits the
    collection: the nearness is the mean of the query's NEIGHBOURS best scores with the background. `coverage` is the
    share of queries (0 to 1) whose right photo is a likely match.
    """

    background: np.ndarray
    metric: str
    score: float
    nearness: float
    coverage: float

    @classmethod
    def fit(cls, images: np.ndarray, sentences: np.ndarray, owners: np.ndarray, metric: str, coverage: float) -> Self:
        """Compute the calibration from the vectors `images` (n, c) and the vectors `sentences` (m, c) of captions of
        these images, with n of at least 2.

        The vectors are compared by `metric`. The images are also the background. Caption j belongs to the image in row
        `owners[j]`, which is left out of the background of this caption. The normalised score z of an image is its
        score minus the mean of the background's scores, divided by their standard deviation. The threshold `score` is
        the k-th smallest z of the m captions with their images. k is (1 - `coverage`) * (m + 1), computed without
        rounding errors and then rounded down. If k is 0, because there are too few captions, the threshold is
        LOWEST_SCORE. The limit `nearness` is the FALSE_ALARMS quantile of the nearness of the captions.
        """
        scores = []
        nearness = []
        for start in range(0, len(sentences), BLOCK_CAPTIONS):
            owned = owners[start : start + BLOCK_CAPTIONS, None]
            products = compare(sentences[start : start + BLOCK_CAPTIONS], images, metric)
            right = np.take_along_axis(products, owned, axis=1)
            others = products[np.arange(len(images)) != owned].reshape(len(owned), -1)
            mean, deviation, nearest = summarise_scores(others)
            scores.append((right[:, 0] - mean) / deviation)
            nearness.append(nearest)
        missed = math.floor((1 - Fraction(str(coverage))) * (len(sentences) + 1))
        # With few captions, `missed` is 0: none of them may score below the threshold, which is then LOWEST_SCORE.
        ascending = np.array([LOWEST_SCORE, *np.sort(np.concatenate(scores))])
        near = np.quantile(np.concatenate(nearness), FALSE_ALARMS)
        return cls(images, metric, float(ascending[missed]), float(near), coverage)

    @classmethod
    def of_index(cls, index: StoredIndex) -> "Calibration | None":
        """Read the calibration of an index. Return None if the index has no calibration, or if too many photos were
        added or removed since `jointspace calibrate`.

        Raises IntegrityError if the vectors of the background are missing or do not fit the model.
        """
        card = index.card
        if card.calibration is None or explain_missing_line(index):
            return None
        background = index.first.arrays(BACKGROUND).get("images")
        if background is None or background.shape[1:] != (card.dim,) or not np.isfinite(background).all():
            found = "no vectors" if background is None else f"an array of the shape {background.shape}"
            raise IntegrityError(
                f"{BACKGROUND} in {index.folder} does not fit the model of the index: the file has {found}, but must"
                f" have finite vectors of {card.dim} dimensions. {REBUILD}"
            )
        stored = card.calibration
        return cls(background, card.metric, stored.score, stored.nearness, stored.coverage)

    def card(self) -> dict[str, Json]:
        """Return the values for the card of an index. The vectors of the background are not among them, because the
        file BACKGROUND has them."""
        return {"version": 1, "coverage": self.coverage, "score": self.score, "nearness": self.nearness}

    def threshold(self, query: np.ndarray) -> float:
        """Return the smallest score of a likely match for the vector `query` (1, c) of a text. It is a score as
        searches return it, and not a normalised score."""
        (mean,), (deviation,), _ = summarise_scores(compare(query, self.background, self.metric))
        return float(mean + self.score * deviation)

    def judge(
        self, query: np.ndarray, scores: Sequence[float], count: int | None, words: tuple[int, int]
    ) -> "Judgement":
        """Judge the results of a text query.

        `query` (1, c) is the vector of the query, and `scores` are the scores of its results, the best first. The
        score is infinity for a photo whose texts have the words of the query. `count` is the number of photos that were
        searched, or None if it is unknown. `words` has the number of words in the query, and the number of its words
        that the model does not know.
        """
        products = compare(query, self.background, self.metric)
        nearness = summarise_scores(products)[2][0]
        threshold = self.threshold(query)
        expected = None if count is None else round(float(np.mean(products >= threshold)) * count)
        likely = sum(score >= threshold for score in scores)
        matched = math.inf in scores
        return Judgement(likely, len(scores), expected, self.coverage, bool(nearness < self.nearness), *words, matched)


@dataclass(frozen=True)
class Judgement:
    """The judgement of the results of a text query.

    There are `shown` results, of which the first `likely` are likely matches. About `expected` of all searched photos
    are likely matches, and None means that this number is unknown. `coverage` is the share of queries whose right photo
    is a likely match. `far` says whether the query is far from the photos of the collection. The query has `words`
    words, and the model does not know `unknown` of them. `matched` says whether the text search has found some of the
    results, so that the query fits the collection in any case.
    """

    likely: int
    shown: int
    expected: int | None
    coverage: float
    far: bool
    words: int
    unknown: int
    matched: bool = False

    @property
    def off_topic(self) -> bool:
        """Whether the query is out of domain, which means that it does not fit the collection and has a `warning`."""
        return self.warning is not None

    @property
    def remark(self) -> str:
        """A text for the user that says which of the results are likely matches."""
        share = f"{100 * self.coverage:.0f}%"
        if not self.shown:
            return "There are no results."
        if not self.likely:
            return f"None of these results is a likely match. In {share} of searches, the right photo scores higher."
        searched = f"In {share} of searches, the photo that you are looking for (if it is in the collection)"
        if self.likely < self.shown:
            return f"{searched} is {f'among these {self.likely}' if self.likely > 1 else 'this one'}."
        if self.expected is None:
            return "All of these are likely matches, and there may be more."
        if more := max(0, self.expected - self.shown):
            return (
                f"All of these are likely matches, and the index has about {more:,} more. A longer query may tell them"
                " apart."
            )
        return f"All of these are likely matches. {searched} is among them."

    @property
    def warning(self) -> str | None:
        """A warning for the user if the query is out of domain, or None."""
        if self.matched:
            return None
        if self.unknown and 2 * self.unknown >= self.words:
            return f"This query may not fit the collection: {self.unknown} of its {self.words} words are unknown."
        if self.far:
            share = f"{100 * (1 - FALSE_ALARMS):.0f}%"
            return f"This query may not fit the collection: {share} of its captions match photos better."
        return None


def changed_share(index: StoredIndex) -> float:
    """Return the number of photos that were added or removed since `jointspace calibrate`, as a share from 0 to 1.

    For each index shard, the number of photos at the time of the calibration is compared with the present number. The
    result is the sum of the differences of all shards, divided by the sum of the larger number of each shard. It is 0
    if the index has no calibration, or a calibration from the dev split.
    """
    stored = index.card.calibration
    if stored is None or stored.photos is None:
        return 0.0
    pairs = list(zip_longest(stored.photos, count_photos(index), fillvalue=0))
    return sum(abs(before - now) for before, now in pairs) / max(1, sum(map(max, pairs)))


def count_photos(index: StoredIndex) -> list[int]:
    """Return the number of photos in the FAISS index of each index shard, without removed photos. The model must have
    one vector per photo."""
    return [shard.card.images.count if shard.card.images else 0 for shard in index.shards]


def explain_missing_line(index: StoredIndex, name: str = "INDEX") -> str | None:
    """Return a sentence that says why searches of an index do not show where likely matches end, or None if searches
    show it.

    If `jointspace calibrate` can help, the sentence contains this command, with `name` as the folder of the index. Only
    the cards of the index shards are read.
    """
    if index.card.calibration and changed_share(index) <= MAX_CHANGED_SHARE:
        return None
    said = "This index does not say where likely matches end"
    obstacle = find_obstacle(index)
    if not index.card.text_encoders and "vocabulary.json" not in index.card.files:
        obstacle = "the vectors of its text encoder were precomputed"
    if obstacle:
        return f"{said}, because {obstacle}."
    command = f"`jointspace calibrate {name} pairs.csv --ask`"
    return f"{said} until you write captions for {MIN_DEV_IMAGES} of its photos with {command}."


def find_obstacle(index: StoredIndex) -> str | None:
    """Return why `jointspace calibrate` cannot calibrate an index, as a clause that follows `because`, or None if
    neither the model nor the number of photos prevents it. The text encoder of the index is not checked."""
    if index.card.kind == "fragments":
        return "its model compares regions of photos"
    return f"it has fewer than {MIN_DEV_IMAGES} photos" if sum(count_photos(index)) < MIN_DEV_IMAGES else None


def compare(queries: np.ndarray, vectors: np.ndarray, metric: str) -> np.ndarray:
    """Return the scores (q, n) of `queries` (q, c) with `vectors` (n, c).

    A score is the inner product if `metric` is inner_product, and otherwise the negative squared Euclidean distance.
    """
    products = queries @ vectors.T
    if metric == "inner_product":
        return products
    return 2 * products - (queries**2).sum(axis=1)[:, None] - (vectors**2).sum(axis=1)


def summarise_scores(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for each row of `scores` (q, n), the mean, the standard deviation, and the mean of its NEIGHBOURS largest
    values, or of all values if there are fewer.

    Each of the three results has the shape (q,). The deviation is always positive, so that it can be a divisor.
    """
    count = min(NEIGHBOURS, scores.shape[1])
    nearest = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)
    return scores.mean(axis=1), np.maximum(scores.std(axis=1), np.finfo(np.float32).tiny), nearest
