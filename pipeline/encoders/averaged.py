"""Texts as the mean vectors of their words: the text encoder `averaged`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # whose parts it imports when they are used

from pipeline.encoders.material import PLAIN_WORDS, EncoderMaterial, Settings, TrainTexts
from pipeline.encoders.text_encoder import TextEncoder
from pipeline.text.lemmas import is_english
from pipeline.text.tokens import TermSettings, make_analyzer
from pipeline.text.vocabulary import KnownTerms
from pipeline.text.wordvectors import WordVectors

SAMPLE = 10_000
"""Training sentences by whose words their language is judged."""

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from pipeline.config.encoders import EncoderEntry


class WordsEncoder(KnownTerms, TextEncoder):
    """The base of encoders of word vectors: `vectors` (V, d) of the words `terms`, and how a text becomes words."""

    terms: Sequence[str]

    def __init__(self, split: TermSettings, vectors: WordVectors) -> None:
        count = len(vectors.words)
        if vectors.matrix.ndim != 2 or len(vectors.matrix) != count or len(set(vectors.words)) != count:
            raise ValueError("its words are not each once, with one vector each")
        self.split = split
        self.terms = vectors.words
        self.vectors = vectors.matrix.astype(np.float32, copy=False)

    def settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "split": {**asdict(self.split), "stop_words": []}, "words": list(self.terms)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"vectors": self.vectors}

    @staticmethod
    def read_known(settings: Settings, tensors: Mapping[str, np.ndarray]) -> tuple[TermSettings, WordVectors]:
        """What the constructor takes, from `settings` and `tensors`."""
        split = TermSettings.from_dict(settings["split"])
        if not all(isinstance(word, str) for word in settings["words"]) or not np.isfinite(tensors["vectors"]).all():
            raise ValueError("its words are not text, or its vectors not finite")
        return split, WordVectors(tuple(settings["words"]), tensors["vectors"])


def word_settings(texts: TrainTexts) -> TermSettings:
    """Return how a text is split into words, with the language of the first training captions."""
    analyze = make_analyzer(PLAIN_WORDS)
    counts = Counter(word for text in islice(texts.texts(), SAMPLE) for word in set(analyze(text)))
    return replace(PLAIN_WORDS, english=is_english(counts))


def find_vectors(entry: "EncoderEntry", texts: TrainTexts) -> WordVectors:
    """Read the word vectors that an entry names."""
    if entry.corpus:
        return texts.corpus()
    analyze = make_analyzer(PLAIN_WORDS)
    return texts.file(set(chain.from_iterable(map(analyze, texts.texts()))))


def inverse_frequencies(texts: Iterable[str], encoder: WordsEncoder) -> np.ndarray:
    """(V,) ln((1 + n) / (1 + df)) + 1 of each word that the encoder knows, over the n `texts`."""
    n, counts = 0, Counter()
    for text in texts:
        n += 1
        counts.update(set(encoder.rows(text)))
    frequencies = np.array([counts[row] for row in range(len(encoder.terms))], float)
    return (np.log((1 + n) / (1 + frequencies)) + 1).astype(np.float32)


class AveragedEncoder(WordsEncoder):
    """y = sum of idf_w v_w / sum of idf_w over the known words w of a text; idf is 1 without `idf`."""

    kind = "averaged"

    def __init__(self, split: TermSettings, vectors: WordVectors, idf: np.ndarray | None = None) -> None:
        super().__init__(split, vectors)
        self.idf = np.ones(len(self.terms), np.float32) if idf is None else idf
        if self.idf.shape != (len(self.terms),) or not ((self.idf > 0) & np.isfinite(self.idf)).all():
            raise ValueError("its words have not one positive idf each")
        self.dim = self.vectors.shape[1]

    @classmethod
    def prepare(cls, entry: "EncoderEntry", material: EncoderMaterial) -> "AveragedEncoder":
        """Take the word vectors of the entry. Raises InputError and UsageError as the readers of word vectors do."""
        from pipeline.config.encoders import AveragedEntry

        assert isinstance(entry, AveragedEntry) and material.texts is not None
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
        """(n, V) float32: the idf of every word of each text."""
        rows = [self.rows(text) for text in texts]
        columns = np.fromiter(chain.from_iterable(rows), np.int64)
        indptr = np.cumsum([0, *map(len, rows)])
        return scipy.sparse.csr_array((self.idf[columns], columns, indptr), shape=(len(rows), len(self.terms)))

    def tensors(self) -> dict[str, np.ndarray]:
        return {**super().tensors(), "idf": self.idf}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "AveragedEncoder":
        return cls(*cls.read_known(settings, tensors), tensors["idf"])
