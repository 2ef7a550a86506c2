"""The text encoder `tf-idf`, which represents a text by a sparse tf-idf vector over a vocabulary."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # SciPy imports its submodules when they are used, so queries do not load them

from pipeline.compute.precision import scale_to_unit_length
from pipeline.encoders.material import EncoderMaterial, Settings
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.text.tokens import LONGEST_NGRAM, TermSettings, english_stop_words
from pipeline.text.vocabulary import KnownTerms, Vocabulary

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from pipeline.config.encoders import TfidfEntry


def encode(texts: Iterable[str], vocabulary: Vocabulary) -> "csr_array":
    """Return the tf-idf vectors (n_texts, n_terms) float32 of texts: the count of each term times its idf.

    If `vocabulary.normalise` is true, vectors are scaled to unit length. The vector of a text without known terms is
    zero.
    """
    found = list(map(vocabulary.rows, texts))
    columns = np.fromiter(chain.from_iterable(found), np.int32)
    indptr = np.cumsum([0, *map(len, found)])
    shape = (len(found), len(vocabulary.terms))
    matrix = scipy.sparse.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape)
    matrix.sum_duplicates()
    matrix.data *= np.asarray(vocabulary.idf, np.float32)[matrix.indices]
    return unit_rows(matrix) if vocabulary.normalise else matrix


class TfidfEncoder(KnownTerms, TextEncoder):
    """Text encoder that returns sparse tf-idf vectors over a vocabulary."""

    kind = "tf-idf"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.split = vocabulary.settings
        self.terms = vocabulary.terms
        self.dim = len(vocabulary.terms)

    @classmethod
    def prepare(cls, entry: "TfidfEntry", material: EncoderMaterial) -> "TfidfEncoder":
        """Make the encoder with the vocabulary that the entry names, or else with a vocabulary of the training
        captions.

        Raises InputError if no term of the training captions is frequent enough.
        """
        assert material.texts is not None
        if given := material.texts.vocabulary():
            return cls(given)
        stop_words = english_stop_words() if entry.stop_words else []
        settings = TermSettings(
            entry.lemmatise, stop_words, entry.max_ngram, max_characters=LONGEST_NGRAM, pieces=entry.pieces
        )
        sizes = {"size": entry.size, "min_count": entry.min_count, "idf": entry.idf, "normalise": entry.unit_length}
        return cls(material.texts.learn_vocabulary(settings, **sizes))

    def encode(self, texts: Sequence[str]) -> "csr_array":
        return encode(texts, self.vocabulary)

    def encode_query(self, texts: Sequence[str]) -> np.ndarray:
        """Return the tf-idf vectors (n_texts, n_terms) float32 of texts as a dense array.

        The function `encode` returns the same vectors as a sparse matrix. To import SciPy's sparse matrices would take
        a third of the time of a search.
        """
        rows = np.zeros((len(texts), self.dim), np.float32)
        idf = np.asarray(self.vocabulary.idf, np.float32)
        for row, columns in zip(rows, map(self.vocabulary.rows, texts), strict=True):
            np.add.at(row, columns, idf[columns])
        return scale_to_unit_length(rows) if self.vocabulary.normalise else rows

    def encode_words(self, words: Sequence[str]) -> "csr_array":
        """Return the tf-idf vectors (n, n_terms) of n words, which are not scaled to unit length."""
        return encode(words, replace(self.vocabulary, normalise=False))

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.vocabulary.to_dict()}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "TfidfEncoder":
        return cls(Vocabulary.from_dict(settings))


def unit_rows(matrix: "csr_array") -> "csr_array":
    """Return a matrix with every nonzero row scaled to unit length, in float32. Squares are summed in double
    precision."""
    assert matrix.shape is not None
    rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    lengths = np.sqrt(np.bincount(rows, np.square(matrix.data, dtype=np.float64)))[rows]
    data = np.divide(matrix.data, lengths, out=np.zeros_like(lengths), where=lengths > 0).astype(np.float32)
    return scipy.sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def join_fields(documents: Iterable[Mapping[str, str | None]], fields: Sequence[str]) -> list[str]:
    """Join the fields of each weak text, such as title, tags and description, to one text.

    ` . ` separates the fields. Fields that are None or empty are left out, so a text can be empty.
    """
    return [" . ".join(filter(None, (document[field] for field in fields))) for document in documents]
