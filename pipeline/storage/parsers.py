"""spaCy pipelines that parse captions: trained by `train-parser`, in a folder of the user, or installed as a package.

`train-parser` writes `<folder>/pipeline/` in spaCy's format, with its commit record `<folder>/pipeline.json`.
"""

import os
import shlex
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

PIPELINE = "pipeline"
UNUSED = ("ner", "lemmatizer", "textcat", "entity_linker", "entity_ruler", "spancat")
"""Components of a spaCy pipeline that parsing does not need. `load_parser` leaves them out."""


def parser_of(run: Path | None) -> tuple[Callable[[], Any], Mapping[str, Any]]:
    """Return a function that loads the spaCy pipeline with which the run in the folder `run` parsed its captions.

    The second result is the content of the run's `text/labels.json`, which lists the dependency relations and phrase
    labels in the parses. Raises UsageError if `run` is None, because a pipeline can contain code, and the user must
    name a run that they trust. Raises UsageError too if another parser made the parses, if the folder or package of the
    pipeline is missing, or if the pipeline is no longer the version that parsed the captions. Raises IntegrityError if
    an artefact of the run, such as a trained pipeline, is missing or damaged.
    """
    from pipeline.storage.texts import PARSES  # This import loads HDF5, which other callers of the module do not need.

    if run is None:
        raise UsageError(
            "The parser of the captions is needed to parse a query. Name the run that parsed the captions of the index"
            " with `--trusted-run RUN`, or in Python with `load(..., run=RUN)`."
        )
    parsed = open_commit(run / "text/parses/shard-00000.conllu", PARSES).details
    engine = parsed["engine"]
    if engine["engine"] != "spacy":
        raise UsageError(
            f"The trees of {run} were read from files of another parser, which cannot parse a query. Set parse.engine"
            " to spacy in its configuration, and run `jointspace run CONFIG`."
        )
    config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    trained, name = (None, engine["pipeline"]) if engine["pipeline"] else (run / "parser", None)
    name, digest = find_parser(trained, name, Path(config["weights_root"]))
    if digest != parsed["parser"]:
        raise UsageError(
            f"The parser {name} has changed since the captions of {run} were parsed. Parse them again with"
            f" `jointspace stage parse --run {shlex.quote(str(run))} --force`, and then run `jointspace run CONFIG`."
        )
    return partial(load_parser, name), read_record(run / "text/labels.json")


def publish_parser(folder: Path, trained: Path, details: Mapping[str, Json], provenance: Provenance) -> None:
    """Move the spaCy pipeline in the folder `trained` to `<folder>/pipeline`, and write its commit record.

    Both folders must be on the same disk. `details` are further keys of the record, and `provenance` is the origin of
    the pipeline in its run. An older commit record is removed before its pipeline is replaced. If the disk has no room
    for the new record, this raises JointspaceError, and an older pipeline stays as it was.
    """
    final = folder / PIPELINE
    commit = folder / f"{PIPELINE}.json"
    batch = FileBatch()
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
    """Find a spaCy pipeline. Return the argument with which `load_parser` loads the pipeline, and the fingerprint of
    the pipeline.

    `name` is a folder below `root`, which is the folder weights_root, or an installed package. If `name` is None, the
    pipeline was written into the folder `trained` by `train-parser`. Raises UsageError if `name` and `trained` are
    None, or if `name` is neither such a folder nor an installed package. Raises IntegrityError if the trained pipeline
    is missing or was changed.
    """
    from importlib import metadata  # Searches without a parser do not need this import.

    if name is not None and (folder := Path(root) / name).is_dir():
        digests = {path.relative_to(folder).as_posix(): file_sha256(path) for path in files_below(folder)}
        return str(folder), fingerprint(PIPELINE, 1, digests)
    if name is not None:
        try:
            return name, fingerprint(PIPELINE, 1, {"package": name, "version": metadata.version(name)})
        except metadata.PackageNotFoundError:
            raise UsageError(
                f"parse.pipeline: {name} is neither a folder below {root} nor an installed package. Correct this key,"
                " or set it to null to use the pipeline of `train-parser`."
            ) from None
    if trained is None:
        raise UsageError(
            "There is no parser for captions. Set parse.pipeline to a spaCy pipeline, or train a pipeline with"
            " `jointspace stage train-parser --run RUN`."
        )
    commit = open_commit(Path(trained) / f"{PIPELINE}.json")
    return str(Path(trained) / PIPELINE), commit.digest


@lru_cache(maxsize=1)
def load_parser(name: str) -> Any:
    """Load the spaCy pipeline `name`, the path of a folder or an installed package, without its UNUSED components.

    The last pipeline is kept in memory, so that a second call with the same name does not load it again. Raises
    UsageError if the pipeline has no parser.
    """
    import spacy

    pipeline = spacy.load(name, exclude=list(UNUSED))
    if "parser" not in pipeline.pipe_names:
        raise UsageError(
            f"The spaCy pipeline {name} has no parser, only {', '.join(pipeline.pipe_names)}. Choose another"
            " parse.pipeline."
        )
    return pipeline
