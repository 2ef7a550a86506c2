"""Parses from another parser's files, matched to our sentences by id and checked for the same words."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from pipeline.errors import InputError
from pipeline.text.brackets import PhraseTree
from pipeline.text.conllu import Entry, Parse
from pipeline.text.heads import derive_dependencies
from pipeline.text.phrases import EMPTY, Parsed, derive_phrases, fall_back
from pipeline.text.retokenising import letters

ID = "sent_id"
SHOWN = 200
"""Characters of the parser's words quoted in a mismatch."""


def sentence_keys(names: Sequence[str], first: int) -> list[list[str]]:
    """The ids that each sentence may have in a file, given its image's name; an image's sentences are adjacent.

    They are `name#k` for sentence k of the image, with or without the folders in its name, and the number of the
    sentence, counted from `first`.
    """
    keys, before, k = [], None, 0
    for number, name in enumerate(names, start=first):
        k = k + 1 if name == before else 0
        before = name
        keys.append([f"{name}#{k}", f"{name.rpartition('/')[2]}#{k}", str(number)])
    return keys


def index_parses(entries: Iterable[Entry], wanted: Collection[str], name: str) -> dict[str, Parse]:
    """Id -> parse for the `wanted` ids in the file `name`; the id is the comment sent_id.

    Raises InputError for a sentence without an id, a repeated id, or a file without sentences.
    """
    return _index(((entry.comments.get(ID), entry.parse) for entry in entries), wanted, name)


def index_trees(
    trees: Iterable[tuple[str | None, PhraseTree]], wanted: Collection[str], name: str
) -> dict[str, PhraseTree]:
    """The same for brackets, whose ids precede them; without ids, trees are numbered from 0."""
    return _index(((str(n) if key is None else key, tree) for n, (key, tree) in enumerate(trees)), wanted, name)


def _index(found: Iterable[tuple[str | None, object]], wanted: Collection[str], name: str) -> dict:
    index, seen = {}, set()
    for number, (key, value) in enumerate(found, start=1):
        if key is None:
            raise InputError(f"{name}: sentence {number} has no comment '# {ID} = ...'; add one")
        if key in seen:
            raise InputError(f"{name}: sentence {number} has the id {key} of an earlier one; make the ids unique")
        seen.add(key)
        if key in wanted:
            index[key] = value
    if not seen:
        raise InputError(f"{name} holds no sentence; give the file that your parser wrote")
    return index


def match(text: str, keys: Iterable[str], parses: Mapping[str, Parse], trees: Mapping[str, PhraseTree]) -> Parsed:
    """Both trees of the sentence with one of the ids `keys`; a missing one is derived from the other.

    A sentence with neither, or with trees over other words, falls back to chains.
    """
    keys = list(keys)
    parse = next((parses[key] for key in keys if key in parses), None)
    tree = next((trees[key] for key in keys if key in trees), None)
    if not letters(text):
        return fall_back(text, EMPTY)
    if parse is None and tree is None:
        return fall_back(text, "no parse of this id")
    for found in (parse, tree):
        if found is not None and letters("".join(found.words)) != letters(text):
            return fall_back(text, f"{len(found.words)} other words: {' '.join(found.words)[:SHOWN]}")
    parse = derive_dependencies(tree) if parse is None else parse
    return Parsed(parse, derive_phrases(parse) if tree is None else tree, None)
