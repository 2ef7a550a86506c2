"""Tests of phrase trees: writing and reading brackets, spans compared with nltk, errors, and heads of noun phrases."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.errors import InputError
from pipeline.text.phrase_trees import PhraseTree, read_brackets, right_branching
from pipeline.text.tree_conversions import NounPhrase, list_noun_phrases

if TYPE_CHECKING:
    from nltk import Tree  # the import takes a second, and only these tests need nltk

TREE = "(S (NP (DT a) (NN dog)) (VP (VBZ runs) (ADVP (RB away))) (. .))"


def read(text: str) -> PhraseTree:
    ((_, tree),) = read_brackets(text.split("\n"), "f")
    return tree


def spans_of(tree: "Tree") -> list[tuple[str, int, int]]:
    """Return (label, number of the first word, number of the last word + 1) for each phrase in a tree of nltk, each
    phrase before the phrases that it contains."""
    spans = []
    for place in tree.treepositions():
        node = tree[place]
        if not isinstance(node, str) and node.height() > 2:
            before = [leaf for leaf in tree.treepositions("leaves") if leaf < place]
            spans.append((node.label(), len(before), len(before) + len(node.leaves())))
    return spans


def test_leaves_come_first_and_phrases_follow_their_parts() -> None:
    tree = read(TREE)
    assert tree.words == ("a", "dog", "runs", "away", ".")
    assert tree.labels == ("DT", "NN", "VBZ", "RB", ".", "NP", "ADVP", "VP", "S")
    assert tree.parents == (5, 5, 7, 6, 8, 8, 7, 8, -1)
    assert tree.to_brackets() == TREE
    (expected,) = _nltk_trees(TREE)
    assert sorted(tree.spans()) == sorted(spans_of(expected))


def test_the_format_of_the_penn_treebank_is_read() -> None:
    text = """
( (S (NP-SBJ-1 (-NONE- *) )
    (VP=2 (VB see)
      (NP (-LRB- -LRB-) (NN him\\/her) (-RRB- -RRB-) )) ))
"""
    assert read(text).to_brackets() == "(S (VP (VB see) (NP (-LRB- -LRB-) (NN him/her) (-RRB- -RRB-))))"
    assert read(text).words == ("see", "(", "him/her", ")")


def test_an_id_without_a_tree_is_not_the_id_of_the_next_tree() -> None:
    found = list(read_brackets(["a\t\n", "(NN dog)\n", "b\t(NN cat)\n"], "f"))
    assert [(identity, tree.words) for identity, tree in found] == [("a", ()), (None, ("dog",)), ("b", ("cat",))]


def test_ten_thousand_nested_brackets_are_read() -> None:
    deep = "(S " * 10_000 + "(NN x)" + ")" * 10_000
    assert read(deep).to_brackets() == deep
    with pytest.raises(InputError, match="f, line 1: 1 brackets of the tree are not closed"):
        read(deep[:-1])


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n(S (NN a)", 2),
        ("(S (NN a)))", 1),
        ("(S (NP))", 1),
        ("()", 1),
        ("(S (NN a b c))", 1),
        ("(S\n(NN a) b)", 2),
        ("(S (NN a (X b)))", 1),
        ("dogs run", 1),
    ],
)
def test_bad_brackets_are_named(text: str, line: int) -> None:
    with pytest.raises(InputError, match=f"^f, line {line}: "):
        list(read_brackets(text.split("\n"), "f"))


@pytest.mark.parametrize("n", range(6))
def test_right_branching(n: int) -> None:
    words = [f"w{k}" for k in range(n)]
    tree = right_branching(words)
    assert tree.words == tuple(words) and len(tree) == max(2 * n - 1, 0)
    assert {span[1:] for span in tree.spans()} == {(k, n) for k in range(n - 1)}
    if n:
        assert read(tree.to_brackets()) == tree


def test_trees_of_the_penn_sample_equal_those_of_nltk(real_data: Path) -> None:
    count = 0
    with zipfile.ZipFile(real_data / "treebanks/ptb_sample.zip") as archive:
        for name in sorted(archive.namelist())[::4]:
            if name.endswith(".mrg"):
                for _, tree in read_brackets(archive.read(name).decode().split("\n"), name):
                    assert read(tree.to_brackets()) == tree
                    count += 1
        name = "treebank/combined/wsj_0003.mrg"
        text = archive.read(name).decode()
    assert count > 800
    for (_, ours), theirs in zip(read_brackets(text.split("\n"), name), _nltk_trees(text), strict=True):
        assert list(ours.words) == [word for word, tag in theirs.pos() if tag != "-NONE-"]


def _nltk_trees(text: str) -> list["Tree"]:
    from nltk import Tree

    return list(Tree.fromstring(f"(ALL {text})", remove_empty_top_bracketing=True))


def test_the_head_of_a_noun_phrase_is_its_main_noun() -> None:
    men = "(NP (NP (CD two) (NNS men)) (PP (IN in) (NP (JJ blue) (NNS shirts))))"
    animals = "(NP (NP (DT a) (NN dog)) (CC and) (NP (DT a) (NN cat)))"
    text = f"(S {men} (VP (VBP see) {animals}))"
    assert list_noun_phrases(read(text)) == [
        NounPhrase("two men", "men"),
        NounPhrase("blue shirts", "shirts"),
        NounPhrase("two men in blue shirts", "men"),
        NounPhrase("a dog", "dog"),
        NounPhrase("a cat", "cat"),
        NounPhrase("a dog and a cat", "dog"),
    ]
    assert list_noun_phrases(read("(NP (DT a) (NN dog))")) == []
