"""Terms, vocabulary and tf-idf against scikit-learn's TfidfVectorizer and small examples by hand."""

import json
import tracemalloc
from collections import Counter
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from pipeline.errors import InputError
from pipeline.text import counting
from pipeline.text.tfidf import TfidfEncoder, encode
from pipeline.text.tokens import TermSettings, english_stop_words, find_lemma, make_analyzer
from pipeline.text.vocabulary import Vocabulary, build_vocabulary

SENTENCES = [
    "A black dog runs on the green grass .",
    "Two dogs are running through the grass",
    "The girl's bicycle stands beside a red house",
    "A girl rides her bicycle past the house .",
    "Geese swim ; a dog barks at the geese !",
]
PLAIN = TermSettings(True, "words", False, (), 1)


def test_steps_can_be_left_out_one_by_one() -> None:
    text = "The Dogs aren't running"
    assert make_analyzer(PLAIN)(text) == ["the", "dogs", "aren't", "running"]
    assert make_analyzer(TermSettings(False, "words", False, (), 1))(text) == ["The", "Dogs", "aren't", "running"]
    assert make_analyzer(TermSettings(True, "words", True, (), 1))("the geese ate") == ["the", "goose", "eat"]
    assert make_analyzer(TermSettings(True, "words", False, english_stop_words(), 1))("the dog is here") == ["dog"]
    assert make_analyzer(TermSettings(True, "words", False, ("the",), 2))("the red dog runs") == [
        "red",
        "dog",
        "runs",
        "red dog",
        "dog runs",
    ]


def test_treebank_keeps_no_punctuation() -> None:
    assert make_analyzer(TermSettings(True, "treebank", False, (), 1))("A dog , a cat .") == ["a", "dog", "a", "cat"]


@pytest.mark.parametrize("max_ngram", [1, 2])
@pytest.mark.parametrize("idf", [True, False])
def test_vectors_equal_scikit_learn(max_ngram: int, idf: bool) -> None:
    settings = TermSettings(True, "words", False, (), max_ngram)
    vocabulary = build_vocabulary(SENTENCES, settings, size=1000, min_count=1, idf=idf, normalise=True)
    analyzer = make_analyzer(settings)
    oracle = TfidfVectorizer(analyzer=analyzer, use_idf=idf, vocabulary=list(vocabulary.terms)).fit(SENTENCES)
    queries = [*SENTENCES, "a dog on a bicycle", "nothing known hereabouts", ""]
    np.testing.assert_allclose(
        encode(queries, vocabulary).toarray(), oracle.transform(queries).toarray(), rtol=1e-6, atol=1e-7
    )


def test_the_most_common_terms_come_first_and_ties_are_alphabetical() -> None:
    vocabulary = build_vocabulary(["b a", "a c", "a b d"], PLAIN, size=3, min_count=1, idf=True, normalise=True)
    assert vocabulary.terms == ("a", "b", "c")


def test_rare_terms_stay_out_and_an_empty_vocabulary_is_refused() -> None:
    assert build_vocabulary(SENTENCES, PLAIN, size=99, min_count=3, idf=True, normalise=True).terms == ("the", "a")
    with pytest.raises(InputError, match="text.min_count"):
        build_vocabulary(SENTENCES, PLAIN, size=99, min_count=9, idf=True, normalise=True)


def test_lemmas_are_those_of_the_words_that_were_learned_from() -> None:
    settings = TermSettings(True, "words", True, ("have",), 2)
    vocabulary = build_vocabulary(["two geese ate", "a goose eats", "he had mice"], settings, size=3, min_count=2,
                                  idf=True, normalise=True)  # fmt: skip
    assert set(vocabulary.terms) == {"goose", "eat", "goose eat"}
    assert vocabulary.settings.lemmas == {
        "ate": "eat",
        "eats": "eat",
        "geese": "goose",
        "goose": "goose",
        "had": "have",
    }
    unlisted = Vocabulary(settings, True, vocabulary.terms, vocabulary.idf, 3)
    for text in ("the geese had eaten", "mice eat a goose", "geese"):  # also words that it has not seen
        assert make_analyzer(vocabulary.settings)(text) == make_analyzer(settings)(text)
        query = TfidfEncoder(vocabulary).encode_query([text])
        np.testing.assert_allclose(query, encode([text], unlisted).toarray(), atol=1e-6)


