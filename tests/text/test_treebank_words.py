"""nltk's tokenizer, imported without the rest of nltk, against nltk."""

import sys
from importlib import import_module

import pytest
from nltk.tokenize.destructive import NLTKWordTokenizer

from pipeline.text import treebank_words
from pipeline.text.treebank_words import treebank_tokenizer

SENTENCES = ("A dog can't run , it's said .", 'He said "Hello" (twice) -- for $5.20...', "Gonna wait 'til it's done; 1,000?")


@pytest.fixture
def without_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
        monkeypatch.delitem(sys.modules, name)


def test_it_splits_as_nltk_does_and_imports_little_of_it(without_nltk: None) -> None:
    expected = list(map(NLTKWordTokenizer().tokenize, SENTENCES))
    assert list(map(treebank_tokenizer(), SENTENCES)) == expected
    assert not [name for name in sys.modules if name.startswith("nltk")]
    import nltk

    assert nltk.word_tokenize and list(map(treebank_tokenizer(), SENTENCES)) == expected


def test_an_nltk_that_needs_more_of_itself_is_imported_whole(
    without_nltk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def demanding(name: str) -> object:
        return import_module(name) if hasattr(import_module("nltk"), "word_tokenize") else import_module("nltk.missing")

    monkeypatch.setattr(treebank_words, "import_module", demanding)
    assert treebank_tokenizer()(SENTENCES[0]) == NLTKWordTokenizer().tokenize(SENTENCES[0])
    assert sys.modules["nltk"].word_tokenize
