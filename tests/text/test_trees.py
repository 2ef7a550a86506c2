"""Tests of packed trees, and of the conversion of a parser's trees to jointspace's words."""

import random
from collections.abc import Iterator
from itertools import compress
from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.run.reading import texts
from pipeline.text.dependencies import Parse, tree_fault
from pipeline.text.trees import Trees, align, letters, pack, project_parse


def random_tree(rng: np.random.Generator, size: int) -> list[tuple[int, int, int]]:
    """Return a random tree whose nodes (parent, word, label) are in random order."""
    order = rng.permutation(size)
    nodes: list[tuple[int, int, int]] = [(-1, 0, 0)] * size
    for place in range(size):
        parent = order[rng.integers(place)] if place else -1
        nodes[order[place]] = (int(parent), int(rng.integers(50)), int(rng.integers(9)))
    return nodes


def unpacked(trees: Trees) -> list[list[tuple[int, int, int]]]:
    rows = list(zip(trees.parents.tolist(), trees.words.tolist(), trees.labels.tolist(), strict=True))
    return [rows[start:stop] for start, stop in zip(trees.offsets[:-1], trees.offsets[1:], strict=True)]


def test_packing_and_selecting_trees_keep_every_tree() -> None:
    rng = np.random.default_rng(0)
    plain = [random_tree(rng, int(size)) for size in rng.integers(0, 12, 40)]
    trees = pack(plain)
    assert len(trees) == 40 and unpacked(trees) == plain
    assert (trees.parents.dtype, trees.words.dtype, trees.labels.dtype) == (np.int32,) * 3
    assert trees.offsets.dtype == np.int64
    rows = np.array([7, 7, 0, 39])
    assert unpacked(trees.take(rows)) == [plain[row] for row in rows]
    assert len(trees.take(np.array([], np.int64))) == 0


THEIRS = ("The", "man", "'s", "T", "-", "shirt", "does", "n't", "fit", ".")
HEADS = (1, 5, 1, 5, 5, 8, 8, 8, -1, 8)
RELATIONS = ("det", "nmod:poss", "case", "compound", "punct", "nsubj", "aux", "advmod", "root", "punct")
PARSE = Parse(THEIRS, ("X",) * 10, tuple("ABCDEFGHIJ"), HEADS, RELATIONS, (True,) * 10)
OURS = ["the", "man's", "t", "shirt", "doesn't", "fit"]


def test_dependencies_between_parser_words_become_dependencies_between_own_words() -> None:
    found = project_parse(PARSE, OURS, align(THEIRS, OURS))
    assert found.words == tuple(OURS)
    assert found.heads == (1, 3, 3, 5, 5, -1)
    assert found.relations == ("det", "nmod:poss", "compound", "nsubj", "aux", "root")
    assert found.xpos == tuple("ABDFGI")


def test_any_splitting_of_any_tree_gives_a_tree() -> None:
    chance = random.Random(0)
    for _ in range(500):
        n = chance.randrange(1, 9)
        words = tuple(chance.choice(["ab", "c", "d-e", ".", "--", "f"]) for _ in range(n))
        order = chance.sample(range(n), n)
        heads = [-1] * n
        for place in range(1, n):
            heads[order[place]] = order[chance.randrange(place)]
        parse = Parse(words, ("X",) * n, ("X",) * n, tuple(heads), tuple(map(str, range(n))), (True,) * n)
        text = letters("".join(words))
        cuts = sorted({0, len(text), *(chance.randrange(len(text) + 1) for _ in range(3))})
        ours = [text[start:stop] for start, stop in zip(cuts[:-1], cuts[1:], strict=True)]
        found = project_parse(parse, ours, align(words, ours))
        assert tree_fault(found.heads) is None and len(found) == len(ours)
        if tuple(ours) == words:
            assert found.heads == parse.heads


def test_only_shards_with_selected_sentences_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three shards has none of the selected sentences."""
    opened = []

    def read_trees(run: object, number: int, analyze: object, chosen: np.ndarray) -> Iterator[int]:
        opened.append(number)
        return compress(range(10 * number, 10 * number + 10), chosen)

    monkeypatch.setattr(texts, "read_trees", read_trees)
    shards = [SimpleNamespace(first_sentence=10 * number, last_sentence=10 * number + 10) for number in range(3)]
    run = SimpleNamespace(manifest=SimpleNamespace(n_shards=3, shard=shards.__getitem__))
    assert texts.read_sentence_trees(run, str.split, np.array([2, 9, 20, 29])) == [2, 9, 20, 29]
    assert opened == [0, 2]
