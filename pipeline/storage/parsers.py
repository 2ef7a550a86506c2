"""spaCy pipelines, and the code that bundles carry.

A pipeline is a folder that `train-parser` writes (`<folder>/pipeline/` in spaCy's format, and `<folder>/pipeline.json`,
its commit), a folder of the user's, or an installed package. A bundle carries the one that parsed its sentences, so
that queries are parsed alike: its card's `parse` has the `engine`, `files` or `spacy`, and for spaCy also `max_words`,
spaCy's version `spacy`, and `package`, an installed pipeline, or null if the bundle holds the pipeline in `parser/`.

A spaCy pipeline calls the functions that its configuration names while it is loaded, and an ONNX graph may take any
memory and time. So they are run only if they were put into a bundle here, by this user, or if a command was told to
trust them (`--trust-code`). What is remembered is the SHA-256 of such a part, as an empty file in the user's own folder
of state: nothing that lies in a bundle, or beside it, can vouch for it. Copies of a bundle, and those that `apply`,
`add` and `remove` make, carry the same parts, and so are as much, or as little, one's own.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.batch import FileBatch
from pipeline.storage.commit import Provenance, describe_file, open_commit, publish_record
from pipeline.storage.files import file_sha256, read_bytes
from pipeline.storage.json_files import fingerprint, require_same
from pipeline.storage.parameters import Parameters
from pipeline.storage.records import read_labels

if TYPE_CHECKING:
    from pipeline.storage.texts import ParseShard

log = logging.getLogger(__name__)
PIPELINE = "pipeline"
UNUSED = ("ner", "lemmatizer", "textcat", "entity_linker", "entity_ruler", "spancat")
PARSER, ONNX = "parser/", "onnx"
"""The folder of a spaCy pipeline in a bundle; and the kind of an encoder that is an ONNX graph, also the name of its
bytes among its tensors."""
PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_trusted_here: set[str] = set()
"""What this process trusts, should the user's folder not be writable."""


# --- pipelines


def publish_parser(folder: Path, trained: Path, details: Mapping[str, Any], provenance: Provenance) -> None:
    """Make the folder `trained`, on the same disk, the pipeline in `folder`, and commit it: an older commit goes before
    its pipeline does. Raises JointspaceError, leaving an older pipeline alone, if there is no room for the new
    commit."""
    final, commit, batch = folder / PIPELINE, folder / f"{PIPELINE}.json", FileBatch()
    files = {f"{PIPELINE}/{path.relative_to(trained).as_posix()}": describe_file(path) for path in _files(trained)}
    for path in _files(trained):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    publish_record(commit, {"kind": PIPELINE, **details}, provenance=provenance, files=files, batch=batch)
    commit.unlink(missing_ok=True)
    if final.exists():
        shutil.rmtree(final)
    os.replace(trained, final)
    batch.publish()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def find_parser(trained: Path | None, name: str | None, root: Path) -> tuple[str, str]:
    """The argument for `load_parser`, and its fingerprint.

    `name` is a folder under `root` or an installed package; without it, `trained` is what `train-parser` wrote. Raises
    UsageError if neither is given or found, and IntegrityError if the trained pipeline was changed.
    """
    if name is not None and (folder := Path(root) / name).is_dir():
        digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in _files(folder)}
        return str(folder), fingerprint(PIPELINE, 1, digests)
    if name is not None:
        if (digest := package_digest(name)) is None:
            raise UsageError(
                f"parse.pipeline: {name} is neither a folder under {root} nor an installed package; correct it, or"
                " leave it null for what train-parser wrote"
            )
        return name, digest
    if trained is None:
        raise UsageError("no parser: set parse.pipeline to one, or run train-parser")
    folder, commit = Path(trained) / PIPELINE, open_commit(Path(trained) / f"{PIPELINE}.json")
    _require_listed(folder, folder.parent, commit.files, "train-parser's commit; remove it")
    return str(folder), commit.digest


def _require_listed(folder: Path, root: Path, names: Collection[str], remedy: str) -> None:
    """Raises IntegrityError for a file below `folder` that is not among `names`, paths below `root`: spaCy reads
    whatever lies there."""
    for path in folder.rglob("*"):
        if not path.is_dir() and path.relative_to(root).as_posix() not in names:
            raise IntegrityError(f"{path} is not in {remedy}")


