"""Examples for the report: results of queries, a map of the photos, and captions by several generators."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.compute.multivectors import one_vector_each
from pipeline.index.exact import evenly_spaced
from pipeline.metrics.ranks import rank, score
from pipeline.report.photographs import ReportPicture
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.json_files import JsonObject
from pipeline.storage.pairs import SplitPairs
from pipeline.storage.tables import Row

QUERIES = 5
"""Number of example queries in each direction."""
FAILURES = 3
"""Maximum number of example captions that rank their photo worst, and of example captions that rank their photo best.
"""
TOP = 5
"""Number of results that are shown for a query. The best right result is added if it is not among them."""
MAX_MAP_PHOTOS = 64
"""Maximum number of photos that are shown on the map as thumbnails."""
MAX_MAP_DOTS = 600
"""Maximum number of photos that are shown on the map as dots."""
MAX_GENERATED_PHOTOS = 6
"""Maximum number of photos whose generated captions are shown."""


@dataclass(frozen=True)
class Answer:
    """A result of a query: the photo or the caption `what`, its rank from 1, its score, and whether it is right."""

    what: ReportPicture | str
    rank: int
    score: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A query with its best results `answers`, and the rank from 1 of its best right result.

    A wrong result with the same score as the right result counts as better.
    """

    query: ReportPicture | str
    answers: Sequence[Answer]
    rank: int


@dataclass(frozen=True)
class Examples:
    """Example queries of `model` in both directions, among the images and captions of `split`.

    `by_sentence` and `by_image` are evenly spaced queries. `successes` are captions that give their own image the best
    ranks, evenly spaced among all such captions. `failures` are the captions that give their own image the worst ranks,
    the worst first. A caption with rank 1 is never a failure. Two captions in `successes`, or in `failures`, never
    belong to the same image.
    """

    model: str
    split: str
    n_images: int
    n_sentences: int
    by_sentence: Sequence[Example]
    by_image: Sequence[Example]
    successes: Sequence[Example]
    failures: Sequence[Example]


@dataclass(frozen=True)
class AtlasPoint:
    """A photo on the map. x and y are its position in percent from the left and from the top."""

    what: ReportPicture
    x: float
    y: float


@dataclass(frozen=True)
class Atlas:
    """A map of photos.

    `places` are the photos with thumbnails. `dots` are the positions (x, y) of a larger sample of photos, in percent of
    the map from the left and from the top. `shown` is the percentage of the variance that the two axes explain.
    """

    places: Sequence[AtlasPoint]
    dots: Sequence[tuple[float, float]]
    shown: float


