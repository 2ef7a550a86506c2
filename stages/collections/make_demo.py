"""`make-demo`: draws the demo collection, a folder of synthetic photos in the format of a user's collection."""

import logging
from pathlib import Path

import click

from pipeline.errors import UsageError
from pipeline.run import Job, Run, stage
from stages.commands import FOLDER, begin, config_option, set_config_option


@stage(
    version=2,
    threads=8,
    choices=lambda config: [()] if config.demo.generate else [],
    keys=lambda config: config.demo.model_dump(),
    writes=lambda layout: layout.demo,
)
def make_demo(run: Run, job: Job, processes: int | None = None) -> None:
    """Draw the demo collection: synthetic photos with captions, trees of the captions, boxes, and weak texts.

    The section `demo` of the configuration sets the number of photos in each split and the seed. A folder that already
    has this demo is not changed.
    """
    from dataclasses import asdict, replace
    from functools import partial

    from tqdm import tqdm

    from pipeline.compute import runtime
    from pipeline.compute.workers import Failure, isolated_map
    from pipeline.demo import VERSION, DrawingSettings, collection_texts, scene_record
    from pipeline.errors import JointspaceError
    from pipeline.storage.demo_folder import DemoFolder

    logger = logging.getLogger(__name__)
    settings = DrawingSettings(**run.config.demo.model_dump(exclude={"generate"}))
    folder = DemoFolder(job.path, VERSION, asdict(settings))
    if folder.is_complete():
        logger.info("%s already has this demo", job.path)
        return
    folder.claim()

    outcomes = isolated_map(
        partial(scene_record, settings), range(settings.images), runtime.threads() if processes is None else processes
    )
    records = []
    for record in tqdm(outcomes, "make-demo", settings.images, unit=" images", disable=None):
        if isinstance(record, Failure):
            raise JointspaceError(
                f"Image {len(records)} of the demo could not be drawn ({record.reason}). Run the same command again."
            )
        folder.add(record.name, record.jpeg)
        records.append(replace(record, jpeg=b""))

    folder.commit(collection_texts(records))
    logger.info("drew %d photos with captions and %d photos with weak text", settings.targets, settings.weak)


@click.command("make-demo", help=make_demo.function.__doc__)
@click.option("--run", "root", type=FOLDER, help="Draw the demo of this run into the run's data_root.")
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    help="Instead of --run: draw into this folder, which must be new, be empty, or hold a demo.",
)
@set_config_option
@config_option
@click.option(
    "--processes", type=click.IntRange(min=0), metavar="N",
    help="Number of processes that draw photos. 0 draws in this process. [default: the value of --threads]",
)  # fmt: skip
def command(
    root: Path | None, output: Path | None, set_config_path: Path | None, config_path: Path | None,
    processes: int | None,
) -> None:  # fmt: skip
    from pipeline.config.loading import load
    from pipeline.run.runner import run_stage

    if root is not None and output is None:
        run = begin(root, set_config_path or config_path)
        make_demo.select(run.config, [])
    elif output is not None and root is None:
        run = Run(output, load(config_path).model_copy(update={"data_root": str(output)}))
    else:
        raise UsageError(
            "make-demo needs either --run RUN or --output FOLDER, and not both. Give one of these options."
        )
    run_stage(run, make_demo, processes=processes)
