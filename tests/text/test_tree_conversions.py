"""Tests of tree conversions on a known sentence, on random trees, and on the sample of the Penn Treebank."""

import random
import zipfile
from collections.abc import Iterable
from pathlib import Path

from pipeline.text.dependencies import Parse, projective_heads, tree_fault
from pipeline.text.phrase_trees import PhraseTree, read_brackets
from pipeline.text.tree_conversions import derive_dependencies, derive_phrases


def parse(*rows: tuple[str, str, str, int, str]) -> Parse:
    """Return a parse from (word, upos, xpos, head, relation) of each word. Heads are numbered from 1, and 0 is the
    root."""
    words, upos, xpos, heads, relations = zip(*rows, strict=True)
    return Parse(words, upos, xpos, tuple(head - 1 for head in heads), relations, (True,) * len(rows))


SENTENCE = parse(
    ("a", "DET", "DT", 3, "det"),
    ("small", "ADJ", "JJ", 3, "amod"),
    ("dog", "NOUN", "NN", 8, "nsubj"),
    ("with", "ADP", "IN", 6, "case"),
    ("a", "DET", "DT", 6, "det"),
    ("ball", "NOUN", "NN", 3, "nmod"),
    ("is", "AUX", "VBZ", 8, "aux"),
    ("chasing", "VERB", "VBG", 0, "root"),
    ("cats", "NOUN", "NNS", 8, "obj"),
    ("and", "CCONJ", "CC", 11, "cc"),
    ("birds", "NOUN", "NNS", 9, "conj"),
    (".", "PUNCT", ".", 8, "punct"),
)
PHRASES = (
    "(S (NP (NP (DT a) (JJ small) (NN dog)) (PP (IN with) (NP (DT a) (NN ball))))"
    " (VP (VBZ is) (VBG chasing) (NP (NNS cats) (CC and) (NNS birds))) (. .))"
)


def noun_phrases(trees: Iterable[PhraseTree]) -> set[tuple[int, int, int]]:
    return {
        (number, start, stop)
        for number, tree in enumerate(trees)
        for label, start, stop in tree.spans()
        if label == "NP"
    }


def agreement(found: Iterable[PhraseTree], gold: Iterable[PhraseTree]) -> tuple[float, float]:
    """Return the precision and the recall of noun phrases, compared as spans."""
    ours = noun_phrases(found)
    theirs = noun_phrases(gold)
    return len(ours & theirs) / len(ours), len(ours & theirs) / len(theirs)


def test_a_known_dependency_tree_is_converted_to_its_phrases() -> None:
    assert derive_phrases(SENTENCE).to_brackets() == PHRASES


def test_crossing_arcs_are_lifted_until_none_cross() -> None:
    chance = random.Random(1)
    crossed = 0
    for _ in range(300):
        heads = random_heads(chance, chance.randrange(1, 9))
        lifted = projective_heads(heads)
        assert tree_fault(lifted) is None and _is_projective(lifted)
        crossed += lifted != heads
        assert (lifted == heads) == _is_projective(heads)
    assert 0 < crossed < 300


def test_phrases_of_any_dependency_tree_have_its_words_as_leaves() -> None:
    chance = random.Random(2)
    tags = ["NOUN", "VERB", "ADJ", "ADP", "PUNCT", "_"]
    relations = ["nsubj", "det", "conj", "cc", "case", "punct", "odd:one"]
    for _ in range(300):
        n = chance.randrange(1, 9)
        columns = [tuple(chance.choices(names, k=n)) for names in (tags, relations)]
        sentence = Parse(
            tuple(map(str, range(n))), columns[0], ("_",) * n, tuple(random_heads(chance, n)), columns[1], (True,) * n
        )
        tree = derive_phrases(sentence)
        ((_, again),) = read_brackets([tree.to_brackets()], "f")
        assert again.words == sentence.words and sorted(again.spans()) == sorted(tree.spans())
        assert all(parent > max(node, n - 1) for node, parent in enumerate(tree.parents[:-1]))


def random_heads(chance: random.Random, n: int) -> list[int]:
    order = chance.sample(range(n), n)
    heads = [-1] * n
    for place in range(1, n):
        heads[order[place]] = order[chance.randrange(place)]
    return heads


def _is_projective(heads: list[int]) -> bool:
    """Return whether no two arcs cross, including the arc from outside to the root."""
    arcs = [tuple(sorted((word, head))) for word, head in enumerate(heads)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)


def test_noun_phrases_of_the_penn_sample_survive_conversion_to_dependencies_and_back(real_data: Path) -> None:
    """Trees of the treebank are converted to dependencies by the head rules, and the dependencies are converted back to
    phrases."""
    trees = []
    with zipfile.ZipFile(real_data / "treebanks/ptb_sample.zip") as archive:
        for name in sorted(archive.namelist())[:60]:
            if name.endswith(".mrg"):
                trees += [tree for _, tree in read_brackets(archive.read(name).decode().split("\n"), name)]
    parses = [derive_dependencies(tree) for tree in trees]
    assert len(trees) > 500 and all(tree_fault(parse.heads) is None for parse in parses)
    precision, recall = agreement(map(derive_phrases, parses), trees)
    assert precision > 0.8 and recall > 0.78
