"""`ingest`: reads a collection in any known format, checks its photos, and writes the manifest."""

import logging
import shlex
from collections.abc import Iterator, Mapping, Set
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.printable import counted
from pipeline.run import Inputs, Job, Layout, Outside, Run, StageRun, stage

if TYPE_CHECKING:
    from pipeline.collections.assembly import Assembly, Collection
    from pipeline.collections.files import CollectionFolder
    from pipeline.config.collection import CollectionSettings
    from pipeline.config.names import Config
    from pipeline.foreign.image_names import Takedown

INSPECTED_FOLDER = "manifest.parts"
"""Name of the folder in the run that keeps the results of the check of photos, until the manifest is written."""
SPILL_FOLDER = "tables.parts"
"""Name of the folder in the run that holds the records of the collection which do not fit into memory."""
logger = logging.getLogger(__name__)


def _keys(config: "Config") -> dict[str, object]:
    """Return the keys that decide the manifest.

    `state` is a digest of the names, sizes and times of all files of the collection, because the photos are too many to
    be declared as inputs. For a demo, `state` is empty, because the demo is an input.
    """
    from pipeline.collections.formats import describe_state

    chosen = config.collection
    state = ""
    if not config.demo.generate:
        state = describe_state(Path(config.data_root), chosen.format, chosen.files, chosen.exclude)
    collection = chosen.model_dump(exclude={"memory_gb"})
    return {"data_root": config.data_root, "collection": collection, "shard_size": config.shard_size, "state": state}


def _reads(config: "Config", layout: Layout) -> Inputs:
    """Return the inputs: the demo or the lists of the collection, the takedown list, the decisions about suspicious
    captions, and the lists of photos that `remove` has removed from an index."""
    from pipeline.collections.formats import list_files

    chosen = config.collection
    lists = []
    if not config.demo.generate:
        paths = list_files(layout.data_root, chosen.format, chosen.files)
        lists = [Outside(str(path), path) for path in paths]
    removed = {path.relative_to(layout.root).as_posix(): path for path in layout.removed}
    return {
        "demo": layout.demo if config.demo.generate else None,
        "lists": lists,
        "takedown": Outside("takedown", Path(chosen.takedown)) if chosen.takedown else None,
        "decisions": Outside("decisions", layout.decisions) if layout.decisions.exists() else None,
        "removed": {name: Outside(name, path) for name, path in removed.items()},
    }


@stage(
    version=16,
    threads=8,
    keys=_keys,
    reads=_reads,
    writes=lambda layout: layout.manifest,
    options=(
        click.Option(
            ["--processes"],
            type=click.IntRange(min=0),
            help="Number of processes that decode photos. 0 decodes in this process. [default: the value of --threads]",
        ),
        click.Option(
            ["--check-splits"],
            is_flag=True,
            help="Fail if the collection lacks a split that the models or evaluations of the run need, as `run` does.",
        ),
    ),
)
def ingest(run: StageRun, job: Job, processes: int | None = None, check_splits: bool = False) -> None:
    """Read a collection, check every photo, and write the manifest of the usable photos and their captions.

    If the job is killed, the next job does not decode photos again that were already checked.
    """
    from tqdm import tqdm

    from pipeline.collections import formats
    from pipeline.collections.assembly import Assembly
    from pipeline.collections.files import CollectionFolder
    from pipeline.collections.formats import count_files
    from pipeline.collections.formats.vectors import FORMAT
    from pipeline.collections.inspection import clear
    from pipeline.collections.intake import Intake
    from pipeline.collections.records import Options
    from pipeline.errors import InputError
    from pipeline.foreign.files import read_lines
    from pipeline.run.reading.precomputed import inspect_vectors
    from pipeline.run.reading.requirements import require_splits
    from pipeline.storage.decisions import latest, read_decisions
    from pipeline.storage.index_changes import parse_removed
    from pipeline.storage.manifest import write_manifest

    root = run.layout.data_root
    settings = run.config.collection
    options = Options.from_settings(settings)
    records = tqdm(formats.read(settings.format, root, options), "read", unit=" records", disable=None)
    folder = None if settings.format == FORMAT else CollectionFolder(root, options)
    lists = run.inputs.paths("removed")
    removed = list(parse_removed(line for path in lists.values() for line in read_lines(path)))
    asked = []
    if takedown := run.inputs.path("takedown"):
        asked = read_lines(takedown)
        lists = {"takedown": takedown, **lists}
    decided = []
    if decisions := run.inputs.path("decisions"):
        answers = latest(read_decisions(decisions))
        decided = ["\t".join(filter(None, pair)) for pair, answer in answers.items() if answer == "wrong"]
        lists |= {"decisions": decisions} if decided else {}
    parts = job.path.with_name(INSPECTED_FOLDER)
    spill = job.path.with_name(SPILL_FOLDER)
    longest = settings.max_sentence_chars
    memory = settings.memory_gb
    with closing(Intake(longest, settings.kept_columns, spill, folder, [*asked, *decided], memory, removed)) as intake:
        # Vectors without photos are divided into splits by name, because the hash of a vector changes with its encoder.
        assembly = Assembly(intake.add(records), by_name=folder is None, draw=settings.draw)
        if check_splits:
            require_splits(run.config, assembly.splits)
        if not len(assembly) and len(intake.takedown.unmatched) < len(intake.takedown.lines):
            where = " and ".join(map(str, lists.values()))
            raise InputError(
                f"{where} takes down every photo of {root}, so no photo is left. Remove some lines of the list."
            )
        count_files(root, settings.format, options, intake.tables, bool(lists))
        if folder is None:
            outcomes = inspect_vectors(root, options, (path for path, _, _ in assembly.locations()))
        else:
            outcomes = _inspect(run, folder, assembly, parts, processes)
        collection = assembly.collect(tqdm(outcomes, "check", len(assembly), unit=" images", disable=None))
        warnings = list(_unmatched_lines(lists, intake.takedown, root, set(asked), set(decided)))
        if decisions and decided:
            warnings += _describe_decisions(decisions, intake.takedown, set(decided))
        _require_usable(collection, settings, job.path.with_name("rejects.jsonl"))
        write_manifest(
            job.path,
            root.resolve(),
            collection.parts(),
            (reject._asdict() for reject in collection.rejects),
            {**collection.counts, "files": options.tally.counts()},
            run.config.shard_size,
            options.tally.left_out,
            job.provenance,
            warnings,
        )
    clear(parts)
    for line in (*collection.format_summary(), *options.tally.format_summary()):
        logger.info(line)
    if not collection.counts["sentences"]["kept"] and settings.default_split != "gallery":
        logger.warning(
            "No photo has a caption, so no model can be trained on this collection. To search these photos, use the"
            " model of an index that was built from other photos: %s",
            shlex.join(["jointspace", "apply", "INDEX", str(root), "--output", "FOLDER"]),
        )


