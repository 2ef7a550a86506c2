"""Rooted ordered trees over the words of sentences: a parse moved to our words, and packed into arrays."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from pipeline.compute.ragged import Ragged, offsets_of
from pipeline.text.dependencies import ROOT, ROOT_RELATION, Parse, chain, depths
from pipeline.text.phrase_trees import PhraseTree, right_branching
from pipeline.text.tokens import normalise_text
from pipeline.text.vocabulary import Vocabulary

NOTHING = -1
"""Parent of a root; word of a node without a word."""


@dataclass(frozen=True)
class Trees(Ragged):
    """n trees one after another: the nodes of tree i are rows offsets[i] to offsets[i + 1].

    `parents` (total,) int32: position of the parent among the tree's own nodes, -1 for the root.
    `words` (total,) int32: id in a vocabulary of V words, V for any other word, -1 for a node without one.
    `labels` (total,) int32: id in a table of L labels, L for any other label.
    `offsets` (n + 1,) int64.

    A dependency tree has a node per word, in word order; its labels are relations. A phrase tree has its leaves first,
    in word order, then its phrases, each after those in it; its labels are parts of speech and phrase categories.
    Children are in word order. A sentence without words has no nodes.
    """

    parents: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray


def pack(trees: Sequence[Sequence[tuple[int, int, int]]]) -> Trees:
    """Trees of nodes (parent, word, label)."""
    offsets = offsets_of(list(map(len, trees)))
    columns = np.array([node for tree in trees for node in tree], np.int32).reshape(-1, 3)
    parents, words, labels = (np.ascontiguousarray(column) for column in columns.T)
    return Trees(parents, words, labels, offsets)


INSIDE = "compound"
"""Relation between two of our words that are one word of the parser; the last is the head, as in compounds."""

Spans = list[tuple[int, int]]
"""For each of our words, the first and last of the parser's words that share letters with it."""


def letters(word: str) -> str:
    """The letters and digits of a word, case-folded."""
    return "".join(filter(str.isalnum, normalise_text(word).casefold()))


def align(theirs: Sequence[str], ours: Sequence[str]) -> Spans | None:
    """The span in `theirs` of each of `ours`; None if the letters differ."""
    text, mine = list(map(letters, theirs)), list(map(letters, ours))
    owner = [number for number, word in enumerate(text) for _ in word]
    if "".join(text) != "".join(mine) or not all(mine):
        return None
    spans, end = [], 0
    for word in mine:
        end += len(word)
        spans.append((owner[end - len(word)], owner[end - 1]))
    return spans


def project_parse(parse: Parse, ours: Sequence[str], spans: Spans) -> Parse:
    """The dependencies among `ours`. Dependents of a parser's word without letters move to its head.

    If several of the parser's words make one of ours, the highest in the tree counts. If several roots result, the
    first is the root and the others depend on it.
    """
    depth = depths(parse.heads)
    owner: dict[int, int] = {}
    for number, (first, last) in enumerate(spans):
        for word in range(first, last + 1):
            owner[word] = number  # the last of ours, where several share it
    highest = [min(range(first, last + 1), key=lambda word: (word not in owner, depth[word])) for first, last in spans]
    heads, relations = [ROOT] * len(ours), [ROOT_RELATION] * len(ours)
    for number, word in enumerate(highest):
        if owner[word] != number:
            heads[number], relations[number] = owner[word], INSIDE
            continue
        above = parse.heads[word]
        while above != ROOT and owner.get(above, number) == number:
            above = parse.heads[above]
        heads[number] = ROOT if above == ROOT else owner[above]
        relations[number] = parse.relations[word]
    roots = [number for number, head in enumerate(heads) if head == ROOT]
    for root in roots[1:]:
        heads[root] = roots[0]
    for root in roots[:1]:
        relations[root] = ROOT_RELATION
    upos, xpos = ([tags[word] for word in highest] for tags in (parse.upos, parse.xpos))
    spaces = (True,) * len(ours)
    return Parse(tuple(ours), tuple(upos), tuple(xpos), tuple(heads), tuple(relations), spaces)


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
            # A word takes the place of the first of the parser's words that share letters with it.
            phrases = tree.with_leaves(words, [first for first, _ in places])
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
