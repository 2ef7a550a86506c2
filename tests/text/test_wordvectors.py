"""Tests of word-vector files, intact and damaged, of the table of word vectors, and of vectors that are trained by
gensim."""

import io
import struct

import numpy as np
import pytest

from pipeline.errors import InputError
from pipeline.text.wordvectors import EPOCHS, WINDOW, read_binary_vectors, read_text_vectors, train_vectors

WORDS = {"dog": [1.0, 2.0, 3.0], "ünder": [0.5, -1.0, 1e-3], "don't": [4.0, 5.0, 6.0]}


def text(words: dict, header: bool = False) -> list[bytes]:
    lines = [f"{word} {' '.join(map(str, vector))}\n".encode() for word, vector in words.items()]
    return [b"%d 3\n" % len(words), *lines] if header else lines


def binary(words: dict) -> bytes:
    entries = (word.encode() + b" " + struct.pack("<3f", *vector) + b"\n" for word, vector in words.items())
    return b"%d 3\n" % len(words) + b"".join(entries)


@pytest.mark.parametrize("form", ["glove", "word2vec", "binary"])
def test_every_file_format_gives_the_same_vectors(form: str) -> None:
    if form == "binary":
        found = read_binary_vectors(io.BytesIO(binary(WORDS)), "v.bin", [*WORDS, "cat"])
    else:
        found = read_text_vectors(text(WORDS, header=form == "word2vec"), "v.txt", [*WORDS, "cat"])
    assert found.words == tuple(WORDS) and found.matrix.dtype == np.float32
    np.testing.assert_allclose(found.matrix, list(WORDS.values()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"cat 1 2\n", "v.txt, line 2 has a vector of 2 numbers, but 3"),
        (b"cat 1 2 3 4 5\n", "v.txt, line 2 has a vector of 5 numbers, but 3"),
        (b"cat 1 2 x\n", "v.txt, line 2 has a value that is not a number"),
        (b"cat 1 2 nan\n", "v.txt, line 2 has a number that is not finite"),
        (b"dog 1 2 3\n", "v.txt, line 2 repeats the word 'dog' of line 1"),
        (b"\xff\xfe 1 2 3\n", "v.txt, line 2 has a word that is not UTF-8"),
        (b"\n", "v.txt, line 2 has a vector of 0 numbers, but 3"),
    ],
)
def test_a_broken_line_is_named(line: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text_vectors([text(WORDS)[0], line], "v.txt", WORDS)


def test_the_table_has_known_vectors_and_draws_the_rest() -> None:
    vectors = read_text_vectors(text(WORDS), "v.txt", WORDS)
    table = vectors.table(["cat", "dog", "don't"], seed=1)
    assert table.shape == (4, 3) and table.dtype == np.float32 and np.isfinite(table).all()
    np.testing.assert_array_equal(table[1:3], [WORDS["dog"], WORDS["don't"]])
    np.testing.assert_allclose(table[3], [2.5, 3.5, 4.5])
    np.testing.assert_array_equal(table, vectors.table(["cat", "dog", "don't"], seed=1))
    assert (table[0] != vectors.table(["cat", "dog", "don't"], seed=2)[0]).any()


def test_learned_vectors_equal_those_of_gensim() -> None:
    """The corpus is read again in each pass. Unknown words and sentences of one word are skipped."""
    gensim = pytest.importorskip("gensim.models")
    rng = np.random.default_rng(0)
    sentences = [rng.integers(0, 7, rng.integers(1, 8)) for _ in range(60)]  # The id of unknown words is 6.
    words = [[str(word) for word in ids if word != 6] for ids in sentences]
    expected = gensim.Word2Vec(
        [known for known in words if len(known) > 1], vector_size=5, window=WINDOW, min_count=1, sample=1e-4, sg=1,
        workers=1, epochs=EPOCHS, seed=3,
    )  # fmt: skip
    found = train_vectors(sentences, list("abcdef"), 5, seed=2)
    np.testing.assert_array_equal(found[:6], [expected.wv[str(word)] for word in range(6)])
