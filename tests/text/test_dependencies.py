"""Tests of CoNLL-U (writing, reading back, and errors with file and line), of faults in trees, and of projective
trees."""

import random

import pytest

from pipeline.errors import InputError
from pipeline.text.dependencies import chain, format_conllu, projective_heads, read_conllu, tree_fault

TEXT = """# newdoc id = d
# sent_id = a-1
# text = Don't go.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\tMood=Imp\t3\taux\t3:aux\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No|X=1
3.1\tthere\t_\t_\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t.\t_\t3\tpunct\t_\t_

# sent_id = empty

1\tyes\t_\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def row(number: object, head: object, word: str = "w") -> str:
    return f"{number}\t{word}\t_\tX\tX\t_\t{head}\tdep\t_\t_"


def test_reading_skips_multiword_spans_and_empty_nodes() -> None:
    first, empty, last = read_conllu(TEXT.split("\n"), "f")
    assert first.comments["sent_id"] == "a-1" and first.comments["text"] == "Don't go."
    assert first.parse.words == ("Do", "n't", "go", ".")
    assert first.parse.heads == (2, 2, -1, 2)
    assert first.parse.relations == ("aux", "advmod", "root", "punct")
    assert first.parse.xpos == ("VB", "RB", "VB", ".") and first.parse.upos[2] == "VERB"
    assert first.parse.spaces == (True, True, False, True)
    assert len(empty.parse) == 0 and empty.comments == {"sent_id": "empty"}
    assert last.parse.words == ("yes",) and last.comments == {}


def test_written_parses_are_read_back() -> None:
    parses = [entry.parse for entry in read_conllu(TEXT.split("\n"), "f")] + [chain(["a", "b", "c"]), chain([])]
    text = "".join(format_conllu(parse, [("sent_id", str(n))]) for n, parse in enumerate(parses))
    again = list(read_conllu(text.split("\n"), "f"))
    assert [entry.parse for entry in again] == parses
    assert [entry.comments["sent_id"] for entry in again] == list("01234")


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (["1\tw\t0"], "line 1"),
        ([row(1, 0), row(3, 1)], "line 2"),
        ([row(1, 0), row(1, 0)], "line 2"),
        ([row(1, "_")], "line 1"),
        ([row(1, "-1")], "line 1"),
        ([row(1, 0, "")], "line 1"),
        ([row(1, 0), row(2, 0)], "sentence before line 3"),
        (["", "# x", row(1, 2), row(2, 3), row(3, 1), ""], "sentence before line 6"),
        ([row(1, 2), row(2, 3), row(3, 2), row(4, 0)], "sentence before line 5"),
        ([row(1, 0), row(2, 9)], "sentence before line 3"),
    ],
)
def test_bad_sentences_are_named(lines: list[str], where: str) -> None:
    with pytest.raises(InputError, match=f"^f, {where}: "):
        list(read_conllu(lines, "f"))


def test_faults_agree_with_a_walk_to_the_root() -> None:
    chance = random.Random(0)
    found = set()
    for _ in range(500):
        heads = [chance.randrange(-1, 4) for _ in range(4)]

        def reaches_root(word: int, heads: list[int] = heads) -> bool:
            for _ in range(5):
                if word == -1:
                    return True
                word = heads[word]
            return False

        good = heads.count(-1) == 1 and all(map(reaches_root, range(4)))
        assert (tree_fault(heads) is None) == good
        found.add(good)
    assert found == {True, False}


def crosses(heads: list[int]) -> bool:
    """Return whether arcs cross. Two arcs cross if a word between the ends of one arc does not descend from the head of
    this arc."""

    def descends(word: int, head: int) -> bool:
        while word not in (head, -1):
            word = heads[word]
        return word == head

    arcs = [(word, head) for word, head in enumerate(heads) if head != -1]
    return any(not descends(one, head) for word, head in arcs for one in range(min(word, head) + 1, max(word, head)))


def test_the_dependent_of_the_shortest_crossing_arc_is_attached_higher() -> None:
    assert projective_heads([2, 3, -1, 2]) == [2, 2, -1, 2]
    # The arcs 0 to 3 and 4 to 2 cross, and the arc 4 to 2 is shorter.
    assert projective_heads([3, 0, 3, -1, 2]) == [3, 0, 3, -1, 3]
    chance = random.Random(1)
    changed = 0
    for _ in range(300):
        heads = [chance.randrange(-1, 6) for _ in range(6)]
        if tree_fault(heads) is None:
            found = projective_heads(heads)
            assert not crosses(found) and tree_fault(found) is None
            assert (found != heads) == crosses(heads)
            changed += found != heads
    assert changed > 5