def _inspect(
    run: Run, folder: "CollectionFolder", assembly: "Assembly", parts: Path, processes: int | None
) -> Iterator[Any]:
    """Check each photo of `assembly`, and yield its Inspection, or a Failure if the photo cannot be used. Results are
    kept in the folder `parts`, from which an interrupted check is resumed.

    `processes` is the number of decoding processes (None: the number of threads). With the key `scheduler`, a Dask
    cluster checks the photos instead.
    """
    from functools import partial

    from pipeline.collections.inspection import InspectedImages
    from pipeline.compute import runtime
    from pipeline.images.decode import Inspection, inspect
    from pipeline.images.opening import ImageLimits
    from pipeline.run.runner import on_cluster
    from pipeline.storage.sources import ImageSource

    settings = run.config.collection
    cluster = None
    limits = ImageLimits.from_settings(settings)
    look = partial(inspect, ImageSource(run.layout.data_root, settings.follow_links).read, limits)
    if run.config.scheduler:
        cluster = partial(on_cluster, scheduler=run.config.scheduler, settings=run.config.cluster)
    inspected = InspectedImages(parts, folder.state, f"ingest {ingest.version}: {limits}")
    processes = runtime.threads() if processes is None else processes
    return inspected.resume(assembly.locations, look, Inspection._make, processes, cluster)


def _unmatched_lines(
    lists: Mapping[str, Path], takedown: "Takedown", root: Path, own: Set[str], decided: Set[str]
) -> Iterator[str]:
    """Log a warning for each line of a takedown or removal list that matches no photo or caption of the collection.

    `lists` maps the kind of each list to its file, and `root` is the folder of the collection. Yield the warnings about
    the lines `own` of the user's takedown list. Lines that come only from decisions (`decided`) are ignored.
    """
    where = " and ".join(map(str, lists.values()))
    for line, why in takedown.unmatched.items():
        if line in decided and line not in own:
            continue
        why = why or f", but no photo of {root} has that name" + " and caption" * ("\t" in line)
        warning = f"{lists['takedown'] if line in own else where} names {line!r}{why}"
        logger.warning(warning)
        if line in own:
            yield warning


def _describe_decisions(path: Path, takedown: "Takedown", decided: Set[str]) -> Iterator[str]:
    """Log how many photos and captions are left out because of the decisions in the file `path`.

    `decided` has the lines that the decisions have added to the takedown list. If some lines match no photo or caption,
    log and yield a warning with their number.
    """
    lost = decided & takedown.unmatched.keys()
    captions = sum("\t" in line for line in decided - lost)
    photos = counted(len(decided) - len(lost) - captions, "photo")
    logger.info("The decisions in %s leave out %s and %s.", path, photos, counted(captions, "caption"))
    if lost:
        warning = (
            f"{path}: {len(lost)} of {len(decided)} wrong pairs match no photo and caption of the collection, such as"
            f" {min(lost)!r}. Remove their rows if the photos or captions were corrected or deleted."
        )
        logger.warning(warning)
        yield warning


def _require_usable(collection: "Collection", settings: "CollectionSettings", report: Path) -> None:
    """Check the collection with `Collection.check`, which raises InputError or RejectLimitError if the collection
    cannot be used.

    If the check fails, there is no manifest, so the rejects are written to the file `report`. A `report` of an earlier
    job is removed.
    """
    from pipeline.errors import JointspaceError
    from pipeline.storage.manifest import write_rejects

    report.unlink(missing_ok=True)
    try:
        collection.check(settings.reject_limit, str(report), learned_from=settings.default_split != "gallery")
    except JointspaceError:
        if collection.left_out.counts:
            write_rejects(report, (reject._asdict() for reject in collection.rejects))
        raise
