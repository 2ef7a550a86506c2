"""Trees over the words of sentences: moves a parser's trees to jointspace's words, and packs trees into arrays."""

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
"""The parent of a root, and the word of a node without a word."""


@dataclass(frozen=True)
class Trees(Ragged):
    """n trees that are stored one after another. The nodes of tree i are the rows offsets[i] to offsets[i + 1] - 1.

    `parents` (total,) int32: the position of the parent among the nodes of the same tree, or -1 for the root.
    `words` (total,) int32: the id of the word in a vocabulary of V words, V for any other word, or -1 for a node that
    has no word.
    `labels` (total,) int32: the id of the label in a table of L labels, or L for any other label.
    `offsets` (n + 1,) int64.

    A dependency tree has one node per word, in word order, and its labels are relations. A phrase tree has its leaves
    first, in word order, then its phrases, each after the phrases that it contains. Its labels are parts of speech and
    phrase categories. Children are in word order. A sentence without words has no nodes.
    """

    parents: np.ndarray
    words: np.ndarray
    labels: np.ndarray
    offsets: np.ndarray


def pack(trees: Sequence[Sequence[tuple[int, int, int]]]) -> Trees:
    """Pack trees into arrays. Each tree is a list of triples (parent, word, label), one for each node. The description
    of Trees explains the three numbers."""
    offsets = offsets_of(list(map(len, trees)))
    columns = np.array([node for tree in trees for node in tree], np.int32).reshape(-1, 3)
    parents, words, labels = (np.ascontiguousarray(column) for column in columns.T)
    return Trees(parents, words, labels, offsets)


INSIDE = "compound"
"""Relation of a word to its head if both are parts of a single word of the parser. The head is the last part, as in
compounds."""

Spans = list[tuple[int, int]]
"""A pair for each word of jointspace: the numbers of the first and the last word of the parser that share letters with
this word."""


def letters(word: str) -> str:
    """Return the letters and digits of a word, case-folded."""
    return "".join(filter(str.isalnum, normalise_text(word).casefold()))


def align(parser_words: Sequence[str], words: Sequence[str]) -> Spans | None:
    """Find the span of each of `words` in `parser_words`, the words of a parser for the same sentence: the numbers of
    the first and the last word of the parser that share letters with the word.

    Return None if the letters of `words` differ from the letters of `parser_words`, or if one of `words` has no
    letters.
    """
    parser_letters = list(map(letters, parser_words))
    word_letters = list(map(letters, words))
    owner = [number for number, word in enumerate(parser_letters) for _ in word]
    if "".join(parser_letters) != "".join(word_letters) or not all(word_letters):
        return None
    spans = []
    end = 0
    for word in word_letters:
        end += len(word)
        spans.append((owner[end - len(word)], owner[end - 1]))
    return spans


def project_parse(parse: Parse, words: Sequence[str], spans: Spans) -> Parse:
    """Convert a parse to other words of the same sentence. `spans` is the result of `align` for `words`.

    If a word of the parser has no letters, its dependents become dependents of its head. If several words of the parser
    form one of `words`, the word that is highest in the tree counts. If several of `words` are parts of a single word
    of the parser, the last part takes the place of this word, and the other parts depend on the last part by INSIDE. If
    the result has several roots, the first remains the root and the others depend on it.
    """
    depth = depths(parse.heads)
    owner: dict[int, int] = {}
    for number, (first, last) in enumerate(spans):
        for word in range(first, last + 1):
            owner[word] = number  # If several of `words` share a parser's word, the last of them owns it.
    highest = [min(range(first, last + 1), key=lambda word: (word not in owner, depth[word])) for first, last in spans]
    heads = [ROOT] * len(words)
    relations = [ROOT_RELATION] * len(words)
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
    spaces = (True,) * len(words)
    return Parse(tuple(words), tuple(upos), tuple(xpos), tuple(heads), tuple(relations), spaces)


@dataclass(frozen=True)
class LabelTable:
    """The labels in the trees of the training sentences with their counts, the most common first.

    Relations and phrase labels have separate lists. The id of a label is its position in its list. Unknown labels have
    the id L, for a list of L labels.
    """

    relations: tuple[str, ...]
    relation_counts: tuple[int, ...]
    phrases: tuple[str, ...]
    phrase_counts: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "LabelTable":
        """Return the table that `to_dict` has described. Other keys are ignored."""
        return cls(*(tuple(value[field.name]) for field in fields(cls)))


@dataclass(frozen=True)
class SentenceTrees:
    """The dependency tree and the phrase tree of a sentence over jointspace's words.

    `fits` is false if the parser's words could not be aligned. In this case, `parse` is the result of `chain`, and
    `tree` is the result of `right_branching`.
    """

    parse: Parse
    tree: PhraseTree
    fits: bool


def fit_trees(
    parses: Iterable[Parse], trees: Iterable[PhraseTree], texts: Iterable[str], analyze: Callable[[str], list[str]]
) -> Iterator[SentenceTrees]:
    """Convert the trees of each text to the words that `analyze` finds in the text. Phrase trees get a single root. If
    the words of a parser cannot be aligned, the substitutes in SentenceTrees are yielded."""
    for parse, tree, text in zip(parses, trees, texts, strict=True):
        words = analyze(text)
        spans = align(parse.words, words)
        tree_spans = align(tree.words, words)
        if spans is None or tree_spans is None:
            yield SentenceTrees(chain(words), right_branching(words), False)
        else:
            # A word takes the position of the first word of the parser that shares letters with it.
            phrases = tree.with_leaves(words, [first for first, _ in tree_spans])
            yield SentenceTrees(project_parse(parse, words, spans), phrases.under_one_root(), True)


def count_labels(sentences: Iterable[SentenceTrees]) -> LabelTable:
    """Count the labels in the trees of some sentences. Labels with the same count are in alphabetical order."""
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
    """Pack the trees of m sentences. Return the m dependency trees and the m phrase trees.

    The ids of words are their rows in `vocabulary`, and the ids of labels are their positions in `table`.
    """
    word_id = vocabulary.index
    relation_id, label_id = ({label: i for i, label in enumerate(part)} for part in (table.relations, table.phrases))
    dependency = []
    phrase = []
    for sentence in sentences:
        parse = sentence.parse
        tree = sentence.tree
        words = [word_id.get(word, len(vocabulary.terms)) for word in parse.words]
        relations = [relation_id.get(relation, len(relation_id)) for relation in parse.relations]
        labels = [label_id.get(label, len(label_id)) for label in tree.labels]
        dependency.append(list(zip(parse.heads, words, relations, strict=True)))
        words += [NOTHING] * (len(tree) - len(words))
        phrase.append(list(zip(tree.parents, words, labels, strict=True)))
    return pack(dependency), pack(phrase)
