"""Checks before the first job of a run: everything that a configuration needs and that is missing, in one message."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import InputError, JointspaceError, UsageError, meant
from pipeline.plan import machine
from pipeline.run.jobs import Jobs
from pipeline.run.layout import Artefact
from pipeline.run.stage import Names, Outside, list_inputs

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run import Run, Stage

SHOWN = 10
"""Maximum number of missing files and extras that a message lists."""
DRAWN_FROM = 10
"""Number of photos of train from which a tenth is at least one photo."""


def require_all(run: "Run", stages: "Mapping[str, Stage]") -> None:
    """Raises UsageError that names every file and extra that the run of `stages` needs and that is not here, and where
    the demo would be drawn into a folder that was not meant for it; InputError if the manifest lacks a split."""
    _require_demo_folder(run.config)
    missing = {
        line: None
        for stage, names in _jobs(stages, run)
        if not _is_made(run, stage, names)
        for line in (*_missing_files(run, stage, names), *_missing_extras(run.config, stage, *names))
    }
    if missing:
        more = [f"and {len(missing) - SHOWN} more"] if len(missing) > SHOWN else []
        raise UsageError("; ".join([*missing][:SHOWN] + more))
    splits: Mapping[str, int] = {}  # where `ingest` has still to be run, it finds what is missing
    with suppress(JointspaceError):
        jobs = Jobs(run)
        if jobs.is_done(jobs.job(stages["ingest"], ())):
            splits = run.manifest.summary["splits"]
    require_splits(run.config, splits)


def require_splits(config: "Config", splits: Mapping[str, int]) -> None:
    """Raises InputError if the models of the run, or its evaluations, need a split that is not among the `splits` of
    the collection, by their numbers of photos. Nothing is needed where no photo has a caption, since nothing is learned
    or evaluated then."""
    described = {"train", "dev", "test"} & splits.keys()
    models = config.every_model() if described else []
    learns = any(config.ensemble(name) or config.model(name).spec.made_by != "adopt" for name in models)
    learned = {"train", "dev"} if learns else set()
    missing = sorted((learned | {*config.evaluate.splits} if models else set()) - described)
    if not missing:
        return
    remedies = ["name some in the collection's list of splits"]
    if splits.get("train", 0) >= DRAWN_FROM and not {*missing} <= {*config.collection.draw}:
        remedies.append(f"take a tenth of train by collection: {{draw: [{', '.join(missing)}]}}")
    if not learned & {*missing}:
        remedies.append("leave it out of evaluate.splits")
    raise InputError(
        f"no photo with a caption is in the split {' or '.join(missing)}, which the models or evaluations of this run"
        f" need; {', or '.join(remedies)}"
    )


def _require_demo_folder(config: "Config") -> None:
    """Raises UsageError if the demo would be drawn into a folder that was not meant for it: one with another name,
    without a demo, and of a configuration that does not change the section `demo`."""
    from pipeline.config.loading import load
    from pipeline.storage.demo_folder import MARK

    usual, root = load(), Path(config.data_root)
    is_meant = root.name == Path(usual.data_root).name or (root / MARK).exists()
    if not config.demo.generate or is_meant or config.demo != usual.demo:
        return
    siblings = (str(folder) for folder in root.parent.glob("*") if folder.is_dir())
    other = "" if root.exists() else meant(str(root), siblings)
    raise UsageError(
        f"data_root {root} is not the demo's folder, but demo.generate would draw the demo into it; {other}for your"
        " own photos set demo: {generate: false}"
    )


def _jobs(stages: "Mapping[str, Stage]", run: "Run") -> "list[tuple[Stage, Names]]":
    """Return the stages and names that `all` makes, each after the jobs that make its inputs."""
    every = [(stage, tuple(names)) for stage in stages.values() for names in stage.choices(run.config)]
    makers = {output.name: job for job in every for output in job[0].outputs(run.layout, *job[1])}
    jobs = {}

    def visit(stage: "Stage", names: Names) -> None:
        if (stage.name, names) in jobs:
            return
        with suppress(JointspaceError):  # of a collection that is gone
            for artefact in list_inputs(stage.reads(run.config, run.layout, *names)):
                # What `migrate` maps may be of an earlier configuration.
                if not isinstance(artefact, Outside) and artefact.name in makers:
                    visit(*makers[artefact.name])
        jobs[stage.name, names] = (stage, names)

    for stage in stages.values():
        for names in stage.wanted(run.config):
            visit(stage, tuple(names))
    return list(jobs.values())


def _is_made(run: "Run", stage: "Stage", names: Names) -> bool:
    outputs = stage.outputs(run.layout, *names)
    return all((output.commit if isinstance(output, Artefact) else output.part(0)).exists() for output in outputs)


def _missing_files(run: "Run", stage: "Stage", names: Names) -> Iterator[str]:
    """Yield a line for each missing file that a person has to bring for a job."""
    try:
        reads = list(list_inputs(stage.reads(run.config, run.layout, *names)))
    except JointspaceError as error:
        yield str(error)
        return
    for file in reads:
        if not isinstance(file, Outside) or file.path.exists():
            continue
        if not (run.config.demo.generate and file.path.is_relative_to(run.layout.data_root)):  # which is drawn
            yield f"{' '.join([stage.command, *names])} reads {file.path}, which does not exist"


def _missing_extras(config: "Config", stage: "Stage", *names: str) -> Iterator[str]:
    """Yield a line with the extra that a job needs, if it is not installed."""
    match stage.name:
        case "prepare_encoder" | "extract" | "encode_sentences":
            folder = {"extract": "features/", "encode_sentences": "text/"}.get(stage.name, "")
            entry = config.entry(folder + names[0])
            user = f"encoder {entry.name}" if entry.modality == "image" else f"text encoder {entry.name}"
            extra = entry.spec.extra
        case "extract_regions":
            user, extra = f"regions.proposals {config.regions.proposals}", config.regions.proposals
        case "parse" if config.parse.engine == "spacy":
            user, extra = "parse.engine spacy", "parse"
        case _:
            return
    if extra in machine.EXTRAS and not machine.is_installed(module := machine.EXTRAS[extra][0]):
        yield f"{user} needs {module}: pip install 'jointspace[{extra}]'"
