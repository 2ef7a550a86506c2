"""`ingest`: photographs and texts of any known format into the manifest."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.plan.needs import PYTHON, Need, per_image
from pipeline.run import Inputs, Job, Outside, Run, Stage

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.remote.scratch import Scratch

logger = logging.getLogger(__name__)


def ingest(run: Run, job: Job, processes: int | None = None) -> None:
    """Read a collection, check every image, and write the manifest of what can be used; a killed run is resumed."""
    from functools import partial

    from tqdm import tqdm

    from pipeline import runtime
    from pipeline.collections.assembly import Assembly
    from pipeline.collections.formats import FORMATS
    from pipeline.collections.formats.remote_files import open_collection
    from pipeline.collections.intake import Intake, leave_out, parse_takedown
    from pipeline.collections.records import Options
    from pipeline.errors import JointspaceError
    from pipeline.images.decode import ImageLimits, Inspection, inspect
    from pipeline.storage.inspected import InspectedImages
    from pipeline.storage.manifest_writer import write_manifest
    from pipeline.storage.rejects import remove_rejects, write_rejects
    from pipeline.storage.sources import ImageSource, read_list
    from pipeline.workers import isolated_map

    root, settings = run.layout.data_root, run.config.collection
    files, columns, split, own = settings.files, settings.columns, settings.default_split, settings.kept_columns
    scratch = run.scratch if _scratch(run.config) else None
    options = Options(files, columns, split, settings.follow_links, own, scratch)
    records = FORMATS[settings.format](root, options)
    if settings.takedown:
        records = leave_out(records, parse_takedown(read_list(Path(settings.takedown), "collection.takedown")))
    records = tqdm(records, "read", unit=" records", disable=None)
    assembly = Assembly(Intake(settings.max_sentence_chars, own).add(records))
    limits = ImageLimits.from_settings(settings)
    source = ImageSource(root, settings.follow_links, None if isinstance(root, Path) else scratch)
    look = partial(inspect, source.read, limits)
    at_once = runtime.threads() if processes is None else processes
    known = InspectedImages(job.path.with_name("manifest.parts"), open_collection(root, options).state, str(limits))
    outcomes = known.resume(assembly.locations, lambda wanted: isolated_map(look, wanted, at_once), Inspection._make)
    collection = assembly.collect(tqdm(outcomes, "check", len(assembly), unit=" images", disable=None))

    rejects = [reject._asdict() for reject in collection.rejects]
    report = job.path.with_name("rejects.jsonl")
    remove_rejects(report)
    try:
        collection.check(settings.reject_limit, str(report), learned_from=settings.default_split != "gallery")
    except JointspaceError:
        if rejects:
            write_rejects(report, rejects)  # outside of the manifest, which is not written
        raise
    resolved = root.resolve() if isinstance(root, Path) else root
    objects = {} if resolved is not root else _tars(run, collection.tables["images"])
    counts, size = collection.counts, run.config.shard_size
    write_manifest(job.path, resolved, collection.tables, rejects, counts, size, objects)
    known.clear()
    for line in collection.describe():
        logger.info(line)
    if not collection.counts["sentences"]["kept"] and settings.default_split != "gallery":
        logger.warning(
            "no image has a sentence, so that there is nothing to learn from; `jointspace apply BUNDLE %s --output DIR`"
            " indexes these photographs by what was learned from others", root,
        )  # fmt: skip


def _tars(run: Run, images: "pa.Table") -> dict[str, tuple[int, str]]:
    """Size and sha256 of the remote tar shards of these images, by their paths."""
    import pyarrow.compute as pc

    fetched, root = run.scratch.fetched, run.layout.data_root
    paths = pc.unique(images["path"].filter(pc.is_valid(images["offset"]))).to_pylist()
    return {path: fetched[str(root / path)] for path in paths}


def _scratch(config) -> "Scratch | None":
    """For a collection of which something is remote."""
    from pipeline.remote.paths import is_url
    from pipeline.remote.scratch import Scratch

    return (
        Scratch.of(config.remote) if any(map(is_url, (config.data_root, *config.collection.files.values()))) else None
    )


def _keys(config) -> dict:
    """`state` changes with the collection, whose photographs are too many to be inputs; a demo has its commit."""
    from pipeline.collections.watching import describe_state
    from pipeline.remote.paths import place

    chosen, state = config.collection, ""
    if not config.demo.generate:
        state = describe_state(place(config.data_root), chosen.format, chosen.files, _scratch(config))
    collection = chosen.model_dump()
    return {"data_root": config.data_root, "collection": collection, "shard_size": config.shard_size, "state": state}


def _reads(config, layout) -> Inputs:
    """The demo, or the lists of the collection; and the list of what is to be taken down."""
    from pipeline.collections.watching import list_files

    chosen = config.collection
    taken = {"takedown": Outside(Path(chosen.takedown))} if chosen.takedown else {}
    if config.demo.generate:
        return {"demo": layout.demo, **taken}
    lists = list_files(layout.data_root, chosen.format, chosen.files, _scratch(config))
    return {**{str(path): Outside(path) for path in lists}, **taken}


STAGE = Stage(
    ingest,
    version=8,
    needs=Need(
        lambda s: PYTHON + 600 + 0.006 * s.images,
        lambda s: 0.001 * s.images,
        per_image(100),
        "images, each decoded once",
    ),
    keys=_keys,
    reads=_reads,
    writes=lambda layout: layout.manifest,
    threads=8,
    options=(
        click.Option(
            ["--processes"], type=click.IntRange(min=0), help="Processes that decode; 0 for none. [default: --threads]"
        ),
    ),
)
