"""The probabilities of the Kneser-Ney trigram model are compared with the probabilities of nltk. A test shows that the
file of additional texts is counted too."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nltk.lm import KneserNeyInterpolated
from synthetic_text import make_sentences, make_vocabulary

from pipeline.generate.corpus import DISCOUNT, Corpus, Trigram
from pipeline.run.reading.generators import count_trigrams
from pipeline.text.vocabulary import Tokens, encode_tokens

BOUNDARY = 7


def make_tokens(count: int, seed: int) -> Tokens:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, count)
    share = 1 / np.arange(1, 7)
    ids = rng.choice(6, lengths.sum(), p=share / share.sum()).astype(np.int32)
    return Tokens(ids, np.concatenate([[0], np.cumsum(lengths)]))


def test_probabilities_equal_those_of_nltk() -> None:
    tokens = make_tokens(60, 0)
    padded = [["B", "B", *map(str, ids), "B"] for ids in tokens]
    theirs = KneserNeyInterpolated(3, discount=DISCOUNT)
    # nltk gets all n-grams of a padded sentence except its first pair, the two boundaries, which follows no history.
    grams = [[tuple(s[i : i + n]) for n in (1, 2, 3) for i in range(n == 2, len(s) - n + 1)] for s in padded]
    theirs.fit(grams, [word for words in padded for word in words])
    ours = Trigram(tokens, BOUNDARY)
    for words, found in zip(padded, ours.log_probability(tokens), strict=True):
        expected = sum(np.log(theirs.score(words[i], words[i - 2 : i])) for i in range(2, len(words)))
        assert found == pytest.approx(expected, rel=1e-6)


def test_a_run_counts_the_trigrams_of_its_additional_text_file(tmp_path: Path) -> None:
    vocabulary = make_vocabulary()
    further = ["one big road", "a dog by the boat"]
    (tmp_path / "text.tsv").write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(further)))
    texts = make_sentences(4)[0]
    corpus = Corpus(texts, encode_tokens(texts, vocabulary), vocabulary)
    asked = encode_tokens(["a dog by the boat", "a cat is here"], vocabulary)

    def log_probability(file: str | None) -> np.ndarray:
        config = SimpleNamespace(language_text=SimpleNamespace(file=file, column=1))
        return count_trigrams(config, corpus).log_probability(asked)

    together = Trigram(encode_tokens([*texts, *further], vocabulary), len(vocabulary.terms) + 1)
    found = log_probability(str(tmp_path / "text.tsv"))
    np.testing.assert_allclose(found, together.log_probability(asked))
    assert found[0] > log_probability(None)[0] + 0.5
