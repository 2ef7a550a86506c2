"""Converts dependency trees to phrase trees, and phrase trees to dependency trees.

**Dependencies to phrases.** A word with dependents becomes the head of a phrase. A noun or pronoun without dependents
is a phrase too, unless it is part of a name or compound. The dependents of a head belong to layers. Each layer that has
a dependent adds a phrase around the head, from the inside out:

* BASE: determiners, adjectives, numbers, compounds and possessors, as in `a small dog`. Label NP, ADJP, ADVP, ...
* MODIFIED: phrases and clauses after the head, as in `a dog | with a ball`. The label is the same as for BASE.
* JOINED: conjuncts, as in `a dog | and | a cat`. The label is the same as for BASE. Two nouns without dependents share
  one phrase: `dogs and cats`.
* PREDICATE: auxiliaries, objects and adjuncts of a verb, or of a noun or adjective with a copula or subject. Label VP.
* CLAUSE: subjects, words before the subject, and words at the end, as in `a dog | runs on the grass | .`. Label S.
* MARKED: a preposition or a conjunction, as in `on | the grass` and `while | a dog runs`. Label PP or SBAR.
* OUTSIDE: a coordinating conjunction or punctuation at the edge, which becomes part of the enclosing phrase.

On each side of the head, the layer of a dependent is at least the layer of every dependent that is nearer to the head.
The tree is made projective first. The relations are the relations of Universal Dependencies, and unknown relations
count as adjuncts. A sentence for which a parser gives only dependencies gets its phrases in this way.

**Phrases to dependencies.** The table HEADS lists for each category which child is the head, like the tables of
Magerman and Collins. But heads are content words, as in Universal Dependencies: the verb phrase below an auxiliary, and
the noun phrase below a preposition. A sentence for which a parser gives only brackets gets its dependencies in this
way.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from pipeline.text.dependencies import ROOT, ROOT_RELATION, UNSPECIFIED, Parse, chain, depths, projective_heads
from pipeline.text.phrase_trees import UNKNOWN, PhraseTree, assemble, right_branching, universal


class Layer(IntEnum):
    """The layer of a dependent around its head, from the inside out. The module docstring describes the layers."""

    BASE = 0
    MODIFIED = 1
    JOINED = 2
    PREDICATE = 3
    CLAUSE = 4
    MARKED = 5
    OUTSIDE = 6


NOMINAL = frozenset({"NOUN", "PROPN", "PRON"})
VERBAL = frozenset({"VERB", "AUX"})
PHRASE_LABELS = {
    **dict.fromkeys(NOMINAL, "NP"),
    **dict.fromkeys(VERBAL, "VP"),
    "ADJ": "ADJP",
    "ADV": "ADVP",
    "NUM": "QP",
    "ADP": "PP",
    "INTJ": "INTJ",
}
"""The label of the innermost phrase of a head, by its universal part of speech."""
OTHER = "X"
"""The label of a phrase whose head has a part of speech that PHRASE_LABELS lacks, and of a phrase that joins several
phrases without a common head."""
SUBJECTS = frozenset({"nsubj", "csubj", "expl"})
BETWEEN = frozenset({"punct", "cc"})
"""Relations of punctuation and conjunctions. These dependents have no layer of their own. On each side of the head,
they get the layer of the next dependent towards the head, or BASE if there is none. If no other dependent is further
outside, they get OUTSIDE."""
CLAUSAL = SUBJECTS | {"cop", "aux"}
"""Relations of dependents that make their head the head of a clause, whatever part of speech the head is."""
NOUN_LAYERS = {
    **dict.fromkeys(
        ["det", "amod", "nummod", "compound", "flat", "fixed", "goeswith", "advmod", "nmod:poss"], Layer.BASE
    ),
    **dict.fromkeys(["nmod", "acl", "appos", "obl", "obj", "advcl", "ccomp", "xcomp", "list", "dep"], Layer.MODIFIED),
    "conj": Layer.JOINED,
}
"""The layer of a dependent of a noun, or of another head that is not a verb, by its relation. The relation with its
subtype, such as nmod:poss, is looked up first, then the relation without subtype."""
CLAUSE_LAYERS = {
    **dict.fromkeys(["aux", "cop", "obj", "iobj", "obl", "xcomp", "ccomp", "advcl", "advmod", "conj"], Layer.PREDICATE),
    **dict.fromkeys([*SUBJECTS, "discourse", "vocative", "parataxis", "dislocated"], Layer.CLAUSE),
    "mark": Layer.MARKED,
    "case": Layer.MARKED,
}
"""The layer of a dependent of a verb or of another predicate, by its relation."""
WITHIN = frozenset({"compound", "flat", "fixed", "goeswith", "nummod", "amod", "det", "cc", "case", "mark", "punct"})
"""Relations of a word to its head. A noun or pronoun that has one of these relations and no dependents does not form a
phrase of its own."""
EMPTY = "no words"
"""The value of `Parsed.fallback` for a text without words, or without letters and digits."""


@dataclass(frozen=True)
class Parsed:
    """The dependency tree and the phrase tree of a sentence, over the same words.

    `fallback` is None if the trees are real. Otherwise `fallback` says why real trees are missing, and the trees are
    the substitutes that `fall_back` returns.
    """

    parse: Parse
    tree: PhraseTree
    fallback: str | None


def fall_back(text: str, reason: str) -> Parsed:
    """Return substitutes for missing trees over the space-separated words of `text`.

    In the dependency tree, each word is the head of the next word. The phrase tree is right-branching. `reason` says
    why the trees are missing, and becomes `fallback` of the result.
    """
    words = text.split()
    return Parsed(chain(words), right_branching(words), reason)


def derive_phrases(parse: Parse) -> PhraseTree:
    """Derive the phrase tree of a dependency parse by the layers that the module docstring describes."""
    return _Derivation(parse).tree()


class _Derivation:
    """The builder of the phrase tree of a parse. It builds phrases from the deepest words of the dependency tree
    upwards."""

    def __init__(self, parse: Parse) -> None:
        self.parse = parse
        self.upos = [
            tag if tag not in ("_", UNKNOWN) else universal(x) for tag, x in zip(parse.upos, parse.xpos, strict=True)
        ]
        self.plain = [relation.partition(":")[0] for relation in parse.relations]
        self.heads = projective_heads(parse.heads)
        self.dependents: list[list[int]] = [[] for _ in parse.heads]
        for word, head in enumerate(self.heads):
            if head != ROOT:
                self.dependents[head].append(word)
        self.phrases: list[tuple[str, list[int]]] = []

    def tree(self) -> PhraseTree:
        built: list[list[int]] = [[]] * len(self.parse)
        for word in sorted(range(len(self.parse)), key=depths(self.heads).__getitem__, reverse=True):
            built[word] = self._around(word, built)
        if self.parse.words:
            self._gather(built[self.heads.index(ROOT)])
        tags = [x if x != "_" else u for x, u in zip(self.parse.xpos, self.parse.upos, strict=True)]
        return assemble(self.parse.words, tags, self.phrases)

    def _gather(self, nodes: list[int]) -> None:
        """Join `nodes` to one phrase. Together, the nodes have all words of the sentence.

        A single node is not changed. If there are several nodes, and one of them is the phrase that was made last, the
        other nodes are moved into this phrase. Otherwise several nodes become a new phrase with the label OTHER.
        """
        outermost = ~(len(self.phrases) - 1)
        if len(nodes) > 1 and self.phrases and outermost in nodes:
            position, (label, children) = nodes.index(outermost), self.phrases[-1]
            self.phrases[-1] = (label, [*nodes[:position], *children, *nodes[position + 1 :]])
        elif len(nodes) > 1:
            self.phrases.append((OTHER, nodes))

    def _around(self, word: int, built: list[list[int]]) -> list[int]:
        """Build the phrases around `word`. `built[d]` has the result of this method for each dependent d.

        Return a list of the outermost phrase and of the nodes next to it that belong into a larger phrase. A node is
        the number of a word, or ~p, which is -1 - p, for phrase p.
        """
        before = [d for d in reversed(self.dependents[word]) if d < word]
        after = [d for d in self.dependents[word] if d > word]
        left = self._layers(word, before)
        right = self._layers(word, after)
        nodes = [word]
        bare = True
        for layer in sorted({*left.values(), *right.values()}):
            first = [node for d in reversed(before) if left[d] == layer for node in built[d]]
            rest = [node for d in after if right[d] == layer for node in built[d]]
            if bare and self._begins(word, layer, before + after):
                nodes = self._phrase(self._label(word), nodes)
            nodes = [*first, *nodes, *rest]
            bare = False
            if layer < Layer.OUTSIDE:
                nodes = self._phrase(self._layer_label(word, layer, left, right), nodes)
        if bare and self._is_phrase(word) and not self._bare_conjunct(word):
            nodes = self._phrase(self._label(word), nodes)
        return nodes

    def _phrase(self, label: str, nodes: list[int]) -> list[int]:
        self.phrases.append((label, nodes))
        return [~(len(self.phrases) - 1)]

    def _layers(self, word: int, side: list[int]) -> dict[int, Layer]:
        """Return the layer of each dependent on one side of `word`. `side` lists these dependents from the nearest
        outwards."""
        layers: dict[int, Layer] = {}
        edge = len(side)
        while edge and self.plain[side[edge - 1]] in BETWEEN:
            edge -= 1
        least = Layer.BASE
        for position, dependent in enumerate(side):
            layer = self._own_layer(word, dependent) if position < edge else Layer.OUTSIDE
            least = layers[dependent] = max(layer, least)
        return layers

    def _own_layer(self, word: int, dependent: int) -> Layer:
        relation = self.parse.relations[dependent]
        plain = self.plain[dependent]
        if plain in BETWEEN:
            return Layer.BASE
        clausal = any(self.plain[d] in CLAUSAL for d in self.dependents[word])
        if plain == "case":
            return Layer.MARKED if dependent < word else Layer.BASE
        if plain == "mark" and self.parse.xpos[dependent] == "TO":
            return Layer.PREDICATE
        if self.upos[word] in VERBAL:
            return CLAUSE_LAYERS.get(plain, Layer.PREDICATE)
        nominal = NOUN_LAYERS.get(relation, NOUN_LAYERS.get(plain))
        if plain in CLAUSE_LAYERS and (clausal and plain != "conj" or nominal is None):
            return CLAUSE_LAYERS[plain]
        if self.upos[word] not in NOMINAL:
            return Layer.BASE if nominal in (None, Layer.MODIFIED) else nominal
        return Layer.MODIFIED if nominal is None else nominal

    def _is_phrase(self, word: int) -> bool:
        """Return whether `word` may be a noun phrase alone: a noun or pronoun whose relation to its head is not in
        WITHIN, and which is not a possessive pronoun."""
        relation = self.parse.relations[word]
        possessive = relation == "nmod:poss" and self.upos[word] == "PRON"
        return self.upos[word] in NOMINAL and self.plain[word] not in WITHIN and not possessive

    def _begins(self, word: int, layer: Layer, dependents: Sequence[int]) -> bool:
        """Return whether `word` becomes a phrase of its own before the phrase of `layer` is built around it. `layer` is
        the innermost layer of all `dependents` of `word`."""
        if self.upos[word] in VERBAL:
            return layer > Layer.PREDICATE
        joined = [d for d in dependents if self.plain[d] == "conj"]
        together = layer == Layer.JOINED and all(map(self._bare_conjunct, joined))
        return layer > Layer.BASE and self._is_phrase(word) and not together and not self._bare_conjunct(word)

    def _bare_conjunct(self, word: int) -> bool:
        """Return whether `word` is a conjunct that shares a phrase with its head, as in `dogs and cats`.

        This is so if `word` has no dependents and its head is a noun or pronoun whose dependents are all in the layer
        JOINED or in outer layers. Punctuation and coordinating conjunctions do not count as dependents.
        """
        head = self.heads[word]
        dependents = any(self.plain[d] not in BETWEEN for d in self.dependents[word])
        if head == ROOT or self.plain[word] != "conj" or dependents:
            return False
        layers = (self._own_layer(head, d) for d in self.dependents[head] if self.plain[d] not in BETWEEN)
        return self.upos[head] in NOMINAL and all(layer >= Layer.JOINED for layer in layers)

    def _label(self, word: int) -> str:
        return PHRASE_LABELS.get(self.upos[word], OTHER)

    def _layer_label(self, word: int, layer: Layer, left: dict[int, Layer], right: dict[int, Layer]) -> str:
        if layer == Layer.MARKED:
            markers = [d for d, own in (left | right).items() if own == layer]
            return "SBAR" if any(self.plain[d] == "mark" for d in markers) else "PP"
        if layer == Layer.CLAUSE:
            return "S"
        return "VP" if layer == Layer.PREDICATE else self._label(word)


NOUNS = r"NNS?|NNPS?|NML|NX"
HEADS: dict[str, tuple[str, ...]] = {
    "NP": (NOUNS, "POS", "NP", r"PRP|WP|EX|DT|CD|QP|JJ.?|VBG|ADJP"),
    "NML": (NOUNS, "JJ.?"),
    "NX": (NOUNS,),
    "WHNP": (NOUNS, "WP|WDT|NP|WHNP"),
    "PP": ("NP|S|SBAR|WHNP|PP|ADJP|ADVP|NNS?|NNPS?", "IN|TO|RP"),
    "WHPP": ("WHNP|NP",),
    "VP": ("VP", "VB.?", "ADJP|NP|PP|ADVP", "MD"),
    "S": ("VP", "S|SINV|SQ", "ADJP|PP|ADVP", "NP"),
    "SINV": ("VP", "VB.?|MD"),
    "SQ": ("VP", "ADJP|NP", "VB.?|MD"),
    "SBAR": ("S|SINV|SQ|SBAR", "VP"),
    "SBARQ": ("SQ|S|SINV",),
    "ADJP": ("JJ.?|VBN|VBG", "ADJP|NN.?|CD"),
    "ADVP": ("RB.?|WRB", "ADVP|IN|RP|JJ"),
    "QP": ("CD", r"\$|NN.?"),
}
"""Label of a phrase -> patterns for the label of the child that is the head of the phrase, the best pattern first. If
no pattern matches, the head is the last child (in a coordination, the first child) that is neither punctuation nor a
conjunction. If there is no such child, the head is the first child."""

CLAUSE = r"S|SINV|SQ|SBAR|SBARQ|TOP"
RELATIONS: tuple[tuple[str, str, str], ...] = (
    (r".*", r"[.,:]|``|''|-LRB-|-RRB-|HYPH", "punct"),
    (r".*", r"CC|CONJP", "cc"),
    (r"NP|WHNP|NML|NX", r"DT|PDT|WDT", "det"),
    (r"NP|WHNP|NML|NX", r"PRP\$|WP\$", "nmod:poss"),
    (r"NP", r"POS", "case"),
    (r"NP|WHNP|NML|NX|QP", r"CD|QP|\$", "nummod"),
    (r"NP|WHNP|NML|NX", r"JJ.?|ADJP|VBG|VBN|UCP", "amod"),
    (r"NP|WHNP|NML|NX", r"NN.*|NML|NX", "compound"),
    (r"NP|WHNP|NML|NX", r"PP|WHPP", "nmod"),
    (r"NP|WHNP|NML|NX", r"VP|S|SBAR|SBARQ|SINV|RRC", "acl"),
    (r"NP|WHNP", r"NP", "appos"),
    (r"PP|WHPP", r"IN|TO|RP|PP|ADVP|VBG", "case"),
    (r"VP|SQ|SINV", r"MD|VB.?|TO", "aux"),
    (r"VP|SQ|SINV", r"RP|PRT", "compound:prt"),
    (r"VP", r"NP|WHNP", "obj"),
    (CLAUSE, r"NP|EX", "nsubj"),
    (CLAUSE, r"IN|TO|WHADVP|WHPP|WHNP", "mark"),
    (r"VP|" + CLAUSE, r"PP|WHPP", "obl"),
    (r"VP|" + CLAUSE, r"S|SBAR|SINV|SQ|VP|SBARQ", "advcl"),
    (r".*", r"RB.?|ADVP|WRB|WHADVP|PRT|RP", "advmod"),
)
"""Triples of a pattern for the label of a phrase, a pattern for the label of a child that is not the head of the
phrase, and the relation of this child to the head. The first triple whose patterns match counts. If none matches, the
relation is UNSPECIFIED."""

JOINED = r"CC|CONJP"
CACHED_PAIRS = 1 << 14
"""Maximum number of results that `_relation` keeps, and that `_fits` keeps. There is one result for each pair of
arguments. A treebank has some thousand pairs."""
NOUN_PHRASE = "NP"


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase with its head word, such as `two men in shirts` with the head `men`. Spaces separate the words."""

    text: str
    head: str


