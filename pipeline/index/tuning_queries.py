"""The choice of the queries with which an index of images is tuned and measured.

People search with text, and the vectors of texts lie elsewhere in a joint space than the vectors of images. An index
that was tuned with images may therefore miss many of the results of a text query. The captions of the index are the
best queries. If there are no captions but the model can embed texts, the queries are plain phrases that come with
jointspace, the file names of the photos, and the user's own queries. The vectors of the images are used only if the
model cannot embed texts, or knows too few of these texts.

People search for things that their photos show. Phrases in a language that the model does not understand, and phrases
about other things, are harder queries. With such queries, an index would be tuned to a needlessly slow search. Such
phrases are therefore left out. They are recognised by the low score of their best image.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np
import regex

from pipeline.compute.multivectors import Items, one_vector_each
from pipeline.errors import UsageError
from pipeline.index.build import QUERIES
from pipeline.index.exact import evenly_spaced, search_exact
from pipeline.storage.card import MeasuredWith

MIN_TEXTS = 20
"""Smallest number of texts, among the user's texts and the phrases together, that the model must know so that an index
is measured with texts. If the model knows fewer texts, the index is measured with images, because the recall of so few
texts would mean little."""
FITTING_SHARE = 0.6
"""Share of the phrases that are used, among the phrases in languages that the model understands. With this share, an
index that was tuned with phrases finds captions of Flickr8k with nearly the same recall as an index that was tuned with
captions."""
WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*")


class TuningQueries(NamedTuple):
    """The `vectors` of the queries of one index, and their source `measured_with`, as the card of the index names it:
    `captions`, `phrases` or `images`."""

    vectors: Items
    measured_with: MeasuredWith


class TextEmbedder(Protocol):
    """The interface of an object that embeds texts with a model, such as a QueryEncoder."""

    def knows(self, text: str) -> bool:
        """Return whether the model knows words of `text`, so that a search for the text makes sense. Raises UsageError
        if the model cannot embed any text."""
        ...

    def embed_sentences(self, sentences: Sequence[str]) -> Items:
        """Embed n texts in the joint space. Returns n items."""
        ...


def choose_queries(
    images: Items,
    metric: str,
    captions: Items | None = None,
    embedder: TextEmbedder | None = None,
    own_texts: Iterable[str] = (),
) -> TuningQueries:
    """Choose the queries for an index of images: `captions`, or texts, or `images`.

    `images` and `captions` are vectors in the joint space, which are compared by `metric`. All captions are returned if
    there are any. If there are none, `embedder` embeds a sample of the phrases and of the user's `own_texts`, of which
    at most one half are own texts if the model knows phrases. The sample has at most QUERIES texts and at most as many
    texts as there are images, so that a small collection does not wait long for the encoding of texts. Texts of which
    the model knows no word are not used, and only the phrases that fit the images are used (see `find_fitting`). The
    queries are all `images` if `embedder` is None, if it knows fewer than MIN_TEXTS texts, or if it raises UsageError
    because it cannot embed texts. With an `embedder`, the images must have one vector each.
    """
    if captions is not None and len(captions):
        return TuningQueries(captions, "captions")
    if embedder is not None:
        with suppress(UsageError):
            own = list(filter(embedder.knows, dict.fromkeys(own_texts)))
            phrases = [one for one in read_phrases() if embedder.knows(one.text)]
            if len(own) + len(phrases) >= MIN_TEXTS:
                return TuningQueries(_embed_texts(own, phrases, one_vector_each(images), metric, embedder), "phrases")
            logging.getLogger(__name__).info(
                "The model knows only %d of the texts with which an index is tuned and measured, but at least %d are"
                " needed. The index is therefore tuned and measured with its photos. To change this, list more queries"
                " in the file of hubness.queries.",
                len(own) + len(phrases), MIN_TEXTS,
            )  # fmt: skip
    return TuningQueries(images, "images")


def _embed_texts(
    own: Sequence[str], phrases: "Sequence[Phrase]", images: np.ndarray, metric: str, embedder: TextEmbedder
) -> np.ndarray:
    """Embed a sample of the user's `own` texts and of the `phrases`, and return the vectors (q, c) of the own texts and
    of those phrases that fit the `images` (see `find_fitting`)."""
    most = min(QUERIES, len(images))
    own_sample = [own[row] for row in map(int, evenly_spaced(len(own), most // 2 if phrases else most))]
    sample = [phrases[row] for row in map(int, evenly_spaced(len(phrases), most - len(own_sample)))]
    vectors = one_vector_each(embedder.embed_sentences([*own_sample, *(phrase.text for phrase in sample)]))
    of_user, of_phrases = np.split(vectors, [len(own_sample)])
    scores = search_exact(of_phrases, [images], 1, metric).scores[:, 0]
    fitting = find_fitting(np.array([phrase.language for phrase in sample]), scores)
    return np.concatenate([of_user, of_phrases[fitting]])


def find_fitting(languages: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the row numbers, among n phrases, of the phrases that fit the images of a collection, in ascending order.

    `languages` (n,) are the languages of the phrases, and `scores` (n,) the scores of the best image of each phrase.
    The language with the greatest median score is understood best. The model is taken to understand each language whose
    median is at least the lower quartile of the scores of the best language. Among the phrases in all understood
    languages, the share FITTING_SHARE with the highest scores fits.
    """
    medians = {language: float(np.median(scores[languages == language])) for language in np.unique(languages)}
    if not medians:
        return np.arange(0)
    best = max(medians, key=lambda language: medians[language])
    least = np.quantile(scores[languages == best], 0.25)
    rows = np.flatnonzero([medians[language] >= least for language in languages])
    ranked = rows[np.argsort(-scores[rows], kind="stable")]
    return np.sort(ranked[: math.ceil(FITTING_SHARE * len(ranked))])


class Phrase(NamedTuple):
    """A phrase (`text`), and its `language` as an ISO 639-1 code."""

    language: str
    text: str


def read_phrases() -> list[Phrase]:
    """Read the plain phrases that come with jointspace (phrases.tsv). They are grouped by language."""
    lines = Path(__file__).with_name("phrases.tsv").read_text(encoding="utf-8").splitlines()
    return [Phrase(*line.split("\t")) for line in lines]


def words_of_names(names: Iterable[str]) -> list[str]:
    """Return the words of each file name, without its folder and ending, as a text. Repeated texts are left out.

    A name that does not have more letters than digits, such as IMG_2041.jpg or a hash, is left out.
    """
    found: dict[str, None] = {}
    for name in names:
        stem = PurePosixPath(name).stem
        words = WORD.findall(stem)
        if sum(map(len, words)) > sum(map(str.isdecimal, stem)):
            found[" ".join(words)] = None
    return list(found)
