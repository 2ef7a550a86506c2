"""`calibrate`: sets the line of likely matches of an index with captions that the user writes."""

import logging
from pathlib import Path

import click

from pipeline.errors import UsageError
from pipeline.printable import printable
from stages.commands import FILE, FOLDER, say_next


@click.command("calibrate")
@click.argument("index", type=FOLDER)
@click.argument("pairs", type=FILE, default="pairs.csv")
@click.option("--ask", is_flag=True, help="Show photos in turn, and add the captions that you type to PAIRS, a CSV.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random choice of photos.")
def command(index: Path, pairs: Path, ask: bool, seed: int) -> None:
    """Show where likely matches end, by captions that you write.

    PAIRS (by default pairs.csv) is a table (CSV, TSV or Parquet) with the columns file and caption. It needs captions
    of at least 50 photos of INDEX. Write what you would type to find the photo. With --ask, Enter skips a photo and
    Ctrl-D stops. Run the same command again to continue.
    """
    from pipeline.run.reading.calibration_pairs import calibrate_index
    from pipeline.run.reading.results import search_command
    from pipeline.storage.index_changes import changing

    if ask:
        _ask(index, pairs, seed)
    with changing(index, None) as change:
        coverage = calibrate_index(change, pairs, seed).coverage
    log = logging.getLogger(__name__)
    log.info(
        "%s: the line below the likely matches was set so that %.0f%% of searches have the right photo above this"
        " line.",
        index,
        100 * coverage,
    )
    say_next(lambda: search_command(index))


def _ask(folder: Path, path: Path, seed: int) -> None:
    """Ask for captions of photos of the index in `folder`, and add them to the table at `path`, until this table has
    MIN_DEV_IMAGES photos or the user stops. `seed` draws the photos.

    Raises UsageError if the name of the table does not end in .csv, or if the table was not begun by `record_pair`.
    """
    from pipeline.index.calibration import MIN_DEV_IMAGES
    from pipeline.run.reading import calibration_pairs
    from pipeline.storage.locks import hold
    from pipeline.storage.stored_index import open_index

    index = open_index(folder)
    calibration_pairs.open_text_searcher(index)
    has_one_root = len({shard.card.data_root for shard in index.shards}) == 1
    with hold(path):
        text = path.read_text("utf-8", "replace") if path.exists() else ""
        if path.suffix.lower() != ".csv" or (text and not text.startswith(calibration_pairs.HEADER)):
            raise UsageError(
                f"Captions cannot be added to {path}. With --ask, name a new file that ends in .csv, or a file that an"
                " earlier call with --ask has written."
            )
        described = set(calibration_pairs.match_pairs(index, calibration_pairs.read_pairs(path) if text else []))
        click.echo("Write what you would type to find each photo. Enter skips a photo, and Ctrl-D stops.")
        for photo in calibration_pairs.photos_to_describe(index, described, seed):
            if len(described) >= MIN_DEV_IMAGES:
                break
            click.echo(printable(f"{len(described) + 1} of {MIN_DEV_IMAGES}: {photo.whole}"))
            try:
                caption = click.prompt("caption", default="", show_default=False).strip()
            except click.Abort:
                break
            if caption:
                calibration_pairs.record_pair(path, photo.name if has_one_root else photo.whole, caption)
                described.add(photo)
