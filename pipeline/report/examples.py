"""Examples for people to look at: what queries find, where images lie on a map, and what generators say of the same
photographs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.index.vectors import evenly_spaced
from pipeline.metrics.ranks import Ranks, rank, score
from pipeline.multivectors import Comparison, Items
from pipeline.report.photographs import ReportPicture

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
    """What was found, its rank from 1, its score, and whether it is right."""

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
class SplitGallery:
    """The images of a split and their sentences in the space of `model`: rows of the manifest's tables, and vectors,
    one or several of each; sentence j belongs to image `owners[j]`."""

    model: str
    split: str
    comparison: Comparison
    images: pa.Table
    sentences: pa.Table
    image_vectors: Items
    sentence_vectors: Items
    owners: np.ndarray

    def ranks(self) -> Ranks:
        return rank(self.image_vectors, self.sentence_vectors, self.owners, self.comparison)

    def of_sentence(self, row: int) -> np.ndarray:
        """(n,) how well each image answers the sentence, the greater the better."""
        return score(self.image_vectors, self.sentence_vectors[row : row + 1], self.comparison)[:, 0]

    def of_image(self, row: int) -> np.ndarray:
        """(m,) how well each sentence answers the image."""
        return score(self.image_vectors[row : row + 1], self.sentence_vectors, self.comparison)[0]


def read_gallery(stored: Any, pairs: Any, split: str) -> SplitGallery:
    """The Embeddings `stored` of the SplitPairs of `split`, with their rows of the manifest; both classes are of
    pipeline.storage."""
    return SplitGallery(
        stored.name,
        split,
        stored.comparison,
        stored.manifest.rows("images", pairs.image_id),
        stored.manifest.rows("sentences", pairs.sentence_id),
        stored.read("images", pairs.image_id),
        stored.read("sentences", pairs.sentence_id),
        pairs.owners,
    )


def ask(gallery: SplitGallery, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> Examples:
    """Queries at even distances through the gallery, good ones, and the worst of all. `picture` shows a row of the
    images."""
    n, m = gallery.images.num_rows, len(gallery.owners)
    if not m:
        return Examples(gallery.model, gallery.split, n, 0, (), (), (), ())
    ranks = gallery.ranks().sentence_to_image
    worst, best = (_one_an_image(np.argsort(sign * ranks, kind="stable"), gallery.owners) for sign in (-1, 1))
    good = np.sort(best[: max(FAILURES, int((ranks[best] == ranks[best[0]]).sum()))])
    return Examples(
        gallery.model, gallery.split, n, m,
        by_sentence=[_ask_sentence(gallery, row, picture) for row in evenly_spaced(m, QUERIES)],
        by_image=[_ask_image(gallery, row, picture) for row in evenly_spaced(n, QUERIES)],
        successes=[_ask_sentence(gallery, row, picture) for row in good[evenly_spaced(len(good), FAILURES)]],
        failures=[_ask_sentence(gallery, row, picture) for row in worst[:FAILURES]],
    )  # fmt: skip


def _one_an_image(rows: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Of some `rows` of sentences the first of each image, in their order."""
    _, first = np.unique(owners[rows], return_index=True)
    return rows[np.sort(first)]


def _ask_sentence(gallery: SplitGallery, row: int, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> Example:
    scores = gallery.of_sentence(row)
    right = np.arange(len(scores)) == gallery.owners[row]
    query = gallery.sentences["text"][row].as_py()
    return _ask(query, scores, right, lambda found: map(picture, gallery.images.take(found).to_pylist()))


def _ask_image(gallery: SplitGallery, row: int, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> Example:
    scores = gallery.of_image(row)
    query = picture(gallery.images.slice(row, 1).to_pylist()[0])
    return _ask(query, scores, gallery.owners == row, lambda found: gallery.sentences["text"].take(found).to_pylist())


def _ask(
    query: ReportPicture | str,
    scores: np.ndarray,
    right: np.ndarray,
    show: Callable[[np.ndarray], Iterable[ReportPicture | str]],
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


def draw_map(gallery: SplitGallery, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> Atlas | None:
    """The images of `gallery` by principal components; None where there are fewer than three."""
    x = gallery.image_vectors
    if len(x) < 3:
        return None
    centred = x - x.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    if values[-1] <= 0:
        return None
    flat = centred @ vectors[:, :-3:-1]
    # Ranks rather than values: a map of what lies beside what, without a heap in the middle.
    spread = np.argsort(np.argsort(flat, axis=0), axis=0) / (len(flat) - 1)
    percent = np.round(100 * spread, 1).tolist()
    rows = evenly_spaced(len(flat), PLACES)
    pictures = map(picture, gallery.images.take(rows).to_pylist())
    places = [AtlasPoint(what, *percent[row]) for what, row in zip(pictures, rows, strict=True)]
    dots = [tuple(percent[row]) for row in evenly_spaced(len(flat), DOTS)]
    return Atlas(places, dots, float(100 * values[-2:].sum() / values.sum()))


@dataclass(frozen=True)
class Generated:
    """A photograph and the best sentence of each generator, (generator, sentence, whether it is copied)."""

    what: ReportPicture
    sentences: Sequence[tuple[str, str, bool]]


def compare_generators(
    descriptions: Sequence[Mapping[str, Any]],
    pick: Callable[[np.ndarray], Sequence[Mapping[str, Any]]],
    picture: Callable[[Mapping[str, Any]], ReportPicture],
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
