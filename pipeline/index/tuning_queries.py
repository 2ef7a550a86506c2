"""The queries with which an index of images is tuned and measured.

People search with text, and the vectors of texts lie elsewhere in a joint space than the vectors of images. An index
that was tuned with images may therefore miss many of the results of a text query. The captions of the index are the
best queries. If there are no captions but the model can embed texts, the queries are plain phrases, the file names of
the photos, and the user's own queries. The vectors of the images are used only if the model cannot embed texts.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import regex

from pipeline.compute.multivectors import Items
from pipeline.errors import UsageError
from pipeline.index.build import QUERIES
from pipeline.index.exact import evenly_spaced
from pipeline.storage.card import MeasuredWith

MIN_TEXTS = 20
"""Number of texts that a model with a limited vocabulary must know. A recall of fewer texts would mean little."""
WORD = regex.compile(r"\p{L}[\p{L}\p{M}]*")


class TuningQueries(NamedTuple):
    """Queries of one index, and the name of their source for its card."""

    vectors: Items
    measured_with: MeasuredWith


class TextEmbedder(Protocol):
    """The text side of a model."""

    def knows(self, text: str) -> bool:
        """Return whether `text` has known words, so that a search for it makes sense."""
        ...

    def embed_sentences(self, sentences: Sequence[str]) -> Items:
        """Embed texts in the joint space."""
        ...


def choose_queries(
    images: Items, captions: Items | None = None, embedder: TextEmbedder | None = None, texts: Iterable[str] = ()
) -> TuningQueries:
    """Choose the queries for an index of images: captions, or phrases and other `texts`, or `images`.

    `images` and `captions` are vectors in the joint space. If there are no captions, `embedder` embeds at most as many
    texts as there are images, because the encoding of texts may take long in a small collection. It may raise
    UsageError if it cannot embed texts.
    """
    if captions is not None and len(captions):
        return TuningQueries(captions, "captions")
    if embedder is not None:
        with suppress(UsageError):
            known = [text for text in dict.fromkeys((*texts, *read_phrases())) if embedder.knows(text)]
            if len(known) >= MIN_TEXTS:
                sample = [known[row] for row in evenly_spaced(len(known), min(QUERIES, len(images)))]
                return TuningQueries(embedder.embed_sentences(sample), "phrases")
            logging.getLogger(__name__).info(
                "the model knows only %d of the phrases that measure an index, so photos measure it", len(known)
            )
    return TuningQueries(images, "images")


def read_phrases() -> list[str]:
    """Read the plain phrases that are part of jointspace. They are sorted by language."""
    lines = Path(__file__).with_name("phrases.tsv").read_text(encoding="utf-8").splitlines()
    return [line.partition("\t")[2] for line in lines]


def words_of_names(names: Iterable[str]) -> list[str]:
    """Return the words in each of the file names that has words, each once.

    A name with more digits than letters, such as IMG_2041.jpg or a hash, has no words.
    """
    found: dict[str, None] = {}
    for name in names:
        stem = PurePosixPath(name).stem
        words = WORD.findall(stem)
        if sum(map(len, words)) > sum(map(str.isdecimal, stem)):
            found[" ".join(words)] = None
    return list(found)
