"""Parses `text/parses/shard-00000.conllu` and `.brackets`, and trees `text/trees/shard-00000.h5` packed from them."""

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.atomic import add_artefact, read_verified
from pipeline.storage.batch import FileBatch
from pipeline.storage.gather import TextShards
from pipeline.storage.shards import Shard, write_shard

PARSES = "parses"
BRACKETS = "brackets"
TREES = "trees"
KINDS = ("dependency", "phrase")
FIELDS = ("parents", "words", "labels", "offsets")


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file of the user's, unpacked where its name ends in .gz. InputError names an unreadable one.

    Lines end by line feeds only, so that a sentence may hold other separators.
    """
    path = Path(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as stream:
            for number, line in enumerate(stream, start=1):
                yield _decoded(line, f"{path}, line {number}")
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read {path} ({reason}); correct its name in the section parse") from error


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 ({error.reason}); convert the file") from error


def write_parses(
    path: Path, conllu: str, brackets: str, rows: int, *, fingerprint: str, details: Mapping[str, Any]
) -> None:
    """Publish the parses of one shard: brackets beside `path`, then CoNLL-U at `path`, which vouches for both."""
    batch, about = FileBatch(), {"rows": rows, "fingerprint": fingerprint, "details": details}
    for kind, target, text in ((BRACKETS, _beside(path), brackets), (PARSES, Path(path), conllu)):
        add_artefact(batch, target, text.encode(), kind=kind, **about)
    batch.publish()


def _beside(path: Path) -> Path:
    return Path(path).with_suffix(".brackets")


class ParseShard:
    """The lines of one shard's two files, each with its file's name, and the `fingerprint` that both have."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.brackets_path = _beside(self.path)
        conllu, sidecar = read_verified(self.path, PARSES)
        brackets, other = read_verified(self.brackets_path, BRACKETS)
        if sidecar.fingerprint != other.fingerprint:
            raise IntegrityError(f"{self.path} and {self.brackets_path} are of different runs; run parse again")
        self.conllu = conllu.decode().split("\n")
        self.brackets = brackets.decode().split("\n")
        self.rows, self.fingerprint, self.details = sidecar.rows, sidecar.fingerprint, sidecar.details


class ParseShards(TextShards):
    """The parses of a manifest's sentences."""

    read, stage, ending = ParseShard, "parse", ".conllu"


def write_trees(
    path: Path,
    trees: Mapping[str, Mapping[str, np.ndarray]],
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    details: Mapping[str, Any],
) -> None:
    """Publish the `dependency` and `phrase` trees of m sentences, each as packed arrays by their names in FIELDS."""
    arrays = {f"{kind}_{field}": trees[kind][field] for kind in KINDS for field in FIELDS}
    arrays |= {"sentence_id": sentence_id, "image_id": image_id}
    write_shard(path, TREES, arrays, rows=len(sentence_id), fingerprint=fingerprint, details=details)


class TreeShard(Shard):
    """`dependency` and `phrase`: packed arrays by name, the fields of pipeline.text.trees.Trees.

    `sentence_id` (m,), `image_id` (m,); `vocabulary` and `labels`: fingerprints of what the numbers refer to.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, TREES)
        self.dependency, self.phrase = ({name: self[f"{kind}_{name}"] for name in FIELDS} for kind in KINDS)
        self.sentence_id = self["sentence_id"]
        self.image_id = self["image_id"]
        self.vocabulary: str = self.details["inputs"]["vocabulary"]
        self.labels: str = self.details["inputs"]["labels"]


class TreeShards(TextShards):
    """The tree shards of a manifest."""

    read, stage = TreeShard, "encode-trees"