def list_noun_phrases(tree: PhraseTree) -> list[NounPhrase]:
    """List the noun phrases of a sentence, in the order of their nodes.

    The function `pipeline.models.neural.hmlstm.noun_phrases` lists them in the same order. A phrase that has all words
    except punctuation is the sentence itself and is not listed.
    """
    tree = tree.under_one_root()
    first, last = tree.extents()
    words = tree.words
    heads = head_words(tree)
    return [
        NounPhrase(" ".join(words[first[node] : last[node] + 1]), words[heads[node]])
        for node in range(len(words), len(tree))
        if tree.labels[node] == NOUN_PHRASE and tree.parents[node] >= 0
    ]


def head_words(tree: PhraseTree) -> list[int]:
    """Return the number of the head word of every node. A leaf is its own head."""
    word_of = list(range(len(tree.words)))
    for phrase, children in list(enumerate(_children(tree)))[len(tree.words) :]:
        kinds = [tree.labels[child] for child in children]
        word_of.append(word_of[children[_head_child(tree.labels[phrase], kinds)]])
    return word_of


def derive_dependencies(tree: PhraseTree) -> Parse:
    """Derive the dependency parse of a phrase tree. HEADS decides the heads, and RELATIONS decides the relations."""
    m = len(tree.words)
    children = _children(tree)
    word_of = head_words(tree)
    heads = [ROOT] * m
    relations = [ROOT_RELATION] * m
    for phrase in range(m, len(tree)):
        kinds = [tree.labels[child] for child in children[phrase]]
        chosen = [word_of[child] for child in children[phrase]].index(word_of[phrase])
        for position, child in enumerate(children[phrase]):
            if position != chosen:
                conjunct = _is_joined(kinds) and position > chosen and kinds[position][:2] == kinds[chosen][:2]
                heads[word_of[child]] = word_of[phrase]
                relations[word_of[child]] = "conj" if conjunct else _relation(tree.labels[phrase], kinds[position])
    tags = tree.labels[:m]
    return Parse(tree.words, tuple(map(universal, tags)), tags, tuple(heads), tuple(relations), (True,) * m)


