"""The parser that a bundle carries, so that queries are parsed as its sentences were.

The card's `parse` says how that was: `engine`, `files` or `spacy`, and for the latter `max_words`, the version of
`spacy`, and `package`, the name of an installed pipeline, or null where the bundle holds the pipeline in `parser/`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.fingerprint import require_same
from pipeline.storage.parsers import find_parser, load_parser, package_digest
from pipeline.storage.reading import read_bytes
from pipeline.storage.records import read_labels

if TYPE_CHECKING:
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.trees import ParseShard

FOLDER = "parser/"
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Writer(Protocol):
    """A bundle in the making."""

    def add(self, name: str, data: bytes) -> None: ...


class Carrier(Protocol):
    """A bundle; `read` checks what it reads."""

    folder: Path
    card: Mapping[str, Any]

    def read(self, name: str) -> bytes: ...


@dataclass(frozen=True)
class CarriedParser:
    """`told` is what the card says; `folder` the pipeline to copy, None for a package and for other parsers' files;
    `labels` the path of the label table, and `digest` the parser's fingerprint, None without one."""

    told: dict[str, Any]
    labels: Path
    folder: Path | None = None
    digest: str | None = None


def find_carried_parser(
    model: "Parameters", parses: "ParseShard", labels_path: Path, trained: Path | None, name: str | None, root: Path
) -> CarriedParser:
    """What a bundle of `model` carries, whose trees are those of `parses` by the labels in `labels_path`.

    `trained`, `name` and `root` are those of `find_parser`. Raises IntegrityError where the parser that is found did
    not make these parses, or they and the labels are not what the model was trained with.
    """
    labels = read_labels(labels_path)
    require_same("label table", {str(labels_path): labels["fingerprint"], "the model": model.details["labels"]})
    require_same("parses", {str(parses.path): parses.fingerprint, str(labels_path): labels["inputs"]["parses 0"]})
    engine, inputs = parses.details["engine"], parses.details["inputs"]
    if engine["engine"] != "spacy":
        return CarriedParser({"engine": engine["engine"]}, Path(labels_path))
    found, digest = find_parser(trained, name, root)
    require_same("parser", {str(parses.path): inputs["parser"], found: digest})
    folder = Path(found) if Path(found).is_dir() else None
    told = {"engine": "spacy", "max_words": engine["max_words"], "spacy": inputs["spacy"]}
    return CarriedParser({**told, "package": None if folder else found}, Path(labels_path), folder, digest)


def add_parser(writer: Writer, parser: CarriedParser) -> None:
    """Put the labels, and the pipeline's files, into a bundle."""
    writer.add("labels.json", read_bytes(parser.labels))
    for path in sorted(parser.folder.rglob("*") if parser.folder else ()):
        if path.is_file():
            writer.add(FOLDER + path.relative_to(parser.folder).as_posix(), read_bytes(path))


def load_carried_parser(bundle: Carrier) -> Any:
    """The spaCy pipeline of a bundle, each of its files after its check.

    Raises UsageError where it is a package that is not installed, or not in the version that parsed the sentences, and
    IntegrityError as `Bundle.read` does, or where the folder holds a file that the card does not list.
    """
    package = bundle.card["parse"]["package"]
    if package is None:
        listed = {name for name in bundle.card["files"] if name.startswith(FOLDER)}
        for name in listed:
            bundle.read(name)
        folder = bundle.folder / FOLDER
        for path in folder.rglob("*"):  # spaCy reads whatever lies there
            if not path.is_dir() and path.relative_to(bundle.folder).as_posix() not in listed:
                raise IntegrityError(f"{path} is not in the card of its bundle; remove it, or run build-index again")
        return load_parser(str(folder))
    # By its name alone: a folder of that name would be another parser.
    digest = package_digest(package) if PACKAGE.fullmatch(str(package)) else None
    if digest is None or digest != bundle.card["inputs"].get("parser"):
        raise UsageError(f"the sentences of {bundle.folder} were parsed by {package}; install it, in the same version")
    return load_parser(package)
