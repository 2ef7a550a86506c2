"""Terms, vocabulary and tf-idf against scikit-learn's TfidfVectorizer and small examples by hand."""

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from pipeline.errors import InputError
from pipeline.text.tfidf import TfidfEncoder, encode
from pipeline.text.tokens import TermSettings, english_stop_words, make_analyzer
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