def _children(tree: PhraseTree) -> list[list[int]]:
    """Return the children of every node, in the order of their words."""
    children: list[list[int]] = [[] for _ in tree.labels]
    first, _ = tree.extents()
    for node in sorted(range(len(tree)), key=first.__getitem__):
        if tree.parents[node] != ROOT:
            children[tree.parents[node]].append(node)
    return children


def _head_child(kind: str, kinds: Sequence[str]) -> int:
    """Return the position of the head among the children of a phrase.

    `kind` is the label of the phrase and `kinds` are the labels of its children. The head is the last child that
    matches the best pattern in HEADS, or the first such child if the phrase is a coordination.
    """
    order = range(len(kinds)) if _is_joined(kinds) else range(len(kinds) - 1, -1, -1)
    for pattern in HEADS.get(kind, ()):
        for position in order:
            if _fits(pattern, kinds[position]):
                return position
    return next((position for position in order if universal(kinds[position]) not in ("PUNCT", "CCONJ")), 0)


@lru_cache(maxsize=CACHED_PAIRS)
def _relation(kind: str, dependent: str) -> str:
    fitting = (relation for phrase, inside, relation in RELATIONS if _fits(phrase, kind) and _fits(inside, dependent))
    return next(fitting, UNSPECIFIED)


def _is_joined(kinds: Sequence[str]) -> bool:
    return any(_fits(JOINED, other) for other in kinds[1:-1])


@lru_cache(maxsize=CACHED_PAIRS)
def _fits(pattern: str, kind: str) -> bool:
    return re.fullmatch(pattern, kind) is not None
