"""Sentences as word numbers."""

import numpy as np

from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.tokens import TermSettings
from pipeline.text.vocabulary import build_vocabulary

SENTENCES = ["A dog and a dog", "a cat", "the dog"]


def test_words_keep_their_order_and_unknown_ones_their_place() -> None:
    settings = TermSettings(False, (), 1)
    vocabulary = build_vocabulary(SENTENCES, settings, size=2, min_count=2, idf=False, normalise=False)
    assert vocabulary.terms == ("a", "dog")
    tokens = encode_tokens(["Dog, a ZEBRA; dog", "", "...", "zebra"], vocabulary)
    assert [ids.tolist() for ids in tokens] == [[1, 0, 2, 1], [], [], [2]]
    assert tokens.ids.dtype == np.int32 and tokens.offsets.dtype == np.int64


def test_take_gathers_whole_sentences() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, 40)
    tokens = Tokens(rng.integers(9, size=lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]))
    sentences, rows = list(tokens), rng.integers(40, size=100)
    taken = tokens.take(rows)
    assert len(taken) == 100
    for ids, row in zip(taken, rows, strict=True):
        np.testing.assert_array_equal(ids, sentences[row])
    assert len(tokens.take(np.array([], np.int64))) == 0
