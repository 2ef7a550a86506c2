"""The arcs of a dependency tree: how deep they lead, and which of them cross."""

from collections.abc import Sequence

from pipeline.text.conllu import ROOT


def depths(heads: Sequence[int]) -> list[int]:
    """Arcs between each word and the root."""
    found = [0 if head == ROOT else -1 for head in heads]
    for word in range(len(heads)):
        path = []
        while found[word] < 0:
            path.append(word)
            word = heads[word]
        for steps, passed in enumerate(reversed(path), start=1):
            found[passed] = found[word] + steps
    return found


def projective_heads(heads: Sequence[int]) -> list[int]:
    """`heads` with the dependents of crossing arcs lifted to their head's head, the shortest such arc first."""
    heads = list(heads)
    while not _are_contiguous(heads):
        arcs = [word for word, head in enumerate(heads) if head != ROOT and not _spans(heads, word, head)]
        word = min(arcs, key=lambda word: (abs(word - heads[word]), word))
        heads[word] = heads[heads[word]]
    return heads


def _are_contiguous(heads: Sequence[int]) -> bool:
    """Whether every word and its descendants stand together, which is to be projective."""
    count, first, last = [1] * len(heads), list(range(len(heads))), list(range(len(heads)))
    for word in sorted(range(len(heads)), key=depths(heads).__getitem__, reverse=True):
        if last[word] - first[word] >= count[word]:
            return False
        head = heads[word]
        if head != ROOT:
            count[head] += count[word]
            first[head], last[head] = min(first[head], first[word]), max(last[head], last[word])
    return True


def _spans(heads: Sequence[int], word: int, head: int) -> bool:
    """Whether every word between the two descends from `head`."""
    for between in range(min(word, head) + 1, max(word, head)):
        while between not in (head, ROOT):
            between = heads[between]
        if between == ROOT:
            return False
    return True
