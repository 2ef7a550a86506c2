"""spaCy pipelines: a folder that `train-parser` writes (`<folder>/pipeline/` in spaCy's format, and
`<folder>/pipeline.json`, its commit), a folder of the user's, or an installed package."""

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import UsageError
from pipeline.storage.batch import FileBatch, files_below, sync
from pipeline.storage.commit import Provenance, describe_file, open_commit, publish_record, read_record
from pipeline.storage.files import file_sha256
from pipeline.storage.json_files import Json, fingerprint

log = logging.getLogger(__name__)
PIPELINE = "pipeline"
UNUSED = ("ner", "lemmatizer", "textcat", "entity_linker", "entity_ruler", "spancat")


def parser_of(run: Path | None) -> tuple[Callable[[], Any], Mapping[str, Any]]:
    """Return a function that loads the spaCy pipeline that parsed the sentences of a run, and its label table.

    Raises UsageError if no run is named, because a pipeline is code that the user has to trust, and if the trees of the
    run were made by another parser.
    """
    from pipeline.storage.texts import PARSES  # which needs HDF5

    if run is None:
        raise UsageError("A tree model needs the run of its parser. Add --trusted-run RUN, or load(..., run=RUN).")
    parsed = open_commit(run / "text/parses/shard-00000.conllu", PARSES).details
    engine = parsed["engine"]
    if engine["engine"] != "spacy":
        raise UsageError("its trees came from files of another parser; set parse.engine to spacy")
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    trained, name = (None, engine["pipeline"]) if engine["pipeline"] else (run / "parser", None)
    name, digest = find_parser(trained, name, Path(config["weights_root"]))
    if digest != parsed["parser"]:
        raise UsageError(f"{name} is no longer the parser of its captions; run `parse` again")
    return partial(load_parser, name), read_record(run / "text/labels.json")


def publish_parser(folder: Path, trained: Path, details: Mapping[str, Json], provenance: Provenance) -> None:
    """Make the folder `trained`, on the same disk, the pipeline in `folder`, and commit it: an older commit goes before
    its pipeline does. Raises JointspaceError, leaving an older pipeline alone, if there is no room for the new
    commit."""
    final, commit, batch = folder / PIPELINE, folder / f"{PIPELINE}.json", FileBatch()
    paths = files_below(trained)
    files = {f"{PIPELINE}/{path.relative_to(trained).as_posix()}": describe_file(path) for path in paths}
    sync(paths)
    publish_record(commit, {"kind": PIPELINE, **details}, provenance=provenance, files=files, batch=batch)
    commit.unlink(missing_ok=True)
    if final.exists():
        shutil.rmtree(final)
    os.replace(trained, final)
    batch.publish()


def find_parser(trained: Path | None, name: str | None, root: Path) -> tuple[str, str]:
    """The argument for `load_parser`, and its fingerprint.

    `name` is a folder under `root` or an installed package; without it, `trained` is what `train-parser` wrote. Raises
    UsageError if neither is given or found, and IntegrityError if the trained pipeline was changed.
    """
    from importlib import metadata  # which searches in plain words do without

    if name is not None and (folder := Path(root) / name).is_dir():
        digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)}
        return str(folder), fingerprint(PIPELINE, 1, digests)
    if name is not None:
        try:
            return name, fingerprint(PIPELINE, 1, {"package": name, "version": metadata.version(name)})
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"parse.pipeline: {name} is neither a folder under {root} nor an installed package; correct it, or"
                " leave it null for what train-parser wrote"
            ) from None
    if trained is None:
        raise UsageError("no parser: set parse.pipeline to one, or run train-parser")
    commit = open_commit(Path(trained) / f"{PIPELINE}.json")
    return str(Path(trained) / PIPELINE), commit.digest


@lru_cache(maxsize=1)
def load_parser(name: str) -> Any:
    """The spaCy pipeline in a folder or package, without the components that parsing does not need."""
    import spacy

    pipeline = spacy.load(name, exclude=list(UNUSED))
    if "parser" not in pipeline.pipe_names:
        raise UsageError(f"{name} has no parser, only {', '.join(pipeline.pipe_names)}; choose another parse.pipeline")
    return pipeline
