"""Tests of terms, vocabularies and tf-idf, compared with scikit-learn's TfidfVectorizer and with examples that were
calculated by hand."""

import json
from collections import Counter
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from pipeline.encoders.tfidf import TfidfEncoder, encode
from pipeline.text import counting
from pipeline.text.lemmas import choose_lemmas, is_english
from pipeline.text.tokens import TermSettings, english_stop_words, make_analyzer
from pipeline.text.vocabulary import Vocabulary, build_vocabulary

SENTENCES = [
    "A black dog runs on the green grass .",
    "Two dogs are running through the grass",
    "The girl's bicycle stands beside a red house",
    "A girl rides her bicycle past the house .",
    "Geese swim ; a dog barks at the geese !",
]
PLAIN = TermSettings(False, (), 1)


def test_each_step_of_term_extraction_can_be_omitted() -> None:
    text = "The Dogs aren't running"
    assert make_analyzer(PLAIN)(text) == ["the", "dogs", "aren't", "running"]
    assert make_analyzer(TermSettings(True, (), 1))("the geese ate") == ["the", "goose", "eat"]
    assert make_analyzer(TermSettings(False, english_stop_words(), 1))("the dog is here") == ["dog"]
    assert make_analyzer(TermSettings(False, ("the",), 2))("the red dog runs") == [
        "red",
        "dog",
        "runs",
        "red dog",
        "dog runs",
    ]


@pytest.mark.parametrize("max_ngram", [1, 2])
@pytest.mark.parametrize("idf", [True, False])
def test_vectors_equal_scikit_learn(max_ngram: int, idf: bool) -> None:
    settings = TermSettings(False, (), max_ngram)
    vocabulary = build_vocabulary(SENTENCES, settings, size=1000, min_count=1, idf=idf, normalise=True)
    analyzer = make_analyzer(settings)
    oracle = TfidfVectorizer(analyzer=analyzer, use_idf=idf, vocabulary=list(vocabulary.terms)).fit(SENTENCES)
    queries = [*SENTENCES, "a dog on a bicycle", "nothing known hereabouts", ""]
    np.testing.assert_allclose(
        encode(queries, vocabulary).toarray(), oracle.transform(queries).toarray(), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize("normalise", [True, False])
def test_a_query_with_a_repeated_word_has_the_vector_of_the_sentence(normalise: bool) -> None:
    vocabulary = build_vocabulary(SENTENCES, PLAIN, size=99, min_count=1, idf=True, normalise=normalise)
    texts = ["dog dog grass", "geese the dog geese the geese", "nothing known", ""]
    found = TfidfEncoder(vocabulary).encode_query(texts)
    expected = encode(texts, vocabulary).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    counts = np.array([texts[1].split().count(term) for term in vocabulary.terms]) * vocabulary.idf
    np.testing.assert_allclose(expected[1], counts / (np.linalg.norm(counts) if normalise else 1), rtol=1e-6)


def test_a_stem_of_one_letter_is_not_a_lemma() -> None:
    """A rule for endings would turn `dies` into `dy`. The lemma in the dictionary is `die`, which is not a word of the
    collection."""
    assert choose_lemmas({"dies": 4, "dy": 9, "d": 9}, (), 1)["dies"] == "dies"
    assert choose_lemmas({"flies": 4, "fly": 9}, (), 1)["flies"] == "fly"


def test_a_word_is_suggested_only_if_it_is_nearer_than_by_chance() -> None:
    known = "girl hound cat hand dog beach people bicycle mountain snowboard children black violet"
    vocabulary = build_vocabulary([known], PLAIN, size=99, min_count=1, idf=True, normalise=True)
    near = {"dgo": "dog", "baech": "beach", "bycicle": "bicycle", "montain": "mountain", "snowbord": "snowboard"}
    far = ["guitar", "hund", "purple", "cot", "violin", "chairs", "x", ""]
    assert {word: vocabulary.suggest(word) for word in (*near, *far)} == near | dict.fromkeys(far)


def test_lemmas_are_words_of_the_collection() -> None:
    """All forms of a word get one term, and this term is a word of the collection.

    The dictionary has the wrong lemma `playe` for `playing`. It also has the lemmas `goose`, `eat` and `sunglass`,
    which the collection lacks, so the terms are `play`, `geese`, `ate` and `sunglasses`."""
    sentences = ["two geese were playing", "geese play and ate", "he plays , and had eaten", "sunglasses eaten", "ate"]
    settings = TermSettings(True, ("have",), 2)
    vocabulary = build_vocabulary(sentences, settings, size=99, min_count=1, idf=True, normalise=True)
    words = {term for term in vocabulary.terms if " " not in term}
    assert words == {"two", "geese", "were", "play", "and", "ate", "he", "sunglasses"}
    read = make_analyzer(vocabulary.settings)
    for forms in ("playing played plays play", "goose geese", "eat eats eaten ate eating", "sunglass sunglasses"):
        terms = read(" AND ".join(forms.split()))
        assert len({term for term in terms if " " not in term}) == 2, terms
    assert read("he had") == ["he"]


def test_queries_have_the_terms_of_equal_training_sentences() -> None:
    settings = TermSettings(True, ("have",), 2)
    vocabulary = build_vocabulary(["two geese ate", "a goose eats", "he had mice"], settings, size=3, min_count=2,
                                  idf=True, normalise=True)  # fmt: skip
    assert set(vocabulary.terms) == {"goose", "ate", "goose ate"}
    assert vocabulary.settings.lemmas == {
        word: term
        for term, words in {"ate": "ate eat eats", "goose": "geese goose", "have": "had"}.items()
        for word in words.split()
    }
    assert make_analyzer(vocabulary.settings)("geese had eaten") == ["goose", "ate", "goose ate"]


GERMAN = ["Zwei Hunde spielen im Wasser", "Ein Mann am Strand hat einen Hund", "Das Kind und die Frau an der Tür"]


def test_only_english_is_lemmatised() -> None:
    """The English dictionary has the lemma `be` for `am`, which is a German preposition here. The terms of the German
    captions are the words themselves."""
    assert is_english(dict.fromkeys(" ".join(SENTENCES).lower().split(), 1)) and is_english({"1865": 3, "№": 1})
    settings = TermSettings(True, (), 1)
    vocabulary = build_vocabulary(GERMAN, settings, size=99, min_count=1, idf=True, normalise=True)
    assert not vocabulary.settings.english and vocabulary.searches("am")
    read = make_analyzer(Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict()))).settings)
    assert read("Hunde am Strand") == ["hunde", "am", "strand"]


