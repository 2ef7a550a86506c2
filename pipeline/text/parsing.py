"""Texts to parses by spaCy, in batches that a worker process takes one at a time."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import UsageError
from pipeline.text.conllu import ROOT, ROOT_RELATION, UNSPECIFIED, Parse
from pipeline.text.parsed import EMPTY, Parsed, fall_back
from pipeline.text.phrases import derive_phrases
from pipeline.text.tags import universal

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

FURTHER_ROOT = "parataxis"
"""Relation of a second sentence's root to the first, where a parser finds two sentences in one."""


def require_spacy() -> Any:
    """The module spacy; UsageError says how to install it."""
    try:
        import spacy
    except ImportError:
        raise UsageError("this needs spaCy: pip install 'jointspace[parse]', or set parse.engine to files") from None
    logging.getLogger("spacy").setLevel(logging.ERROR)
    return spacy


@dataclass(frozen=True)
class BatchParser:
    """Texts to trees, by the pipeline that `load` gives; texts of more than `max_words` words fall back to chains."""

    load: "Callable[[], Language]"
    max_words: int

    def __call__(self, texts: Sequence[str]) -> list[Parsed]:
        pipeline = self.load()
        docs = [pipeline.make_doc(" ".join(text.split())) for text in texts]
        parses = _parses(pipeline, [doc for doc in docs if 0 < len(doc) <= self.max_words])
        return [self._parsed(text, len(doc), parses) for text, doc in zip(texts, docs, strict=True)]

    def _parsed(self, text: str, words: int, parses: Iterator[Parse]) -> Parsed:
        if not words:
            return fall_back(text, EMPTY)
        if words > self.max_words:
            return fall_back(text, f"more than {self.max_words} words")
        parse = next(parses)
        return Parsed(parse, derive_phrases(parse), None)


def parse_words(pipeline: "Language", sentences: Iterable[Sequence[str]]) -> Iterator[Parse]:
    """The parse of each sentence, given as its words."""
    from spacy.tokens import Doc

    return _parses(pipeline, (Doc(pipeline.vocab, words=list(words)) for words in sentences))


def _parses(pipeline: "Language", docs: "Iterable[Doc]") -> Iterator[Parse]:
    return map(_to_parse, pipeline.pipe(docs))


def _to_parse(doc: "Doc") -> Parse:
    heads = [ROOT if token.head.i == token.i else token.head.i for token in doc]
    relations = [ROOT_RELATION if token.head.i == token.i else token.dep_ or UNSPECIFIED for token in doc]
    for other in [position for position, head in enumerate(heads) if head == ROOT][1:]:
        heads[other], relations[other] = heads.index(ROOT), FURTHER_ROOT
    xpos = [token.tag_ or "_" for token in doc]
    upos = [token.pos_ or universal(tag) for token, tag in zip(doc, xpos, strict=True)]
    words, spaces = [token.text for token in doc], [bool(token.whitespace_) for token in doc]
    return Parse(*map(tuple, (words, upos, xpos, heads, relations, spaces)))
