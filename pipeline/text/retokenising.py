"""A parser's words and ours: which are the same letters, and trees over ours in place of the parser's.

Parsers split `don't` in two and keep punctuation; our tokens may do neither. Two splittings of a sentence fit where
their letters and digits are the same one after another, whatever their case and what stands between.
"""

from collections.abc import Sequence

from pipeline.text.arcs import depths
from pipeline.text.brackets import PhraseTree
from pipeline.text.conllu import ROOT, ROOT_RELATION, Parse

INSIDE = "compound"
"""Relation between two of our words that are one word of the parser's; the last one is the head, as in compounds."""

Spans = list[tuple[int, int]]
"""For each of our words the first and the last of the parser's words that it shares letters with."""


def letters(word: str) -> str:
    """The letters and digits of a word, without their case."""
    return "".join(letter for letter in word.casefold() if letter.isalnum())


def align(theirs: Sequence[str], ours: Sequence[str]) -> Spans | None:
    """Where each of `ours` lies in `theirs`; None where their letters differ."""
    text = [letters(word) for word in theirs]
    owner = [number for number, word in enumerate(text) for _ in word]
    mine = [letters(word) for word in ours]
    if "".join(text) != "".join(mine) or not all(mine):
        return None
    spans, end = [], 0
    for word in mine:
        end += len(word)
        spans.append((owner[end - len(word)], owner[end - 1]))
    return spans


def project_parse(parse: Parse, ours: Sequence[str], spans: Spans) -> Parse:
    """The dependencies among `ours`. Words of the parser's without letters give their dependents to their heads.

    Of several words that are one of ours, the highest in the tree counts. Where no root is left, the first of the
    highest words is it, and the others depend on it.
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
    return Parse(*map(tuple, (ours, upos, xpos, heads, relations)), (True,) * len(ours))


def project_phrases(tree: PhraseTree, ours: Sequence[str], spans: Spans) -> PhraseTree:
    """The phrases over `ours`: each takes the place of the first of the parser's words that it shares letters with."""
    return tree.with_leaves(ours, [first for first, _ in spans])
