"""Phrase trees, and their text format, the brackets of the Penn Treebank: (S (NP (DT a) (NN dog)) (VP (VBZ runs)))."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.errors import InputError

UNKNOWN = "X"
PENN_TAGS = {
    "ADJ": "AFX JJ JJR JJS",
    "ADP": "IN RP",
    "ADV": "RB RBR RBS WRB",
    "AUX": "MD",
    "CCONJ": "CC",
    "DET": "DT PDT",
    "INTJ": "UH",
    "NOUN": "NN NNS",
    "NUM": "CD",
    "PART": "POS TO",
    "PRON": "EX PRP PRP$ WDT WP WP$",
    "PROPN": "ADD NNP NNPS",
    "PUNCT": ". , : `` '' -LRB- -RRB- HYPH NFP",
    "SYM": "$ # SYM",
    "VERB": "VB VBD VBG VBN VBP VBZ",
    UNKNOWN: "FW GW LS",
}
PENN_TO_UNIVERSAL = {penn: tag for tag, group in PENN_TAGS.items() for penn in group.split()}


def universal(tag: str) -> str:
    """Return the universal part of speech for a tag of the Penn Treebank, or X for any other tag."""
    return PENN_TO_UNIVERSAL.get(tag, UNKNOWN)


TOKEN = re.compile(r"[()]|[^\s()]+")
TRACE = "-NONE-"
"""Tag of an empty leaf. Empty leaves, and phrases that contain only empty leaves, are dropped."""
TOP = "TOP"
"""Label for brackets that have no label of their own and contain several words or phrases."""
FRAGMENT = "FRAG"
"""Label of a phrase that is added to connect several roots, and of the phrases in a substitute for a missing tree."""
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Escape -> bracket, for the brackets in the words of the Penn Treebank."""


@dataclass(frozen=True)
class PhraseTree:
    """The phrase tree of a sentence of m words.

    The first m nodes are the leaves, one per word, and the others are the phrases, each after the phrases that it
    contains. `labels` has the part of speech of each leaf and the category of each phrase. `parents` has the number of
    each node's parent, or -1 for the root.
    """

    words: tuple[str, ...]
    labels: tuple[str, ...]
    parents: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def spans(self) -> list[tuple[str, int, int]]:
        """Return (label, first word, last word + 1) for every phrase. Words are numbered from 0."""
        first, last = self.extents()
        return [(self.labels[node], first[node], last[node] + 1) for node in range(len(self.words), len(self))]

    def extents(self) -> tuple[list[int], list[int]]:
        """Return two lists, which have the number of the first word and the number of the last word of every node."""
        m = len(self.words)
        first = list(range(m)) + [m] * (len(self) - m)
        last = list(range(m)) + [-1] * (len(self) - m)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                first[parent], last[parent] = min(first[parent], first[node]), max(last[parent], last[node])
        return first, last

    def to_brackets(self) -> str:
        """Return the tree in brackets on one line, or an empty text if it has no words."""
        first, last = self.extents()
        opening: list[str] = [""] * len(self.words)
        closing = [0] * len(self.words)
        for node in range(len(self) - 1, len(self.words) - 1, -1):  # An outer phrase comes before its parts.
            opening[first[node]] += f"({self.labels[node]} "
            closing[last[node]] += 1
        leaves = zip(opening, map(_escape, self.labels), map(_escape, self.words), closing, strict=False)
        return " ".join(f"{opened}({tag} {word}){')' * closed}" for opened, tag, word, closed in leaves)

    def with_leaves(self, words: Sequence[str], sources: Sequence[int]) -> "PhraseTree":
        """Return this tree over other words. Leaf i has the word `words[i]`, and takes the tag and the place of the old
        leaf `sources[i]`.

        `sources` must be ascending, and may repeat a leaf. Leaves that are not in `sources` are dropped, and so are
        phrases without any remaining leaf.
        """
        m = len(self.words)
        n = len(words)
        used = [False] * len(self)
        for source in sources:
            used[source] = True
        for node, parent in enumerate(self.parents):
            used[parent] |= used[node] and parent >= 0
        kept = [node for node in range(m, len(self)) if used[node]]
        rows = {node: n + row for row, node in enumerate(kept)}
        labels = [*(self.labels[source] for source in sources), *(self.labels[node] for node in kept)]
        parents = [rows.get(self.parents[node], -1) for node in (*sources, *kept)]
        return rooted(words, labels, parents)

    def under_one_root(self) -> "PhraseTree":
        """Return the tree in which all phrases that cover the whole sentence are merged into one root.

        A phrase covers the sentence if it has all words except punctuation. `(ROOT (S (NP (NP a dog) (PP ...)) (. .)))`
        becomes `(NP (NP a dog) (PP ...) (. .))`. The root takes the label of the innermost merged phrase. A tree
        without such phrases, or with a single one, is returned unchanged.
        """
        m = len(self.words)
        words = [not is_punctuation(label) for label in self.labels[:m]]
        # `held` becomes the number of words at each node and below it. Punctuation counts only if the sentence has
        # nothing else.
        held = [int(is_word or not any(words)) for is_word in words] + [0] * (len(self) - m)
        for node, parent in enumerate(self.parents):  # Children come before their parents.
            if parent >= 0:
                held[parent] += held[node]
        whole = [node for node in range(m, len(self)) if held[node] == max(held)]
        if len(whole) < 2:
            return self
        rows = {node: row for row, node in enumerate(n for n in range(len(self)) if n not in whole[:-1])}
        rows |= dict.fromkeys(whole, len(rows) - 1)
        kept = [node for node in range(len(self)) if node not in whole]
        labels = [*(self.labels[node] for node in kept), self.labels[whole[0]]]
        return PhraseTree(self.words, tuple(labels), (*(rows[self.parents[node]] for node in kept), -1))


