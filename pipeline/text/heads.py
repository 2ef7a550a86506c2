"""Dependencies from phrase trees: the head word of each phrase, and relations derived from the categories.

For each category a short list says which child is the head, like the tables of Magerman and Collins, except that heads
are content words, as in Universal Dependencies: the verb phrase below an auxiliary, the noun phrase below a
preposition. Sentences that come with brackets only get their dependencies here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pipeline.text.brackets import PhraseTree
from pipeline.text.conllu import ROOT, ROOT_RELATION, UNSPECIFIED, Parse
from pipeline.text.tags import universal

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
"""Category -> patterns of its head child, best first. Other phrases: the last child that is neither punctuation nor a
conjunction."""

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
"""Patterns of the phrase and of the dependent in it, and their relation; the first match counts."""

JOINED = r"CC|CONJP"
CACHED_PAIRS = 1 << 14
"""Pairs of categories whose result is cached; a treebank has some thousand."""
NOUN_PHRASE = "NP"


@dataclass(frozen=True)
class NounPhrase:
    """The words `text`, separated by spaces, one of which is the `head`: `two men in shirts`, `men`."""

    text: str
    head: str


def list_noun_phrases(tree: PhraseTree) -> list[NounPhrase]:
    """The noun phrases in the sentence, in node order, which is that of models.neural.correspondence.noun_phrases.

    A phrase of all words but punctuation is the sentence itself, and is not listed.
    """
    tree = tree.under_one_root()
    first, last = tree.extents()
    words, heads = tree.words, head_words(tree)
    return [
        NounPhrase(" ".join(words[first[node] : last[node] + 1]), words[heads[node]])
        for node in range(len(words), len(tree))
        if tree.labels[node] == NOUN_PHRASE and tree.parents[node] >= 0
    ]


def head_words(tree: PhraseTree) -> list[int]:
    """The head word of every node; a leaf is its own head."""
    word_of = list(range(len(tree.words)))
    for phrase, children in list(enumerate(_children(tree)))[len(tree.words) :]:
        kinds = [tree.labels[child] for child in children]
        word_of.append(word_of[children[_head_child(tree.labels[phrase], kinds)]])
    return word_of


def derive_dependencies(tree: PhraseTree) -> Parse:
    """The dependency parse of a phrase tree."""
    m, children, word_of = len(tree.words), _children(tree), head_words(tree)
    heads, relations = [ROOT] * m, [ROOT_RELATION] * m
    for phrase in range(m, len(tree)):
        kinds = [tree.labels[child] for child in children[phrase]]
        chosen = [word_of[child] for child in children[phrase]].index(word_of[phrase])
        for place, child in enumerate(children[phrase]):
            if place != chosen:
                conjunct = _is_joined(kinds) and place > chosen and kinds[place][:2] == kinds[chosen][:2]
                heads[word_of[child]] = word_of[phrase]
                relations[word_of[child]] = "conj" if conjunct else _relation(tree.labels[phrase], kinds[place])
    tags = tree.labels[:m]
    return Parse(tree.words, tuple(map(universal, tags)), tags, tuple(heads), tuple(relations), (True,) * m)


def _children(tree: PhraseTree) -> list[list[int]]:
    """The children of every node, in word order."""
    children: list[list[int]] = [[] for _ in tree.labels]
    first, _ = tree.extents()
    for node in sorted(range(len(tree)), key=first.__getitem__):
        if tree.parents[node] != ROOT:
            children[tree.parents[node]].append(node)
    return children


def _head_child(kind: str, kinds: Sequence[str]) -> int:
    """The position of the head among children of these `kinds`: the last match, or the first in a coordination."""
    order = range(len(kinds)) if _is_joined(kinds) else range(len(kinds) - 1, -1, -1)
    for pattern in HEADS.get(kind, ()):
        for place in order:
            if _fits(pattern, kinds[place]):
                return place
    return next((place for place in order if universal(kinds[place]) not in ("PUNCT", "CCONJ")), 0)


@lru_cache(maxsize=CACHED_PAIRS)
def _relation(kind: str, dependent: str) -> str:
    fitting = (relation for phrase, inside, relation in RELATIONS if _fits(phrase, kind) and _fits(inside, dependent))
    return next(fitting, UNSPECIFIED)


def _is_joined(kinds: Sequence[str]) -> bool:
    return any(_fits(JOINED, other) for other in kinds[1:-1])


@lru_cache(maxsize=CACHED_PAIRS)
def _fits(pattern: str, kind: str) -> bool:
    return re.fullmatch(pattern, kind) is not None
