"""Parsing texts with spaCy, one batch per call of a worker process."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import UsageError
from pipeline.text.conllu import ROOT, ROOT_RELATION, UNSPECIFIED, Parse
from pipeline.text.phrases import EMPTY, Parsed, derive_phrases, fall_back
from pipeline.text.tags import universal

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

FURTHER_ROOT = "parataxis"
MAX_WORDS = 100
"""Longer sentences become chains."""
"""Relation of a second sentence's root to the first's, if the parser splits a text into two sentences."""


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
    """Texts to trees with the spaCy pipeline from `load`; texts of more than `max_words` words become chains."""

    load: "Callable[[], Language]"
    max_words: int = MAX_WORDS

    def __call__(self, texts: Sequence[str]) -> list[Parsed]:
        pipeline = self.load()
        docs = [pipeline.make_doc(" ".join(text.split())) for text in texts]
        parses = map(_to_parse, pipeline.pipe([doc for doc in docs if 0 < len(doc) <= self.max_words]))
        found = []
        for text, doc in zip(texts, docs, strict=True):
            if 0 < len(doc) <= self.max_words:
                parse = next(parses)
                found.append(Parsed(parse, derive_phrases(parse), None))
            else:
                found.append(fall_back(text, f"more than {self.max_words} words" if len(doc) else EMPTY))
        return found


def parse_words(pipeline: "Language", sentences: Iterable[Sequence[str]]) -> Iterator[Parse]:
    """The parse of each sentence, given as words."""
    from spacy.tokens import Doc

    docs = (Doc(pipeline.vocab, words=list(words)) for words in sentences)
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