def rooted(words: Sequence[str], labels: list[str], parents: list[int]) -> PhraseTree:
    """Return the phrase tree of nodes with these labels and parents (-1 for a root). The leaves `words` come first, in
    word order. Several roots get a common parent, FRAGMENT, and `parents` is then changed in place."""
    roots = [node for node, parent in enumerate(parents) if parent < 0]
    if len(roots) > 1:
        for root in roots:
            parents[root] = len(labels)
        labels = [*labels, FRAGMENT]
        parents = [*parents, -1]
    return PhraseTree(tuple(words), tuple(labels), tuple(parents))


def is_punctuation(tag: str) -> bool:
    """Return whether a part of speech, of the Penn Treebank or universal, is punctuation.

    An unknown tag without letters and digits counts as punctuation.
    """
    return tag == "PUNCT" or universal(tag) == "PUNCT" or not (tag in PENN_TO_UNIVERSAL or any(map(str.isalnum, tag)))


def right_branching(words: Sequence[str]) -> PhraseTree:
    """Return a substitute for a missing tree: (FRAG w1 (FRAG w2 (FRAG w3 w4))). All parts of speech are X. A single
    word is a tree without phrases."""
    n = len(words)
    inner = max(n - 1, 0)  # Node n + k is the phrase of the last k + 2 words.
    parents = [n + max(inner - 1 - word, 0) for word in range(n)] if inner else [-1] * n
    parents += [n + k + 1 for k in range(inner - 1)] + [-1] * (inner > 0)
    return PhraseTree(tuple(words), ("X",) * n + (FRAGMENT,) * inner, tuple(parents))


def _escape(word: str) -> str:
    return re.sub(r"\s", "_", word).replace("(", "-LRB-").replace(")", "-RRB-")