class SplitGallery:
    """The captioned images of a split with their captions, and their vectors in the joint space of a model.

    `stored` are the embeddings of the model, and `pairs` the images and captions of `split`. `picture(row)` returns
    the picture for a row of the images' table.
    """

    def __init__(
        self, stored: Embeddings, pairs: SplitPairs, split: str, picture: Callable[[Row], ReportPicture]
    ) -> None:
        self.model = stored.name
        self.comparison = stored.comparison
        self.split = split
        self.picture = picture
        self.images = stored.manifest.rows("images", pairs.image_id)
        self.sentences = stored.manifest.rows("sentences", pairs.sentence_id)
        self.image_vectors = stored.read("images", pairs.image_id)
        self.sentence_vectors = stored.read("sentences", pairs.sentence_id)
        self.owners: np.ndarray = pairs.owners

    def examples(self) -> Examples:
        """Choose the example queries: QUERIES evenly spaced queries for each direction, and successes and failures.

        There are at most FAILURES captions that rank their photo best, and at most FAILURES captions that rank their
        photo worst. Without captions, there are no examples.
        """
        n = self.images.num_rows
        m = len(self.owners)
        if not m:
            return Examples(self.model, self.split, n, 0, (), (), (), ())
        ranks = rank(self.image_vectors, self.sentence_vectors, self.owners, self.comparison).sentence_to_image
        worst, best = (self._one_per_image(np.argsort(sign * ranks, kind="stable")) for sign in (-1, 1))
        worst = worst[ranks[worst] > 1]
        good = np.sort(best[: max(FAILURES, int((ranks[best] == ranks[best[0]]).sum()))])
        return Examples(
            self.model, self.split, n, m,
            by_sentence=[self._of_sentence(row) for row in evenly_spaced(m, QUERIES)],
            by_image=[self._of_image(row) for row in evenly_spaced(n, QUERIES)],
            successes=[self._of_sentence(row) for row in good[evenly_spaced(len(good), FAILURES)]],
            failures=[self._of_sentence(row) for row in worst[:FAILURES]],
        )  # fmt: skip

    def _one_per_image(self, rows: np.ndarray) -> np.ndarray:
        """Return for each image the first of its captions in `rows`, in the order of `rows`."""
        _, first = np.unique(self.owners[rows], return_index=True)
        return rows[np.sort(first)]

    def _of_sentence(self, row: int) -> Example:
        scores = score(self.image_vectors, self.sentence_vectors[row : row + 1], self.comparison)[:, 0]
        right = np.arange(len(scores)) == self.owners[row]
        return _ask(self.sentences["text"][row].as_py(), scores, right, self._pictures)

    def _of_image(self, row: int) -> Example:
        scores = score(self.image_vectors[row : row + 1], self.sentence_vectors, self.comparison)[0]
        (query,) = self._pictures([row])
        return _ask(query, scores, self.owners == row, lambda rows: self.sentences["text"].take(rows).to_pylist())

    def _pictures(self, rows: Sequence[int] | np.ndarray) -> list[ReportPicture]:
        return list(map(self.picture, self.images.take(rows).to_pylist()))

    def atlas(self) -> Atlas | None:
        """Place the images on a map by the ranks of their first two principal components.

        Returns None if there are fewer than three images or two dimensions, or if all images have the same vector.
        """
        vectors = one_vector_each(self.image_vectors)
        n, dim = vectors.shape
        if n < 3 or dim < 2:
            return None
        centred = vectors - vectors.mean(axis=0)
        values, axes = np.linalg.eigh(centred.T @ centred)
        if values[-1] <= 0:
            return None
        flat = centred @ axes[:, :-3:-1]
        # Ranks are used in place of values, so that the photos do not crowd in the middle of the map.
        spread = np.argsort(np.argsort(flat, axis=0), axis=0) / (len(flat) - 1)
        percent = np.round(100 * spread, 1).tolist()
        rows = evenly_spaced(len(flat), MAX_MAP_PHOTOS)
        places = [AtlasPoint(what, *percent[row]) for what, row in zip(self._pictures(rows), rows, strict=True)]
        dots = [tuple(percent[row]) for row in evenly_spaced(len(flat), MAX_MAP_DOTS)]
        return Atlas(places, dots, float(100 * values[-2:].sum() / values.sum()))


def _ask(
    query: ReportPicture | str,
    scores: np.ndarray,
    right: np.ndarray,
    show: Callable[[np.ndarray], Sequence[ReportPicture | str]],
) -> Example:
    """Make the example of one query.

    `scores` (g,) are the scores of all items of the gallery, `right` (g,) bool says which items are right results, and
    `show(rows)` returns the pictures or captions of items.
    """
    best_right = np.flatnonzero(right)[scores[right].argmax()]
    rank = 1 + int((scores[~right] >= scores[best_right]).sum())
    order = np.lexsort((right, -scores))  # If scores are equal, wrong results come before right results.
    shown = order[:TOP] if right[order[:TOP]].any() else np.append(order[:TOP], best_right)
    ranks = [*range(1, TOP + 1), rank]
    answers = [
        Answer(what, number, float(scores[row]), bool(right[row]))
        for row, what, number in zip(shown, show(shown), ranks, strict=False)
    ]
    return Example(query, answers, rank)


@dataclass(frozen=True)
class Generated:
    """A photo `what` with generated captions.

    `sentences` has the best caption of each generator, as (generator, caption, whether the caption is copied from
    training).
    """

    what: ReportPicture
    sentences: Sequence[tuple[str, str, bool]]


def compare_generators(
    descriptions: Sequence[JsonObject],
    pick: Callable[[np.ndarray], Sequence[Row]],
    picture: Callable[[Row], ReportPicture],
) -> list[Generated]:
    """Choose at most MAX_GENERATED_PHOTOS whole photos for which all generators have generated captions, evenly spaced
    in the order of their ids. Return each photo with the best caption of each generator.

    `descriptions` are the JSON objects that `describe` writes, one per generator. `pick(ids)` returns the rows of
    images by their ids, and `picture(row)` the picture for a row.
    """
    best = [
        {one["image_id"]: one["sentences"][0] for one in each["images"] if one["sentences"] and one["box"] is None}
        for each in descriptions
    ]
    common = np.array(sorted(set.intersection(*map(set, best))) if best else [], np.int64)
    return [
        Generated(
            picture(row),
            [
                (each["generator"], own[row["image_id"]]["text"], own[row["image_id"]]["verbatim"])
                for each, own in zip(descriptions, best, strict=True)
            ],
        )
        for row in pick(common[evenly_spaced(len(common), MAX_GENERATED_PHOTOS)])
    ]
