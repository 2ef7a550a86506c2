"""ingest: photographs and texts of any known form into the manifest."""

import logging
from pathlib import Path

import click

from stages import options

logger = logging.getLogger(__name__)


@click.command("ingest")
@click.option("--root", type=options.FOLDER, required=True, help="Folder of the collection.")
@options.output("folder", "The manifest.")
@options.config
@click.option("--processes", type=click.IntRange(min=0), help="Processes that decode; 0 for none. [default: --threads]")
def command(root: Path, output: Path, config_path: Path | None, processes: int | None) -> None:
    """Read a collection, check every image, and write the manifest of what can be used."""
    from functools import partial

    from tqdm import tqdm

    from pipeline import runtime
    from pipeline.collections.assembly import Assembly
    from pipeline.collections.formats import FORMATS
    from pipeline.collections.intake import Intake
    from pipeline.collections.records import Options
    from pipeline.collections.takedown import leave_out, parse_takedown
    from pipeline.config import load
    from pipeline.errors import JointspaceError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.inspection import inspect
    from pipeline.storage.manifest import remove_rejects, write_manifest, write_rejects
    from pipeline.storage.sources import ImageSource, read_list
    from pipeline.workers import isolated_map

    config = load(config_path)
    settings = config.collection
    records = FORMATS[settings.format](
        root, Options(settings.files, settings.columns, settings.default_split, settings.follow_links)
    )
    if settings.takedown:
        records = leave_out(records, parse_takedown(read_list(Path(settings.takedown), "collection.takedown")))
    records = tqdm(records, "read", unit=" records", disable=None)
    assembly = Assembly(Intake(settings.max_sentence_chars).add(records))
    limits = ImageLimits.from_settings(settings)
    look = partial(inspect, ImageSource(root, settings.follow_links).read, limits)
    outcomes = isolated_map(look, assembly.locations(), runtime.threads() if processes is None else processes)
    collection = assembly.collect(tqdm(outcomes, "check", len(assembly), unit=" images", disable=None))

    rejects = [reject._asdict() for reject in collection.rejects]
    report = output.with_name("rejects.jsonl")
    remove_rejects(report)
    try:
        collection.check(settings.reject_limit, str(report))
    except JointspaceError:
        if rejects:
            write_rejects(report, rejects)  # outside of the manifest, which is not written
        raise
    write_manifest(output, root.resolve(), collection.tables, rejects, collection.counts, config.shard_size)
    for line in collection.describe():
        logger.info(line)
