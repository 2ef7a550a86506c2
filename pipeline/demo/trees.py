"""Sentence trees: constituents that know their heads, so that one structure gives both kinds of tree."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

HEAD = "head"


@dataclass(frozen=True)
class Word:
    """A leaf. `upos`: Universal Dependencies' part of speech; `xpos`: the Penn Treebank's."""

    form: str
    lemma: str
    upos: str
    xpos: str


@dataclass(frozen=True)
class Phrase:
    """A constituent with a Penn label. `relations[i]` is child i's dependency on the child whose relation is HEAD.

    A phrase without a label groups words for the dependencies only; brackets show its children in its place.
    """

    label: str
    relations: tuple[str, ...]
    children: tuple["Phrase | Word", ...]


Node = Phrase | Word


def phrase(label: str, *parts: tuple[str, Node]) -> Phrase:
    """A phrase of (relation, child) pairs, exactly one of them the HEAD."""
    relations, children = zip(*parts, strict=True)
    return Phrase(label, relations, children)


def words(node: Node) -> Iterator[Word]:
    """The leaves from left to right."""
    if isinstance(node, Word):
        yield node
    else:
        for child in node.children:
            yield from words(child)


def capitalised(tree: Phrase) -> Phrase:
    """Write the first word of a tree with a capital."""
    first, *others = tree.children
    if isinstance(first, Word):
        capital = replace(first, form=first.form[0].upper() + first.form[1:])
    else:
        capital = capitalised(first)
    return replace(tree, children=(capital, *others))


def brackets(node: Node) -> str:
    """Penn style: `(NP (DT a) (NN dog))`."""
    if isinstance(node, Word):
        return f"({node.xpos} {node.form})"
    inside = " ".join(brackets(child) for child in node.children)
    return f"({node.label} {inside})" if node.label else inside


@dataclass(frozen=True)
class DemoSentence:
    """A sentence and its trees; tokens stand apart by single spaces in its text."""

    tree: Phrase

    @property
    def text(self) -> str:
        return " ".join(word.form for word in words(self.tree))

    @property
    def brackets(self) -> str:
        return brackets(self.tree)

    @property
    def conllu(self) -> str:
        """One line of ten columns for each word."""
        arcs: list[tuple[Word, int, str]] = []
        root = _attach(self.tree, arcs)
        arcs[root - 1] = (arcs[root - 1][0], 0, "root")
        rows = (
            (number, word.form, word.lemma, word.upos, word.xpos, "_", head, relation, "_", "_")
            for number, (word, head, relation) in enumerate(arcs, start=1)
        )
        return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def _attach(node: Node, arcs: list[tuple[Word, int, str]]) -> int:
    """Append (word, head, relation) for the words of `node`; returns its head's number, which is still unattached."""
    if isinstance(node, Word):
        arcs.append((node, 0, ""))
        return len(arcs)
    numbers = [_attach(child, arcs) for child in node.children]
    head = numbers[node.relations.index(HEAD)]
    for number, relation in zip(numbers, node.relations, strict=True):
        if relation != HEAD:
            arcs[number - 1] = (arcs[number - 1][0], head, relation)
    return head
