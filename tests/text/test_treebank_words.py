"""nltk's tokenizer, imported without the rest of nltk, against nltk."""

import sys
from importlib import import_module

import pytest

from pipeline.text.treebank_words import treebank_tokenizer

SENTENCES = (
    "A dog can't run , it's said .",
    'He said "Hello" (twice) -- for $5.20...',
    "Gonna wait 'til it's done; 1,000?",
)


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What nltk makes of them; after that, all is as in a process that has not imported it."""
    from nltk.tokenize.destructive import NLTKWordTokenizer

    for name in [name for name in sys.modules if name.partition(".")[0] == "nltk"]:
        monkeypatch.delitem(sys.modules, name)
    return list(map(NLTKWordTokenizer().tokenize, SENTENCES))


def test_it_splits_as_nltk_does_and_imports_little_of_it(expected: list[list[str]]) -> None:
    assert list(map(treebank_tokenizer(), SENTENCES)) == expected
    assert not [name for name in sys.modules if name.startswith("nltk")]
    assert import_module("nltk").word_tokenize and list(map(treebank_tokenizer(), SENTENCES)) == expected
