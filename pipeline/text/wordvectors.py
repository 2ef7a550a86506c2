"""Word vectors that are read from files of GloVe or word2vec, trained on a corpus, or drawn at random."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from pipeline.errors import InputError, UsageError

WINDOW = 5
"""Number of words on each side of a word that word2vec uses as its context."""
EPOCHS = 10
"""Number of passes of word2vec over the sentences."""
MAX_DIM = 1 << 16
"""Largest number of dimensions of a vector in a file. A file that announces more dimensions is refused."""
MAX_SIZE_DIGITS = 12
"""Largest number of digits of a count or a dimension in the first line of a file. A file with a longer number is
refused."""


@dataclass(frozen=True)
class WordVectors:
    """The vectors of n words: row i of `matrix` (n, dim) float32 is the vector of words[i]."""

    words: tuple[str, ...]
    matrix: np.ndarray

    def table(self, terms: Sequence[str], seed: int) -> np.ndarray:
        """Return the vectors of `terms` as a table (len(terms) + 1, dim) float32.

        The last row, for unknown words, is the mean of the vectors of all `terms` that have a vector. A term without a
        vector gets a normal sample, which has the mean and the standard deviation of these vectors in each dimension.
        If no term has a vector, the mean and the standard deviation of all stored vectors are used. `seed` is the seed
        of the samples.
        """
        rows = {word: row for row, word in enumerate(self.words)}
        present = [term for term in terms if term in rows]
        vectors = self.matrix[[rows[term] for term in present]] if present else self.matrix
        drawn = np.random.default_rng(seed).standard_normal((len(terms) + 1, vectors.shape[1]), dtype=np.float32)
        table = vectors.mean(axis=0) + drawn * vectors.std(axis=0)
        table[-1] = vectors.mean(axis=0)
        for row, term in enumerate(terms):
            if term in rows:
                table[row] = self.matrix[rows[term]]
        return table


def random_vectors(count: int, dim: int, scale: float, seed: int) -> np.ndarray:
    """Return random vectors for `count` words and, in the last row, for unknown words: (count + 1, dim) float32, drawn
    uniformly from [-scale, scale]."""
    return np.random.default_rng(seed).uniform(-scale, scale, (count + 1, dim)).astype(np.float32)


def read_text_vectors(lines: Iterable[bytes], source: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """Read word vectors in a text format: lines `word v1 ... vd`, after an optional first line `count dim` (word2vec).

    Return the vectors of the `wanted` words and of the `first` words of the file, in the order of the file. `source` is
    the name of the file for messages. All lines are checked. Raises InputError, with the line, for a vector of the
    wrong dimension, a value that is not a finite number, and a word that is repeated or not UTF-8. Raises InputError
    too if the first line announces another number of vectors or an impossible dimension, or if no vector is returned.
    """
    reader = _VectorReader(source, "line", wanted, first)
    count = None
    dim = None
    for number, line in enumerate(lines, 1):
        parts = line.rstrip().split(b" ") if dim is None else line.rstrip().rsplit(b" ", dim)
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            count, dim = _sizes(parts, source)
            continue
        dim = dim or len(parts) - 1
        numbers = len(parts) - 1 + _trailing_numbers(parts[0])
        if dim < 1 or numbers != dim:
            raise reader.error(number, f"has a vector of {numbers} numbers, but {max(dim, 1)} are expected")
        try:
            vector = np.array(parts[1:], dtype=bytes).astype(np.float32)
        except ValueError:
            raise reader.error(number, "has a value that is not a number") from None
        reader.add(number, parts[0], vector)
    return reader.finish(count)


def read_binary_vectors(stream: BinaryIO, source: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """Read word vectors in the binary format of word2vec: a line `count dim`, then each word, a space, and dim float32.

    Return the vectors of the `wanted` words and of the `first` words of the file, in the order of the file. `source` is
    the name of the file for messages. All entries are checked. Raises InputError if the first line is not `count dim`
    or has an impossible dimension, if the file is truncated, or if no vector is returned. Raises InputError too, with
    the number of the entry, for a value that is not finite, and for a word that is repeated or not UTF-8.
    """
    reader = _VectorReader(source, "entry", wanted, first)
    header = stream.readline(100).split()
    if len(header) != 2 or not all(part.isdigit() for part in header):
        raise InputError(
            f"{source} does not begin with the count and the dimension of word2vec's binary format. If it is a text"
            " file, set the format to text."
        )
    count, dim = _sizes(header, source)
    for number in range(1, count + 1):
        word = _read_word(stream)
        data = stream.read(4 * dim)
        if word is None or len(data) < 4 * dim:
            raise reader.error(number, f"is truncated (the first line announces {count} entries)")
        reader.add(number, word, np.frombuffer(data, "<f4").astype(np.float32))
    return reader.finish(count)


def _sizes(parts: Sequence[bytes], source: str) -> tuple[int, int]:
    """Return the count and the dimension from the first line of a file.

    Raises InputError, before memory is allocated, if the count or the dimension is too large or the dimension is 0.
    """
    if any(len(part) > MAX_SIZE_DIGITS for part in parts) or not 1 <= int(parts[1]) <= MAX_DIM:
        raise InputError(
            f"{source} begins with an impossible count of words or number of dimensions (at most {MAX_DIM}). Download"
            " the file again."
        )
    return int(parts[0]), int(parts[1])


def _trailing_numbers(word: bytes) -> int:
    """Count the numbers at the end of a word. A line is divided into word and vector at its last spaces, so numbers at
    the end of the word may be additional numbers of the vector."""
    count = 0
    for part in reversed(word.split(b" ")[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    return count


def _read_word(stream: BinaryIO) -> bytes | None:
    """Read a word: the bytes up to the next space, without a line end before it. Return None at the end of the
    stream."""
    word = bytearray()
    while (byte := stream.read(1)) not in (b" ", b""):
        word += byte
    return bytes(word.lstrip(b"\n")) if byte else None


class _VectorReader:
    """The collector of the vectors of the `wanted` words and of the first `first` words of a file. It checks all
    vectors of the file.

    `add` takes the vectors one after another, and `finish` returns the collected vectors. Both raise InputError for a
    fault. `source` is the name of the file, and `unit` is the noun for the position of a vector in messages: a `line`
    or an `entry` of the file.
    """

    def __init__(self, source: str, unit: str, wanted: Collection[str], first: int) -> None:
        self.source = source
        self.unit = unit
        self.first = first
        self.wanted = frozenset(wanted)
        self.seen: dict[bytes, int] = {}
        self.words: list[str] = []
        self.vectors: list[np.ndarray] = []

    def error(self, number: int, fault: str) -> InputError:
        return InputError(f"{self.source}, {self.unit} {number} {fault}. Download the file again or repair it.")

    def add(self, number: int, word: bytes, vector: np.ndarray) -> None:
        first = self.seen.setdefault(word, number)
        if first != number:
            shown = word.decode(errors="replace")
            raise self.error(number, f"repeats the word {shown!r} of {self.unit} {first}")
        if not np.isfinite(vector).all():
            raise self.error(number, "has a number that is not finite (NaN or infinity)")
        try:
            text = word.decode()
        except UnicodeDecodeError:
            raise self.error(number, "has a word that is not UTF-8") from None
        if text in self.wanted or len(self.seen) <= self.first:
            self.words.append(text)
            self.vectors.append(vector)

    def finish(self, count: int | None) -> WordVectors:
        if count is not None and len(self.seen) != count:
            raise InputError(
                f"{self.source} has {len(self.seen)} vectors, but its first line announces {count}. Download the file"
                " again."
            )
        if not self.words:
            raise InputError(
                f"{self.source} has no vector for any word of the vocabulary. Name a file for the language of your"
                " captions."
            )
        return WordVectors(tuple(self.words), np.stack(self.vectors))


def train_vectors(
    sentences: Iterable[np.ndarray],
    terms: Sequence[str],
    dim: int,
    seed: int,
    predicts: str = "context",
) -> np.ndarray:
    """Train vectors (V + 1, dim) float32 for V terms with word2vec and negative sampling, by gensim.

    `sentences` have the word ids of each sentence. Unknown words, with the id V, are skipped, and sentences with fewer
    than two known words are left out. With `predicts="context"`, each word predicts its context (skip-gram). With
    `predicts="word"`, the mean of the context predicts the word (continuous bag of words). The last row, for unknown
    words, is the mean of all trained vectors. A term that is in none of the sentences used gets the same mean. Training
    uses a single thread, so that `seed` determines the result. Raises UsageError if gensim is not installed, and
    InputError if no sentence has two known words.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise UsageError(
            "The setting corpus of word_vectors.source needs gensim. Install it with `pip install 'jointspace[words]'`,"
            " or set word_vectors.source to file or random."
        ) from error

    class Corpus:
        """The sentences with two or more known words, as gensim reads them in each pass."""

        def __iter__(self) -> Iterator[list[str]]:
            every = ([str(i) for i in ids.tolist() if i != len(terms)] for ids in sentences)
            return (words for words in every if len(words) > 1)

    if next(iter(Corpus()), None) is None:
        raise InputError(
            "no sentence has two words of the vocabulary, so word vectors cannot be trained. Lower tokens.min_count, or"
            " set word_vectors.source to random."
        )
    sizes = {"vector_size": dim, "window": WINDOW, "min_count": 1, "sample": 1e-4, "sg": int(predicts == "context")}
    model = Word2Vec(Corpus(), **sizes, workers=1, epochs=EPOCHS, seed=seed + 1)  # gensim does not accept the seed 0.
    table = np.tile(model.wv.vectors.mean(axis=0), (len(terms) + 1, 1))
    table[[int(str(word)) for word in model.wv.index_to_key]] = model.wv.vectors
    return table.astype(np.float32)
