"""A query in words as trees: parsed as the sentences of the bundle were, and encoded as `encode-trees` does."""

from collections.abc import Mapping
from importlib.util import find_spec
from threading import Lock
from typing import Any

from pipeline.text.parsing import BatchParser, require_spacy
from pipeline.text.tokens import make_analyzer
from pipeline.text.tree_encoding import LabelTable, fit_trees, pack_trees
from pipeline.text.trees import Trees
from pipeline.text.vocabulary import Vocabulary

VIEWS = ("dependency-trees", "phrase-trees")
"""The forms of sentences that this makes, as `pack_trees` orders them."""


def lacking(told: Mapping[str, Any] | None) -> str | None:
    """What to do before queries can be parsed, None where all is there; `told` is what a card says of parsing."""
    if told is None:
        return "build the index again"
    if told["engine"] != "spacy":
        return "parse with spaCy (parse.engine spacy): its trees come from another parser's files"
    return None if find_spec("spacy") else "pip install 'jointspace[parse]' for spaCy, which parsed its sentences"


class QueryParser:
    """Trees of sentences, over the words of a vocabulary and the `labels` of a label table.

    `pipeline` is the spaCy pipeline that parsed the bundle's sentences; a sentence of more than `max_words` words
    becomes a chain, as there. Threads may share it: they take turns.
    """

    def __init__(self, pipeline: Any, max_words: int, labels: Mapping[str, Any]) -> None:
        require_spacy()
        self._parse = BatchParser(lambda: pipeline, max_words)
        self._labels = LabelTable.from_dict(labels)
        self._lock = Lock()

    def trees(self, sentence: str, view: str, vocabulary: Vocabulary) -> Trees:
        """One tree of the form `view`."""
        with self._lock:
            (parsed,) = self._parse([sentence])
        fitted = fit_trees([parsed.parse], [parsed.tree], [sentence], make_analyzer(vocabulary.settings))
        return pack_trees(fitted, vocabulary, self._labels)[VIEWS.index(view)]
