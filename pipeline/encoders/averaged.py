"""The text encoder `averaged`, which represents a text by the mean of its word vectors."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # SciPy imports its submodules when they are used

from pipeline.encoders.material import PLAIN_WORDS, EncoderMaterial, Settings, TrainTexts
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.text.lemmas import is_english
from pipeline.text.tokens import TermSettings, make_analyzer
from pipeline.text.vocabulary import KnownTerms
from pipeline.text.wordvectors import WordVectors

LANGUAGE_SAMPLE = 10_000
"""Largest number of training captions whose words decide whether the captions are English. The first captions are used.
"""

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from pipeline.config.encoders import AveragedEntry, WordVectorsEntry


class WordsEncoder(KnownTerms, TextEncoder):
    """Base class of text encoders that use word vectors.

    `vectors` (V, d) float32 has the vectors of the V words `terms`. `split` has the settings by which a text is split
    into words.
    """

    terms: Sequence[str]

    def __init__(self, split: TermSettings, vectors: WordVectors) -> None:
        count = len(vectors.words)
        if vectors.matrix.ndim != 2 or len(vectors.matrix) != count or len(set(vectors.words)) != count:
            raise ValueError(
                f"there must be one vector for each of {count} different words, but there are"
                f" {len(set(vectors.words))} different words and vectors of the shape {vectors.matrix.shape}"
            )
        self.split = split
        self.terms = vectors.words
        self.vectors = vectors.matrix.astype(np.float32, copy=False)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "split": {**self.split.to_dict(), "stop_words": []}, "words": list(self.terms)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"vectors": self.vectors}

    @staticmethod
    def read_known(settings: Settings, tensors: Mapping[str, np.ndarray]) -> tuple[TermSettings, WordVectors]:
        """Return the arguments of the constructor from stored settings and tensors.

        Raises ValueError if a word is not a text or a vector is not finite, and KeyError if a setting or a tensor is
        missing.
        """
        split = TermSettings.from_dict(settings["split"])
        if not all(isinstance(word, str) for word in settings["words"]) or not np.isfinite(tensors["vectors"]).all():
            raise ValueError("a word is not a text, or a vector contains NaN or infinity")
        return split, WordVectors(tuple(settings["words"]), tensors["vectors"])


def word_settings(texts: TrainTexts) -> TermSettings:
    """Return the settings for splitting a text into words.

    The settings are PLAIN_WORDS, except for the setting `english`, which is true if the first LANGUAGE_SAMPLE training
    captions are in English, as `is_english` decides.
    """
    analyze = make_analyzer(PLAIN_WORDS)
    counts = Counter(word for text in islice(texts.texts(), LANGUAGE_SAMPLE) for word in set(analyze(text)))
    return replace(PLAIN_WORDS, english=is_english(counts))


def find_vectors(entry: "WordVectorsEntry", texts: TrainTexts) -> WordVectors:
    """Return the word vectors that an encoder's entry names.

    These are the vectors that the run has trained on its captions, or the vectors in a file of the user. From a file,
    two groups of vectors are read: the vectors of the words in the training captions, and the vectors of the first
    words in the file. The key `words` of the entry is the number of these first words.
    """
    if entry.corpus:
        return texts.corpus()
    analyze = make_analyzer(PLAIN_WORDS)
    return texts.file(set(chain.from_iterable(map(analyze, texts.texts()))))


def inverse_frequencies(texts: Iterable[str], encoder: WordsEncoder) -> np.ndarray:
    """Return the inverse document frequency (V,) of each word that the encoder knows, over n texts.

    The frequency is ln((1 + n) / (1 + df)) + 1, where df is the number of texts with the word.
    """
    n = 0
    counts = Counter()
    for text in texts:
        n += 1
        counts.update(set(encoder.rows(text)))
    frequencies = np.array([counts[row] for row in range(len(encoder.terms))], float)
    return (np.log((1 + n) / (1 + frequencies)) + 1).astype(np.float32)


class AveragedEncoder(WordsEncoder):
    """Text encoder that averages the vectors of the words of a text.

    The result is y = sum of idf_w v_w / sum of idf_w over the known words w of the text, with their vectors v_w and
    weights idf_w. `idf` (V,) has the weights of all known words, or is None if all weights are 1. The vector of a text
    without known words is zero.
    """

    kind = "averaged"

    def __init__(self, split: TermSettings, vectors: WordVectors, idf: np.ndarray | None = None) -> None:
        super().__init__(split, vectors)
        self.idf = np.ones(len(self.terms), np.float32) if idf is None else idf
        if self.idf.shape != (len(self.terms),) or not ((self.idf > 0) & np.isfinite(self.idf)).all():
            raise ValueError(
                f"there must be {len(self.terms)} positive idf weights, one per word, but there are {len(self.idf)},"
                " or one is not positive"
            )
        self.dim = self.vectors.shape[1]

    @classmethod
    def prepare(cls, entry: "AveragedEntry", material: EncoderMaterial) -> "AveragedEncoder":
        """Make the encoder with the word vectors that the entry names.

        If the key `idf` of the entry is true, the words are weighted by their inverse frequencies in the training
        captions. Raises InputError if the file of word vectors cannot be read.
        """
        assert material.texts is not None
        encoder = cls(word_settings(material.texts), find_vectors(entry, material.texts))
        if entry.idf:
            encoder.idf = inverse_frequencies(material.texts.texts(), encoder)
        return encoder

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        bags = self._bags(texts)
        bags.data /= np.repeat(bags.sum(axis=1), np.diff(bags.indptr))
        return bags @ self.vectors

    def word_factors(self, words: Sequence[str]) -> np.ndarray:
        return self._bags(words).sum(axis=1)

    def _bags(self, texts: Sequence[str]) -> "csr_array":
        """Return a sparse matrix (n, V) float32 with one entry for each occurrence of a known word in a text.

        The value of an entry is the idf of the word. The entries of a repeated word add up.
        """
        rows = [self.rows(text) for text in texts]
        columns = np.fromiter(chain.from_iterable(rows), np.int64)
        indptr = np.cumsum([0, *map(len, rows)])
        return scipy.sparse.csr_array((self.idf[columns], columns, indptr), shape=(len(rows), len(self.terms)))

    def tensors(self) -> dict[str, np.ndarray]:
        return {**super().tensors(), "idf": self.idf}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "AveragedEncoder":
        return cls(*cls.read_known(settings, tensors), tensors["idf"])