def test_a_vocabulary_survives_json() -> None:
    settings = TermSettings(True, "words", True, english_stop_words(), 2)
    vocabulary = build_vocabulary(SENTENCES, settings, size=20, min_count=1, idf=True, normalise=True)
    twin = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert (encode(SENTENCES, vocabulary) != encode(SENTENCES, twin)).nnz == 0


def test_every_row_is_a_unit_vector_or_zero() -> None:
    vocabulary = build_vocabulary(SENTENCES, PLAIN, size=10, min_count=1, idf=True, normalise=True)
    lengths = np.sqrt(encode([*SENTENCES, "zzz"], vocabulary).power(2).sum(axis=1))
    np.testing.assert_allclose(lengths, [1, 1, 1, 1, 1, 0], atol=1e-6)


def test_unknown_words_are_those_of_no_known_term() -> None:
    settings = TermSettings(True, "words", True, ("the",), 2)
    sentences = ["red dogs run", "a red dog runs", "the red house", "a house"]
    vocabulary = build_vocabulary(sentences, settings, size=20, min_count=2, idf=True, normalise=True)
    assert set(vocabulary.terms) == {"red", "dog", "run", "house", "a", "red dog", "dog run"}
    assert vocabulary.unknown("The red Zebras run to a savannah, to a savannah") == ["zebra", "to", "savannah"]
    assert vocabulary.unknown("the dogs") == vocabulary.unknown("... !") == []
    pairs = Vocabulary(settings, True, ("red dog", "house"), (1.0, 1.0), 4)
    assert pairs.unknown("a red dog, a red house") == ["a"]


@pytest.mark.parametrize("held", [300, 1 << 20])
def test_terms_in_many_files_are_counted_as_in_memory(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a Counter; a thousand sentences in five parts, of which each writes a file after `held` terms."""
    monkeypatch.setattr(counting, "HELD", held)
    monkeypatch.setattr(counting, "ROWS", 50)
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"word{n % 300}s" for n in row) for row in rng.zipf(1.4, (1000, 5))]
    settings = TermSettings(True, "words", True, (), 2)
    parts = [counting.count_terms(sentences[part::5], settings, tmp_path) for part in range(5)]
    merged = reduce(counting.merge_counts, parts)
    analyze = make_analyzer(settings)
    expected = Counter(term for sentence in sentences for term in set(analyze(sentence)))
    assert merged.n == len(sentences)
    assert dict(counting.most_common(merged, 10**6, 1)) == expected
    wanted = sorted((item for item in expected.items() if item[1] >= 3), key=lambda item: (-item[1], item[0]))[:50]
    assert counting.most_common(merged, 50, 3) == wanted
    words = sorted({word for sentence in sentences for word in sentence.split()})
    assert list(counting.lemmas(merged)) == [(word, find_lemma(word)) for word in words]


def test_what_was_merged_is_removed_once_no_worker_can_ask_for_it_again(tmp_path: Path) -> None:
    parts = [counting.count_terms(SENTENCES[part::4], PLAIN, tmp_path) for part in range(4)]
    left, right = counting.merge_counts(*parts[:2]), counting.merge_counts(*parts[2:])
    assert set(tmp_path.iterdir()) == {file for one in (*parts, left, right) for file in one.files}
    lost, merged = counting.merge_counts(left, right), counting.merge_counts(left, right)  # as if a worker was lost
    assert set(tmp_path.iterdir()) == {file for one in (left, right, lost, merged) for file in one.files}
    whole = dict(counting.most_common(counting.count_terms(SENTENCES, PLAIN, tmp_path), 99, 1))
    assert whole == dict(counting.most_common(merged, 99, 1)) == dict(counting.most_common(lost, 99, 1))


def test_counting_does_not_hold_all_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of terms that occur once; five times as many of them take less than one and a half times the memory."""
    monkeypatch.setattr(counting, "HELD", 2000)
    monkeypatch.setattr(counting, "ROWS", 2000)

    def traced(count: int) -> int:
        tracemalloc.start()
        counting.count_terms((f"term{n:06d} other{n:06d}" for n in range(count)), PLAIN, tmp_path)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert traced(20_000) < 1.5 * traced(4000)
