"""Examples for people: what queries find, where images lie on a map, and what generators say of the same photos."""

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
"""Examples of each direction."""
FAILURES = 3
"""Of the sentences whose images come last, and of those whose images come first."""
TOP = 5
"""Answers shown for each, and the best right one where it is not among them."""
PLACES = 64
"""Photographs shown; the others are dots."""
DOTS = 600
"""Images that are shown as dots."""
DESCRIBED = 6
"""Photographs, at even distances through those that generators have described."""


@dataclass(frozen=True)
class Answer:
    """An answer: `what` was found, its rank from 1, its score, and whether it is right."""

    what: ReportPicture | str
    rank: int
    score: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A query, its best answers, and the rank from 1 of its best right answer; ties count against the model."""

    query: ReportPicture | str
    answers: Sequence[Answer]
    rank: int


@dataclass(frozen=True)
class Examples:
    """Queries of `model` in both directions, among the images and sentences of `split`.

    `successes` are sentences whose images come first, or as near to it as any do, at even distances among these;
    `failures` are the sentences whose images come last, the worst first. Each is of another image.
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
    """A photograph on the map; x and y in percent from the left and from the top."""

    what: ReportPicture
    x: float
    y: float


@dataclass(frozen=True)
class Atlas:
    """Photographs and dots (x, y), in percent, and the share of the variance (percent) that the two axes show."""

    places: Sequence[AtlasPoint]
    dots: Sequence[tuple[float, float]]
    shown: float


class SplitGallery:
    """The images of a split and their sentences in the space of a model: the rows of the manifest's tables, and the
    vectors, one or several of each, of the Embeddings `stored` for the SplitPairs of `split`, both of pipeline.storage.
    `picture` shows a row of the images."""

    def __init__(
        self, stored: Embeddings, pairs: SplitPairs, split: str, picture: Callable[[Row], ReportPicture]
    ) -> None:
        self.model, self.comparison, self.split, self.picture = stored.name, stored.comparison, split, picture
        self.images = stored.manifest.rows("images", pairs.image_id)
        self.sentences = stored.manifest.rows("sentences", pairs.sentence_id)
        self.image_vectors = stored.read("images", pairs.image_id)
        self.sentence_vectors = stored.read("sentences", pairs.sentence_id)
        self.owners: np.ndarray = pairs.owners

    def examples(self) -> Examples:
        """Queries at even distances through the gallery, good ones, and the worst whose first answer is wrong."""
        n, m = self.images.num_rows, len(self.owners)
        if not m:
            return Examples(self.model, self.split, n, 0, (), (), (), ())
        ranks = rank(self.image_vectors, self.sentence_vectors, self.owners, self.comparison).sentence_to_image
        worst, best = (self._one_an_image(np.argsort(sign * ranks, kind="stable")) for sign in (-1, 1))
        worst = worst[ranks[worst] > 1]
        good = np.sort(best[: max(FAILURES, int((ranks[best] == ranks[best[0]]).sum()))])
        return Examples(
            self.model, self.split, n, m,
            by_sentence=[self._of_sentence(row) for row in evenly_spaced(m, QUERIES)],
            by_image=[self._of_image(row) for row in evenly_spaced(n, QUERIES)],
            successes=[self._of_sentence(row) for row in good[evenly_spaced(len(good), FAILURES)]],
            failures=[self._of_sentence(row) for row in worst[:FAILURES]],
        )  # fmt: skip

    def _one_an_image(self, rows: np.ndarray) -> np.ndarray:
        """Return the first sentence of each image among some `rows` of sentences, in their order."""
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
        """The images by principal components; None where there are fewer than three, or not two dimensions."""
        vectors = one_vector_each(self.image_vectors)
        n, dim = vectors.shape
        if n < 3 or dim < 2:
            return None
        centred = vectors - vectors.mean(axis=0)
        values, axes = np.linalg.eigh(centred.T @ centred)
        if values[-1] <= 0:
            return None
        flat = centred @ axes[:, :-3:-1]
        # Ranks rather than values: a map of what lies beside what, without a heap in the middle.
        spread = np.argsort(np.argsort(flat, axis=0), axis=0) / (len(flat) - 1)
        percent = np.round(100 * spread, 1).tolist()
        rows = evenly_spaced(len(flat), PLACES)
        places = [AtlasPoint(what, *percent[row]) for what, row in zip(self._pictures(rows), rows, strict=True)]
        dots = [tuple(percent[row]) for row in evenly_spaced(len(flat), DOTS)]
        return Atlas(places, dots, float(100 * values[-2:].sum() / values.sum()))


def _ask(
    query: ReportPicture | str,
    scores: np.ndarray,
    right: np.ndarray,
    show: Callable[[np.ndarray], Sequence[ReportPicture | str]],
) -> Example:
    """The example of one query from the `scores` of the gallery (g,) and which of it is `right` (g,)."""
    best_right = np.flatnonzero(right)[scores[right].argmax()]
    rank = 1 + int((scores[~right] >= scores[best_right]).sum())
    order = np.lexsort((right, -scores))  # a wrong answer comes before a right one of equal score
    shown = order[:TOP] if right[order[:TOP]].any() else np.append(order[:TOP], best_right)
    places = [*range(1, TOP + 1), rank]
    answers = [
        Answer(what, place, float(scores[row]), bool(right[row]))
        for row, what, place in zip(shown, show(shown), places, strict=False)
    ]
    return Example(query, answers, rank)


@dataclass(frozen=True)
class Generated:
    """A photograph and the best sentence of each generator, (generator, sentence, whether it is copied)."""

    what: ReportPicture
    sentences: Sequence[tuple[str, str, bool]]


def compare_generators(
    descriptions: Sequence[JsonObject],
    pick: Callable[[np.ndarray], Sequence[Row]],
    picture: Callable[[Row], ReportPicture],
) -> list[Generated]:
    """Photographs that all of `descriptions` (the JSON of `describe`, one a generator) describe; `pick` finds the rows
    of some images by their ids."""
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
        for row in pick(common[evenly_spaced(len(common), DESCRIBED)])
    ]
