"""spaCy pipelines: folders that `train-parser` writes, folders of the user's, and installed packages.

`train-parser` writes `<folder>/pipeline/` in spaCy's format and `<folder>/pipeline.json`, its commit, with the sha256
of every file.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError, JointspaceError, UsageError
from pipeline.storage.atomic import read_json, to_json
from pipeline.storage.batch import TEMPORARY, FileBatch, cannot_write
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.reading import file_sha256, refusing

PIPELINE = "pipeline"
LISTED = "jointspace.json"
"""In the pipeline's folder: its other files, for when Snakemake has removed the commit of what it makes again."""
UNUSED = ("ner", "lemmatizer", "textcat", "entity_linker", "entity_ruler", "spancat")


def publish_parser(folder: Path, write: Callable[[Path], None], digest: str, details: Mapping[str, Any]) -> None:
    """Let `write` fill the pipeline's folder, then commit it under the fingerprint `digest`.

    Raises UsageError as `require_own` does, and JointspaceError, leaving an older pipeline as it was, if the new one
    cannot be written.
    """
    folder = Path(folder)
    require_own(folder)
    temporary, final, old = (folder / name for name in (f".{PIPELINE}.tmp", PIPELINE, f".{PIPELINE}.old"))
    commit = folder / f"{PIPELINE}.json"
    shutil.rmtree(temporary, ignore_errors=True)
    batch = FileBatch()
    try:
        temporary.mkdir(parents=True)
        write(temporary)
        (temporary / LISTED).write_bytes(to_json({"kind": PIPELINE, "files": _digests(temporary)}))
        for path in _files(temporary):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        about = {"kind": PIPELINE, "fingerprint": digest, "files": _digests(temporary), **details}
        batch.add(commit, to_json(about), commit=True)
    except (OSError, JointspaceError) as error:
        size = sum(path.stat().st_size for path in temporary.rglob("*"))
        shutil.rmtree(temporary, ignore_errors=True)
        raise (cannot_write(final, size, error) if isinstance(error, OSError) else error) from error
    shutil.rmtree(old, ignore_errors=True)
    if final.exists():
        os.replace(final, old)
    commit.unlink(missing_ok=True)
    os.replace(temporary, final)
    batch.publish()
    shutil.rmtree(old, ignore_errors=True)


def require_own(folder: Path) -> None:
    """Raises UsageError if the `pipeline` in `folder`, which is to be replaced, has a file that no commit lists.

    If its writer was killed before the last step, the commit still has its temporary name.
    """
    final, commit = Path(folder) / PIPELINE, f"{PIPELINE}.json"
    if not (final.exists() or final.is_symlink()):
        return
    written = [path for path in Path(folder).glob(f".{commit}.tmp.*") if TEMPORARY.fullmatch(path.name)]
    for path in [Path(folder) / commit, *written, final / LISTED] if final.is_dir() and not final.is_symlink() else ():
        with suppress(IntegrityError, OSError):
            value = read_json(path)
            ours = isinstance(value, dict) and value.get("kind") == PIPELINE and isinstance(value.get("files"), dict)
            if ours and _digests(final).keys() <= {*value["files"], LISTED}:
                return
    raise UsageError(f"{final} is not a pipeline that train-parser made; move it or delete it")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _digests(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): file_sha256(path) for path in _files(folder)}


def find_parser(trained: Path | None, name: str | None, root: Path) -> tuple[str, str]:
    """The argument for `load_parser`, and its fingerprint.

    `name` is a folder under `root` or an installed package; without it, `trained` is what `train-parser` wrote. Raises
    UsageError if neither is given or found, and IntegrityError if the trained pipeline was changed.
    """
    if name is not None and (folder := Path(root) / name).is_dir():
        return str(folder), fingerprint(PIPELINE, 1, _digests(folder))
    if name is not None:
        if (digest := package_digest(name)) is None:
            raise UsageError(
                f"parse.pipeline: {name} is neither a folder under {root} nor an installed package; correct it, or"
                " leave it null for what train-parser wrote"
            )
        return name, digest
    if trained is None:
        raise UsageError("no parser: set parse.pipeline to one, or run train-parser")
    value = read_json(Path(trained) / f"{PIPELINE}.json")
    with refusing(Path(trained) / PIPELINE, "run train-parser again"):
        digests = _digests(Path(trained) / PIPELINE)
    if digests != value["files"]:
        raise IntegrityError(f"{trained} is not as train-parser wrote it; run it again")
    return str(Path(trained) / PIPELINE), value["fingerprint"]


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