def package_digest(name: str) -> str | None:
    """The fingerprint of the installed package `name`; None if it is not installed."""
    from importlib import metadata  # which searches in plain words do without

    try:
        return fingerprint(PIPELINE, 1, {"package": name, "version": metadata.version(name)})
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=1)
def load_parser(name: str) -> Any:
    """The spaCy pipeline in a folder or package, without the components that parsing does not need."""
    import spacy

    pipeline = spacy.load(name, exclude=list(UNUSED))
    if "parser" not in pipeline.pipe_names:
        raise UsageError(f"{name} has no parser, only {', '.join(pipeline.pipe_names)}; choose another parse.pipeline")
    return pipeline


# --- pipelines in bundles


@dataclass(frozen=True)
class CarriedParser:
    """`metadata` is the card's `parse`, `labels` the path of the label table. `folder` is the pipeline to copy, None
    for a package or for parses from files; `digest` the parser's fingerprint, None for parses from files."""

    metadata: dict[str, Any]
    labels: Path
    folder: Path | None = None
    digest: str | None = None

    def add_to(self, add: Callable[[str, bytes], None]) -> None:
        """Give the labels and the pipeline's files to what adds a file to a bundle."""
        add("labels.json", read_bytes(self.labels))
        for path in _files(self.folder) if self.folder else ():
            add(PARSER + path.relative_to(self.folder).as_posix(), read_bytes(path))


def find_carried_parser(
    model: Parameters, parses: "ParseShard", labels_path: Path, trained: Path | None, name: str | None, root: Path
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
    source, digest = find_parser(trained, name, root)
    require_same("parser", {str(parses.path): parses.details["parser"], source: digest})
    folder = Path(source) if Path(source).is_dir() else None
    metadata = {"engine": "spacy", "max_words": engine["max_words"], "spacy": parses.details["spacy"]}
    return CarriedParser({**metadata, "package": None if folder else source}, Path(labels_path), folder, digest)


def load_carried_parser(folder: Path, card: Mapping[str, Any]) -> Any:
    """The spaCy pipeline of the bundle in `folder`, of which all files that the `card` lists were checked.

    Raises UsageError if it is a package that is not installed in the version that parsed the sentences, and
    IntegrityError if the folder holds a file that the card does not list.
    """
    package = card["parse"]["package"]
    if package is None:
        remedy = "the card of its bundle; remove it, or run build-index again"
        _require_listed(folder / PARSER, folder, card["files"], remedy)
        return load_parser(str(folder / PARSER))
    # By its name alone: a folder of that name would be another parser.
    digest = package_digest(package) if PACKAGE.fullmatch(str(package)) else None
    if digest is None or digest != card["inputs"].get("parser"):
        raise UsageError(f"the sentences of {folder} were parsed by {package}; install it, in the same version")
    return load_parser(package)


# --- trust


def code_of(card: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a bundle that are code, with the SHA-256 of each, by its card."""
    files = card["files"]
    parts = {}
    if parser := sorted((name, about["sha256"]) for name, about in files.items() if name.startswith(PARSER)):
        parts[PARSER] = hashlib.sha256(json.dumps(parser).encode()).hexdigest()
    for folder, kind in (("encoders", "architecture"), ("text_encoders", "kind")):
        for name, about in card.get(folder, {}).items():
            file = f"{folder}/{name}/model.safetensors"
            if about[kind] == ONNX and file in files:
                parts[file] = files[file]["sha256"]
    return parts


def remember(digests: Iterable[str]) -> None:
    """Have these parts be one's own, for good where the user's folder can be written, else in this process."""
    new = [digest for digest in digests if not is_own(digest)]
    _trusted_here.update(new)
    try:
        for digest in new:
            folder = state_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / digest).touch()
    except (OSError, RuntimeError) as error:
        log.warning("cannot remember that a bundle's code is yours (%s); later commands need --trust-code", error)


def is_own(digest: str) -> bool:
    """Whether the part with this SHA-256 is one's own."""
    if digest in _trusted_here:
        return True
    try:
        return (state_folder() / digest).is_file()
    except (OSError, RuntimeError):
        return False


def state_folder() -> Path:
    """Where parts are remembered. Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "jointspace" / "own-code"