def read_brackets(lines: Iterable[str], name: str) -> Iterator[tuple[str | None, PhraseTree]]:
    """Read the trees in the `lines` of a file of brackets. `name` is the name of the file for messages.

    Yield each tree with its id, or with None if it has no id. An id precedes the tree on the same line: `id TAB (S
    ...)`. An id without a following tree has an empty tree. A tree may span several lines, as in the files of the
    Penn Treebank, and can have any depth. Labels are reduced to the category (NP-SBJ-1 becomes NP). Brackets without a
    label are dropped if they contain a single word or phrase, and otherwise get the label TOP. Raises InputError, with
    the file and the line, for a missing or extra bracket, for text outside brackets, and for brackets that contain
    neither a tag and a word nor a label and phrases.
    """
    identity = None
    tokens = []
    depth = 0
    first_line = 0
    for number, line in enumerate(lines, start=1):
        if not depth and line.strip() and not line.lstrip().startswith("("):
            identity, tab, line = line.rstrip("\r\n").partition("\t")
            if not tab:
                raise InputError(
                    f"{name}, line {number}: the line is neither a tree nor an id, a tab and a tree. Correct the line."
                )
            if not line.strip():
                yield identity, PhraseTree((), (), ())
                identity = None
        for token in TOKEN.findall(line):
            if not depth:
                first_line = number
                if token != "(":
                    raise InputError(f"{name}, line {number}: {token!r} is outside a tree. Correct the brackets.")
            depth += {"(": 1, ")": -1}.get(token, 0)
            tokens.append(token)
            if not depth:
                yield identity, _read_tree(tokens, f"{name}, line {number}")
                identity = None
                tokens = []
    if depth:
        raise InputError(f"{name}, line {first_line}: {depth} brackets of the tree are not closed. Close the brackets.")


def _read_tree(tokens: Sequence[str], where: str) -> PhraseTree:
    """Build a tree from its tokens, whose brackets are balanced. `where` is the file and line for messages.

    A stack replaces recursion, since trees can be deep. The stack has an entry for each open bracket: its texts (a
    label and perhaps a word) and its nodes. A node is the number of a word, ~p for phrase p, or None for an empty leaf.
    """
    words: list[str] = []
    tags: list[str] = []
    phrases: list[tuple[str, list[int]]] = []
    stack: list[tuple[list[str], list[int | None]]] = [([], [])]
    for token in tokens:
        texts, nodes = stack[-1]
        if token == "(":
            stack.append(([], []))
        elif token != ")":
            texts.append(token)
        else:
            stack.pop()
            if len(texts) > 2 or (len(texts) == 2) == bool(nodes):
                content = " ".join(texts) or "nothing"
                raise InputError(
                    f"{where}: brackets contain {content}, but must contain a tag and a word, or a label and phrases."
                    " Correct the brackets."
                )
            above = stack[-1][1]
            children = [node for node in nodes if node is not None]
            if len(texts) == 2 and texts[0] != TRACE:
                above.append(len(words))
                words.append(ESCAPES.get(texts[1], texts[1]).replace("\\/", "/"))
                tags.append(texts[0])
            elif children and (texts or len(children) > 1):
                above.append(~len(phrases))
                category = re.split(r"[-=|]", texts[0], maxsplit=1)[0] or texts[0] if texts else TOP
                phrases.append((category, children))
            else:
                above += children or [None]
    return assemble(words, tags, phrases)


def assemble(words: Sequence[str], tags: Sequence[str], phrases: Sequence[tuple[str, Sequence[int]]]) -> PhraseTree:
    """Build the tree of `words`, their `tags`, and `phrases`. A phrase is (label, children), and comes after the
    phrases that it contains. Several roots get a common parent, FRAGMENT.

    A child is the number of a word, or ~p, which is -1 - p, for phrase p.
    """
    m = len(words)
    parents = [-1] * (m + len(phrases))
    for number, (_, children) in enumerate(phrases):
        for child in children:
            parents[child if child >= 0 else m + ~child] = m + number
    return rooted(words, [*tags, *(label for label, _ in phrases)], parents)
