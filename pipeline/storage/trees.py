"""Parses `text/parses/shard-00000.conllu` and `.brackets`, and the trees `text/trees/shard-00000.h5` made from them."""

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError
from pipeline.storage.commit import open_commit, publish
from pipeline.storage.files import read_bytes
from pipeline.storage.shards import write_shard
from pipeline.storage.text_shards import TextShard, TextShards

PARSES = "parses"
TREES = "trees"
KINDS = ("dependency", "phrase")
FIELDS = ("parents", "words", "labels", "offsets")


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a user's UTF-8 file, unpacked if its name ends in .gz. Only a line feed ends a line, since sentences
    may contain other separators. Raises InputError if the file cannot be read or decoded."""
    path, number = Path(path), 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            for line in stream:
                number += 1
                yield line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}, line {number}: not UTF-8 ({error.reason}); convert the file") from error
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path} ({reason}); correct its name in the section parse") from error


def write_parses(path: Path, conllu: str, brackets: str, rows: int, **about: Any) -> None:
    """Publish a shard's parses: CoNLL-U at `path`, brackets beside it; `about` has `provenance` and `details`."""
    beside = {path.with_suffix(".brackets").name: brackets.encode()}
    publish(path, conllu.encode(), kind=PARSES, rows=rows, beside=beside, **about)


class ParseShard:
    """The lines of one shard's two files."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.brackets_path = self.path.with_suffix(".brackets")
        commit = open_commit(self.path, PARSES)
        self.conllu = read_bytes(self.path).decode().split("\n")
        self.brackets = read_bytes(self.brackets_path).decode().split("\n")
        self.rows, self.details, self.made_by = commit.rows, commit.details, commit.made_by


class ParseShards(TextShards):
    """The parses of a manifest's sentences."""

    read, stage, ending = ParseShard, "parse", ".conllu"


def write_trees(
    path: Path,
    trees: Mapping[str, Mapping[str, np.ndarray]],
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    **about: Any,
) -> None:
    """Publish the `dependency` and `phrase` trees of m sentences, each as packed arrays by their names in FIELDS;
    `about` has the `provenance` and `details`."""
    arrays = {f"{kind}_{field}": trees[kind][field] for kind in KINDS for field in FIELDS}
    arrays |= {"sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, TREES, arrays, rows=len(sentence_id), **about)


class TreeShard(TextShard):
    """`dependency` and `phrase`: packed arrays by name, the fields of pipeline.text.trees.Trees."""

    kind = TREES

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.dependency, self.phrase = ({name: self[f"{kind}_{name}"] for name in FIELDS} for kind in KINDS)


class TreeShards(TextShards):
    """The trees of a manifest's sentences."""

    read, stage = TreeShard, "encode-trees"