def test_words_are_unknown_if_they_have_no_known_term() -> None:
    settings = TermSettings(True, ("the",), 2)
    sentences = ["red dogs run", "a red dog runs", "the red house", "a house"]
    vocabulary = build_vocabulary(sentences, settings, size=20, min_count=2, idf=True, normalise=True)
    assert set(vocabulary.terms) == {"red", "dog", "run", "house", "a", "red dog", "dog run"}
    assert vocabulary.unknown("The red Zebras run to a savannah, to a savannah") == ["zebras", "to", "savannah"]
    assert vocabulary.count_words("The red Zebras run to a savannah, to a savannah") == (9, 5)
    assert vocabulary.unknown("the dogs") == vocabulary.unknown("... !") == []
    pairs = Vocabulary(settings, True, ("red dog", "house"), (1.0, 1.0), 4)
    assert pairs.unknown("a red dog, a red house") == ["a"]


@pytest.mark.parametrize("held", [300, 1 << 20])
def test_terms_in_many_files_are_counted_as_in_memory(
    held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sentences are counted in five pieces. Each piece writes a file whenever it holds `held` different
    terms, and one at its end. The counts equal the counts of a Counter."""
    monkeypatch.setattr(counting, "MAX_TERMS_IN_MEMORY", held)
    rng = np.random.default_rng(0)
    sentences = [" ".join(f"word{n % 300}s" for n in row) for row in rng.zipf(1.4, (1000, 5))]
    settings = TermSettings(True, (), 2)
    parts = [counting.count_terms(sentences[part::5], settings, tmp_path) for part in range(5)]
    merged = reduce(add, parts)
    analyze = make_analyzer(settings)
    expected = Counter(term for sentence in sentences for term in set(analyze(sentence)))
    assert merged.n == len(sentences)
    assert dict(merged.most_common(10**6, 1)) == expected
    wanted = sorted((item for item in expected.items() if item[1] >= 3), key=lambda item: (-item[1], item[0]))[:50]
    assert merged.most_common(50, 3) == wanted
    assert list(merged.all().items()) == sorted(expected.items())


@pytest.mark.parametrize("key", ["max_ngram", "max_characters"])
@pytest.mark.parametrize(
    ("longest", "known"), [(0, False), (1, True), (3, True), (4, False), (1.5, False), (10**9, False)]
)
def test_terms_of_a_stored_vocabulary_have_one_to_three_words(key: str, longest: float, known: bool) -> None:
    stored = {"lemmatise": False, "stop_words": [], "max_ngram": 1, key: longest}
    if known:
        assert getattr(TermSettings.from_dict(stored), key) == longest
    else:
        with pytest.raises(ValueError, match="the longest n-gram is .* must be from 1 to 3"):
            TermSettings.from_dict(stored)
