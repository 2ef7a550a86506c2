"""Example queries for people to look at: what comes first, and where the right answer stands."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.index.build import evenly_spaced
from pipeline.index.format import from_bytes
from pipeline.index.search import Parts

QUERIES = 5
"""Examples of each direction."""
TOP = 5
"""Answers shown for each, and the best right one where it is not among them."""


@dataclass(frozen=True)
class Picture:
    """A photograph: its name, and a `data:` address, or None where it could not be read."""

    name: str
    address: str | None


@dataclass(frozen=True)
class Answer:
    """What was found, its rank from 1, its score, and whether it is right."""

    what: Picture | str
    rank: int
    score: float
    right: bool


@dataclass(frozen=True)
class Example:
    """A query, its best answers, and the rank from 1 of its best right answer; ties count against the model."""

    query: Picture | str
    answers: Sequence[Answer]
    rank: int


@dataclass(frozen=True)
class Examples:
    """Queries of the row `model` in both directions; their gallery is the images and sentences of `split`."""

    model: str
    split: str
    n_images: int
    n_sentences: int
    by_sentence: Sequence[Example]
    by_image: Sequence[Example]


@dataclass(frozen=True)
class Gallery:
    """The images of a split and their sentences in the space of `model`: rows of the bundle's tables, and vectors
    (n, c) and (m, c)."""

    model: str
    split: str
    metric: str
    images: pa.Table
    sentences: pa.Table
    image_vectors: np.ndarray
    sentence_vectors: np.ndarray


def read_gallery(parts: Parts, split: str) -> Gallery:
    """The part of a bundle that is of `split`; it may be empty."""
    images, sentences = parts.table("images"), parts.table("sentences")
    image_rows = np.flatnonzero(np.asarray(images["split"].to_pylist()) == split)
    sentence_rows = np.flatnonzero(np.isin(sentences["image_id"].to_numpy(), images["image_id"].to_numpy()[image_rows]))
    return Gallery(
        parts.card["model"],
        split,
        parts.card["metric"],
        images.take(image_rows),
        sentences.take(sentence_rows),
        _reconstruct(parts, "images", image_rows),
        _reconstruct(parts, "sentences", sentence_rows),
    )


def _reconstruct(parts: Parts, modality: str, rows: np.ndarray) -> np.ndarray:
    index = from_bytes(parts.index(modality), f"{modality}.faiss", parts.card[modality])
    if hasattr(index, "make_direct_map"):
        index.make_direct_map()  # an inverted file does not know where its vectors are until it is told to
    return index.reconstruct_batch(rows)


def ask(gallery: Gallery, picture: Callable[[Mapping[str, Any]], Picture]) -> Examples:
    """Queries at even distances through the gallery. `picture` shows a row of the images' table."""
    images, sentences = gallery.images, gallery.sentences
    image_id, owners = images["image_id"].to_numpy(), sentences["image_id"].to_numpy()
    by_sentence = [
        _ask(
            sentences["text"][row].as_py(),
            _scores(gallery.sentence_vectors[row], gallery.image_vectors, gallery.metric),
            image_id == owners[row],
            lambda found: map(picture, images.take(found).to_pylist()),
        )
        for row in evenly_spaced(len(owners), QUERIES)
    ]
    by_image = [
        _ask(
            picture(images.slice(row, 1).to_pylist()[0]),
            _scores(gallery.image_vectors[row], gallery.sentence_vectors, gallery.metric),
            owners == image_id[row],
            lambda found: sentences["text"].take(found).to_pylist(),
        )
        for row in evenly_spaced(len(image_id), QUERIES)
    ]
    return Examples(gallery.model, gallery.split, len(image_id), len(owners), by_sentence, by_image)


def _scores(query: np.ndarray, gallery: np.ndarray, metric: str) -> np.ndarray:
    """(g,) the greater the better."""
    return gallery @ query if metric == "inner_product" else -((gallery - query) ** 2).sum(axis=1)


def _ask(
    query: Picture | str,
    scores: np.ndarray,
    right: np.ndarray,
    show: Callable[[np.ndarray], Iterable[Picture | str]],
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
