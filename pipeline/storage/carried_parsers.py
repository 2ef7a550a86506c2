"""The parser that a bundle carries, so that queries are parsed as its sentences were.

The card's `parse` records how: `engine` is `files` or `spacy`; for spaCy also `max_words`, spaCy's version `spacy`, and
`package`, an installed pipeline, or null if the bundle holds the pipeline in `parser/`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.files import read_bytes
from pipeline.storage.json_files import require_same
from pipeline.storage.own_code import PARSER
from pipeline.storage.parsers import find_parser, load_parser, package_digest
from pipeline.storage.records import read_labels

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle, BundleWriter
    from pipeline.storage.parameters import Parameters
    from pipeline.storage.texts import ParseShard

PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class CarriedParser:
    """`metadata` is the card's `parse`, `labels` the path of the label table. `folder` is the pipeline to copy, None
    for a package or for parses from files; `digest` the parser's fingerprint, None for parses from files."""

    metadata: dict[str, Any]
    labels: Path
    folder: Path | None = None
    digest: str | None = None


def find_carried_parser(
    model: "Parameters", parses: "ParseShard", labels_path: Path, trained: Path | None, name: str | None, root: Path
) -> CarriedParser:
    """The parser for a bundle of `model`, whose trees were made from `parses` with the labels in `labels_path`.

    `trained`, `name` and `root` are those of `find_parser`. Raises IntegrityError if that parser did not make these
    parses, or if the model was trained with other labels.
    """
    labels = read_labels(labels_path)
    require_same("label table", {str(labels_path): labels["fingerprint"], "the model": model.details["labels"]})
    engine = parses.details["engine"]
    if engine["engine"] != "spacy":
        return CarriedParser({"engine": engine["engine"]}, Path(labels_path))
    found, digest = find_parser(trained, name, root)
    require_same("parser", {str(parses.path): parses.details["parser"], found: digest})
    folder = Path(found) if Path(found).is_dir() else None
    metadata = {"engine": "spacy", "max_words": engine["max_words"], "spacy": parses.details["spacy"]}
    return CarriedParser({**metadata, "package": None if folder else found}, Path(labels_path), folder, digest)


def add_parser(writer: "BundleWriter", parser: CarriedParser) -> None:
    """Copy the labels and the pipeline's files into a bundle."""
    writer.add("labels.json", read_bytes(parser.labels))
    for path in sorted(parser.folder.rglob("*") if parser.folder else ()):
        if path.is_file():
            writer.add(PARSER + path.relative_to(parser.folder).as_posix(), read_bytes(path))


def load_carried_parser(bundle: "Bundle") -> Any:
    """The spaCy pipeline of a bundle; each of its files is checked first.

    Raises UsageError if it is a package that is not installed in the version that parsed the sentences, and
    IntegrityError as `Bundle.read` does, or if the folder holds a file that the card does not list.
    """
    package = bundle.card["parse"]["package"]
    if package is None:
        listed = {name for name in bundle.card["files"] if name.startswith(PARSER)}
        for name in listed:
            bundle.read(name)
        folder = bundle.folder / PARSER
        for path in folder.rglob("*"):  # spaCy reads whatever lies there
            if not path.is_dir() and path.relative_to(bundle.folder).as_posix() not in listed:
                raise IntegrityError(f"{path} is not in the card of its bundle; remove it, or run build-index again")
        return load_parser(str(folder))
    # By its name alone: a folder of that name would be another parser.
    digest = package_digest(package) if PACKAGE.fullmatch(str(package)) else None
    if digest is None or digest != bundle.card["inputs"].get("parser"):
        raise UsageError(f"the sentences of {bundle.folder} were parsed by {package}; install it, in the same version")
    return load_parser(package)
