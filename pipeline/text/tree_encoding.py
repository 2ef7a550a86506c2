"""Parses to packed trees over a vocabulary of words and a table of labels."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipeline.text.brackets import PhraseTree, right_branching
from pipeline.text.conllu import Parse, chain
from pipeline.text.retokenising import align, project_parse, project_phrases
from pipeline.text.trees import NOTHING, Trees, pack
from pipeline.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class LabelTable:
    """The labels in the training sentences' trees, the most common first, and their counts.

    Unknown labels have the id L, for a table of L labels.
    """

    relations: tuple[str, ...]
    relation_counts: tuple[int, ...]
    phrases: tuple[str, ...]
    phrase_counts: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "LabelTable":
        """The inverse of `to_dict`; ignores other keys."""
        return cls(*(tuple(value[field.name]) for field in fields(cls)))


@dataclass(frozen=True)
class SentenceTrees:
    """Both trees of a sentence over our words; `fits` is false if its parse had other words, and these are chains."""

    parse: Parse
    tree: PhraseTree
    fits: bool


def fit_trees(
    parses: Iterable[Parse], trees: Iterable[PhraseTree], texts: Iterable[str], analyze: Callable[[str], list[str]]
) -> Iterator[SentenceTrees]:
    """The trees of each text over the words that `analyze` finds in it; the phrase tree is under one root."""
    for parse, tree, text in zip(parses, trees, texts, strict=True):
        words = analyze(text)
        spans, places = align(parse.words, words), align(tree.words, words)
        if spans is None or places is None:
            yield SentenceTrees(chain(words), right_branching(words), False)
        else:
            phrases = project_phrases(tree, words, places)
            yield SentenceTrees(project_parse(parse, words, spans), phrases.under_one_root(), True)


def count_labels(sentences: Iterable[SentenceTrees]) -> LabelTable:
    """The table of all labels in these sentences; ties are alphabetical."""
    relations: Counter[str] = Counter()
    phrases: Counter[str] = Counter()
    for sentence in sentences:
        relations.update(sentence.parse.relations)
        phrases.update(sentence.tree.labels)
    parts = []
    for counts in (relations, phrases):
        common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        parts += [tuple(label for label, _ in common), tuple(count for _, count in common)]
    return LabelTable(*parts)


def pack_trees(sentences: Iterable[SentenceTrees], vocabulary: Vocabulary, table: LabelTable) -> tuple[Trees, Trees]:
    """The dependency trees and the phrase trees of m sentences."""
    word_id = vocabulary.index
    relation_id, label_id = ({label: i for i, label in enumerate(part)} for part in (table.relations, table.phrases))
    dependency, phrase = [], []
    for sentence in sentences:
        parse, tree = sentence.parse, sentence.tree
        words = [word_id.get(word, len(vocabulary.terms)) for word in parse.words]
        relations = [relation_id.get(relation, len(relation_id)) for relation in parse.relations]
        labels = [label_id.get(label, len(label_id)) for label in tree.labels]
        dependency.append(list(zip(parse.heads, words, relations, strict=True)))
        words += [NOTHING] * (len(tree) - len(words))
        phrase.append(list(zip(tree.parents, words, labels, strict=True)))
    return pack(dependency), pack(phrase)
