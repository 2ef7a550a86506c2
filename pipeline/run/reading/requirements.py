"""Checks before the first job of a run. One message lists every file and extra that is missing."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.messages import listed
from pipeline.errors import InputError, JointspaceError, UsageError, similar_name
from pipeline.run import machine
from pipeline.run.jobs import Jobs
from pipeline.run.layout import Artefact
from pipeline.run.stage import Names, Outside, list_inputs

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run import Run, Stage

MIN_TRAIN_FOR_TENTH = 10
"""Smallest number of photos in train with which `require_splits` suggests that a tenth of them becomes another split. A
tenth of fewer photos is less than one photo."""


def require_all(run: "Run", stages: "Mapping[str, Stage]") -> None:
    """Check that everything that a run needs exists before its first job starts. `stages` are the declared stages.

    Raises UsageError if files or extras are missing, with a list of all of them, and UsageError if the demo would be
    written into a folder of the user's own. Raises InputError if the models or evaluations need a split that the
    collection does not have.
    """
    _require_demo_folder(run.config)
    missing = {
        line: None
        for stage, names in _jobs(stages, run)
        if not _is_made(run, stage, names)
        for line in (*_missing_files(run, stage, names), *_missing_extras(run.config, stage, *names))
    }
    if missing:
        raise UsageError(listed([*missing]))
    splits: Mapping[str, int] = {}  # If `ingest` has not run yet, `ingest` will check the splits.
    with suppress(JointspaceError):
        jobs = Jobs(run)
        if jobs.is_done(jobs.job(stages["ingest"], ())):
            splits = run.manifest.summary["splits"]
    require_splits(run.config, splits)


def require_splits(config: "Config", splits: Mapping[str, int]) -> None:
    """Check that the collection has the splits that the models and evaluations of a run need.

    `splits` maps each split of the collection to its number of photos. If the collection has no split train, dev or
    test, no split is needed, because nothing is trained or evaluated. Raises InputError, with the missing splits.
    """
    described = {"train", "dev", "test"} & splits.keys()
    models = config.every_model() if described else []
    learns = any(config.ensemble(name) or config.model(name).spec.made_by != "adopt" for name in models)
    learned = {"train", "dev"} if learns else set()
    missing = sorted((learned | {*config.evaluate.splits} if models else set()) - described)
    if not missing:
        return
    remedies = ["Assign photos to the split in the collection's list of splits"]
    if splits.get("train", 0) >= MIN_TRAIN_FOR_TENTH and not {*missing} <= {*config.collection.draw}:
        remedies.append(f"take a tenth of train with `collection: {{draw: [{', '.join(missing)}]}}`")
    if not learned & {*missing}:
        remedies.append("remove the split from evaluate.splits")
    raise InputError(
        f"In this collection, the split {' or '.join(missing)} has no photo with a caption, but the models or"
        f" evaluations of this run need such photos. {', or '.join(remedies)}."
    )


def _require_demo_folder(config: "Config") -> None:
    """Raise UsageError if `demo.generate` would write the demo into a folder of the user's own.

    The folder is accepted if it has the default name, if it already contains the demo, or if the configuration changes
    the section `demo`.
    """
    from pipeline.config.loading import load
    from pipeline.storage.demo_folder import MARK

    usual = load()
    root = Path(config.data_root)
    is_meant = root.name == Path(usual.data_root).name or (root / MARK).exists()
    if not config.demo.generate or is_meant or config.demo != usual.demo:
        return
    siblings = (str(folder) for folder in root.parent.glob("*") if folder.is_dir())
    near = None if root.exists() else similar_name(str(root), siblings)
    absent = "" if root.exists() else f"data_root {root} does not exist.{f' Did you mean {near}?' if near else ''} "
    raise UsageError(
        f"{absent}demo.generate is true, so the demo would be written into data_root, {root}. For your own photos, set"
        " `demo: {generate: false}`."
    )


def _jobs(stages: "Mapping[str, Stage]", run: "Run") -> "list[tuple[Stage, Names]]":
    """Return the jobs of a whole run (the rule `all`) as pairs (stage, names). A job follows the jobs that make its
    inputs."""
    every = [(stage, tuple(names)) for stage in stages.values() for names in stage.choices(run.config)]
    makers = {output.name: job for job in every for output in job[0].outputs(run.layout, *job[1])}
    jobs = {}

    def visit(stage: "Stage", names: Names) -> None:
        if (stage.name, names) in jobs:
            return
        with suppress(JointspaceError):  # The folder of the collection may no longer exist.
            for artefact in list_inputs(stage.reads(run.config, run.layout, *names)):
                # `migrate` reads features of an encoder that the present configuration may not have.
                if not isinstance(artefact, Outside) and artefact.name in makers:
                    visit(*makers[artefact.name])
        jobs[stage.name, names] = (stage, names)

    for stage in stages.values():
        for names in stage.wanted(run.config):
            visit(stage, tuple(names))
    return list(jobs.values())


def _is_made(run: "Run", stage: "Stage", names: Names) -> bool:
    outputs = stage.outputs(run.layout, *names)
    return all(
        (output.commit if isinstance(output, Artefact) else output.part_record(0)).exists() for output in outputs
    )


def _missing_files(run: "Run", stage: "Stage", names: Names) -> Iterator[str]:
    """Yield a line for each file of a job that the user must supply and that does not exist.

    Files that `make-demo` will write are left out. If the inputs of the job cannot be listed, yield the message of the
    error instead.
    """
    try:
        reads = list(list_inputs(stage.reads(run.config, run.layout, *names)))
    except JointspaceError as error:
        yield str(error)
        return
    for file in reads:
        if not isinstance(file, Outside) or file.path.exists():
            continue
        # `make-demo` writes the files of a demo, so these files may be missing.
        if not (run.config.demo.generate and file.path.is_relative_to(run.layout.data_root)):
            keys = "weights_root and `file` in" if file.name in ("weights", "detector") else "the path in"
            remedy = f"Put the file there, or correct {keys} the configuration."
            yield f"{' '.join([stage.command, *names])} reads {file.path.absolute()}, which does not exist. {remedy}"


def _missing_extras(config: "Config", stage: "Stage", *names: str) -> Iterator[str]:
    """Yield a line with the extra of jointspace that a job needs, if the library of this extra is not installed."""
    match stage.name:
        case "prepare_encoder" | "extract" | "encode_sentences":
            folder = {"extract": "features/", "encode_sentences": "text/"}.get(stage.name, "")
            entry = config.entry(folder + names[0])
            user = f"The {'encoder' if entry.modality == 'image' else 'text encoder'} {entry.name}"
            extra = entry.spec.extra
        case "extract_regions":
            user = f"regions.proposals: {config.regions.proposals}"
            extra = config.regions.proposals
        case "parse" if config.parse.engine == "spacy":
            user = "parse.engine: spacy"
            extra = "parse"
        case _:
            return
    if extra in machine.EXTRAS and not machine.is_installed(module := machine.EXTRAS[extra][0]):
        yield f"{user} needs {module}. Install it with `pip install 'jointspace[{extra}]'`"
