"""Word vectors: read from GloVe's or word2vec's files, trained on a corpus, or random."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from pipeline.errors import InputError, UsageError

WINDOW, EPOCHS = 5, 10
"""Of word2vec: words on each side that a word is to predict, and passes over the sentences."""

LARGEST_DIM, LONGEST_SIZE = 1 << 16, 12
"""The most dimensions of a vector, and the most digits of a count or a dimension."""


@dataclass(frozen=True)
class WordVectors:
    """`matrix` (n, dim) float32, row i the vector of words[i]."""

    words: tuple[str, ...]
    matrix: np.ndarray

    def table(self, terms: Sequence[str], seed: int) -> np.ndarray:
        """(len(terms) + 1, dim) float32: the vectors of `terms`, and for unknown words the mean of those found.

        A term without a vector gets a normal sample with the mean and deviation of those found, by dimension.
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
    """(count + 1, dim) float32, uniform in [-scale, scale]: a table like `WordVectors.table`."""
    return np.random.default_rng(seed).uniform(-scale, scale, (count + 1, dim)).astype(np.float32)


def read_text_vectors(lines: Iterable[bytes], source: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """The vectors of the `wanted` words, and of the `first` so many of all, in lines `word v1 ... vd`, after word2vec's
    optional line `count dim`.

    Every line is checked. Raises InputError naming `source` and the line of a vector of the wrong dimension, a value
    that is not a finite number, a repeated word, or a missing line; and if no wanted word has a vector.
    """
    reader, count, dim = _VectorReader(source, "line", wanted, first), None, None
    for number, line in enumerate(lines, 1):
        parts = line.rstrip().split(b" ") if dim is None else line.rstrip().rsplit(b" ", dim)
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            count, dim = _sizes(parts, source)
            continue
        dim = dim or len(parts) - 1
        numbers = len(parts) - 1 + _trailing_numbers(parts[0])
        if dim < 1 or numbers != dim:
            raise reader.error(number, f"holds a vector of {numbers} numbers, not {max(dim, 1)}")
        try:
            vector = np.array(parts[1:], dtype=bytes).astype(np.float32)
        except ValueError:
            raise reader.error(number, "holds something that is not a number") from None
        reader.add(number, parts[0], vector)
    return reader.finish(count)


def read_binary_vectors(stream: BinaryIO, source: str, wanted: Collection[str], first: int = 0) -> WordVectors:
    """The same from word2vec's binary form: a line `count dim`, then each word, a space, and dim float32.

    Raises InputError like `read_text_vectors`, naming the entry instead of the line.
    """
    reader = _VectorReader(source, "entry", wanted, first)
    header = stream.readline(100).split()
    if len(header) != 2 or not all(part.isdigit() for part in header):
        raise InputError(f"{source} does not begin with word2vec's count and dimension; is it in the text format?")
    count, dim = _sizes(header, source)
    for number in range(1, count + 1):
        word, data = _read_word(stream), stream.read(4 * dim)
        if word is None or len(data) < 4 * dim:
            raise reader.error(number, f"is cut off, of {count} that the first line promises")
        reader.add(number, word, np.frombuffer(data, "<f4").astype(np.float32))
    return reader.finish(count)


def _sizes(parts: Sequence[bytes], source: str) -> tuple[int, int]:
    """Count and dimension from a first line. Raises InputError for impossible ones, before memory is allocated."""
    if any(len(part) > LONGEST_SIZE for part in parts) or not 1 <= int(parts[1]) <= LARGEST_DIM:
        raise InputError(f"{source} begins with an impossible count or dimension; get the file again")
    return int(parts[0]), int(parts[1])


def _trailing_numbers(word: bytes) -> int:
    """How many numbers end what should be a word; a word may contain spaces."""
    count = 0
    for part in reversed(word.split(b" ")[1:]):
        try:
            float(part)
        except ValueError:
            break
        count += 1
    return count


def _read_word(stream: BinaryIO) -> bytes | None:
    """The bytes up to the next space, without the previous entry's line end; None at the end of the stream."""
    word = bytearray()
    while (byte := stream.read(1)) not in (b" ", b""):
        word += byte
    return bytes(word.lstrip(b"\n")) if byte else None


class _VectorReader:
    """Collects the wanted vectors; names the source and the place in it of every fault."""

    def __init__(self, source: str, place: str, wanted: Collection[str], first: int) -> None:
        self.source, self.place, self.first = source, place, first
        self.wanted = frozenset(wanted)
        self.seen: dict[bytes, int] = {}
        self.words: list[str] = []
        self.vectors: list[np.ndarray] = []

    def error(self, number: int, fault: str) -> InputError:
        return InputError(f"{self.source}, {self.place} {number} {fault}; get the file again or repair it")

    def add(self, number: int, word: bytes, vector: np.ndarray) -> None:
        first = self.seen.setdefault(word, number)
        if first != number:
            shown = word.decode(errors="replace")
            raise self.error(number, f"repeats the word {shown!r} of {self.place} {first}")
        if not np.isfinite(vector).all():
            raise self.error(number, "holds a number that is not finite")
        try:
            text = word.decode()
        except UnicodeDecodeError:
            raise self.error(number, "holds a word that is not UTF-8") from None
        if text in self.wanted or len(self.seen) <= self.first:
            self.words.append(text)
            self.vectors.append(vector)

    def finish(self, count: int | None) -> WordVectors:
        if count is not None and len(self.seen) != count:
            raise InputError(
                f"{self.source} ends after {len(self.seen)} of the {count} vectors that its first line promises;"
                " get the file again"
            )
        if not self.words:
            raise InputError(f"{self.source} has no vector for any word of the vocabulary; give another file")
        return WordVectors(tuple(self.words), np.stack(self.vectors))


def train_vectors(
    sentences: Iterable[np.ndarray],
    terms: Sequence[str],
    dim: int,
    seed: int,
    predicts: str = "context",
) -> np.ndarray:
    """(V + 1, dim) float32 by word2vec with negative sampling (gensim): the vectors of the V `terms`. A word `predicts`
    its `context` (skip-gram), or the mean of its context the `word` (continuous bag of words).

    The last row, for unknown words, and terms in no sentence get the mean. `sentences` are word ids, V for unknown
    words, which are skipped. Training uses one thread, so that the seed decides the result. Raises UsageError without
    gensim, and InputError if no sentence has two known words.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise UsageError(
            "word_vectors.source corpus needs gensim: pip install 'jointspace[words]', or choose another source"
        ) from error

    class Corpus:
        """The sentences with two or more known words, which each pass of gensim makes anew."""

        def __iter__(self) -> Iterator[list[str]]:
            every = ([str(i) for i in ids.tolist() if i != len(terms)] for ids in sentences)
            return (words for words in every if len(words) > 1)

    if next(iter(Corpus()), None) is None:
        raise InputError("no sentence has two words of the vocabulary; lower tokens.min_count, or draw the vectors")
    sizes = {"vector_size": dim, "window": WINDOW, "min_count": 1, "sample": 1e-4, "sg": int(predicts == "context")}
    model = Word2Vec(Corpus(), **sizes, workers=1, epochs=EPOCHS, seed=seed + 1)  # gensim takes no seed of 0
    table = np.tile(model.wv.vectors.mean(axis=0), (len(terms) + 1, 1))
    table[[int(str(word)) for word in model.wv.index_to_key]] = model.wv.vectors
    return table.astype(np.float32)
