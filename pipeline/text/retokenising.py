"""Trees over a parser's words, moved to our words.

Parsers split `don't` in two and keep punctuation; our tokens may do neither. Two tokenisations of a sentence match if
their letters and digits are the same, ignoring case and everything in between.
"""

from collections.abc import Sequence

from pipeline.text.brackets import PhraseTree
from pipeline.text.conllu import ROOT, ROOT_RELATION, Parse, depths
from pipeline.text.tokens import normalise_text

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
    return Parse(*map(tuple, (ours, upos, xpos, heads, relations)), (True,) * len(ours))


def project_phrases(tree: PhraseTree, ours: Sequence[str], spans: Spans) -> PhraseTree:
    """The phrases over `ours`: each replaces the first of the parser's words that share letters with it."""
    return tree.with_leaves(ours, [first for first, _ in spans])
