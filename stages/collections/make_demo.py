"""`make-demo`: the embedded demo collection, in the form that a folder of the user's own has."""

import logging
from pathlib import Path

import click

from stages import options


@click.command("make-demo")
@options.output("folder", "The collection: a new or empty folder, or one that this command has made.")
@options.config
@click.option("--processes", type=click.IntRange(min=0), help="Processes that draw; 0 for none. [default: --threads]")
def command(output: Path, config_path: Path | None, processes: int | None) -> None:
    """Draw the demo collection: images, sentences and their trees, boxes, weak text."""
    from dataclasses import asdict, replace
    from functools import partial

    from tqdm import tqdm

    from examples.demo import VERSION, DemoSettings, collection_texts, scene_record
    from pipeline import config, runtime
    from pipeline.errors import JointspaceError
    from pipeline.storage.drawn import DrawnFolder
    from pipeline.workers import Failure, isolated_map

    logger = logging.getLogger(__name__)
    settings = DemoSettings(**config.load(config_path).demo.model_dump(exclude={"generate"}))
    folder = DrawnFolder(output, VERSION, asdict(settings))
    if folder.is_complete():
        logger.info("%s is there already", output)
        return
    folder.claim()

    outcomes = isolated_map(
        partial(scene_record, settings), range(settings.images), runtime.threads() if processes is None else processes
    )
    records = []
    for record in tqdm(outcomes, "make-demo", settings.images, unit=" images", disable=None):
        if isinstance(record, Failure):
            raise JointspaceError(
                f"image {len(records)} of the demo could not be drawn ({record.reason}); run make-demo again"
            )
        folder.add(record.name, record.jpeg)
        records.append(replace(record, jpeg=b""))

    folder.commit(collection_texts(records))
    logger.info("%d images with sentences and %d with weak text", settings.targets, settings.weak)
