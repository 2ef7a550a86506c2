"""`calibrate`: sets the line of likely matches of an index with captions that the user writes."""

import logging
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import UsageError
from pipeline.printable import counted, printable
from stages.commands import FILE, FOLDER, say_next

if TYPE_CHECKING:
    from pipeline.foreign.image_names import StoredPhoto
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)


@click.command("calibrate")
@click.argument("index", type=FOLDER)
@click.argument("pairs", type=FILE)
@click.option("--ask", is_flag=True, help="Show photos one by one, and add the captions that you type to PAIRS, a CSV.")
@click.option(
    "--rows", "count", type=click.IntRange(min=1), metavar="N",
    help="With --ask: number of photos with captions at which it stops. [default: 50, which are needed]",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random choice of photos.")
def command(index: Path, pairs: Path, ask: bool, count: int | None, seed: int) -> None:
    """Show where likely matches end, by captions that you write.

    PAIRS is a table (CSV, TSV or Parquet) with the columns file and caption, for at least 50 photos of INDEX. Write
    what you would type to find the photo. With --ask, Enter skips a photo and Ctrl-D stops. Run the same command
    again to continue.
    """
    from pipeline.index.calibration import MIN_DEV_IMAGES
    from pipeline.run.reading.calibration_pairs import calibrate_index
    from pipeline.run.reading.results import search_command
    from pipeline.storage.index_changes import changing

    if ask and not _ask(index, pairs, max(count or 0, MIN_DEV_IMAGES), seed):
        return
    with changing(index, None) as change:
        calibration = calibrate_index(change, pairs, seed)
    log.info(
        "%s shows where likely matches end: %.0f%% of searches find their photo above this line", index,
        100 * calibration.coverage,
    )  # fmt: skip
    say_next(lambda: search_command(index))


def _ask(folder: Path, path: Path, count: int, seed: int) -> bool:
    """Ask for captions of photos until the table at `path` has `count` photos, and return whether it has them.

    Raises UsageError if the table is not one that `record_pair` writes, or if the index has too few photos.
    """
    from pipeline.index.search import Searcher
    from pipeline.run.reading import calibration_pairs
    from pipeline.storage.locks import hold
    from pipeline.storage.stored_index import open_index

    index = open_index(folder)
    calibration_pairs.require_calibratable(Searcher(index))
    header = ",".join(calibration_pairs.HEADER)
    if path.suffix.lower() != ".csv" or (
        path.exists() and path.stat().st_size and path.read_text("utf-8-sig", "replace").splitlines()[0] != header
    ):
        raise UsageError(f"{path} cannot be continued, because --ask needs a CSV file whose first line is {header}.")
    with hold(path), tempfile.TemporaryDirectory() as extracted:
        written = calibration_pairs.read_pairs(path) if path.exists() and path.stat().st_size else []
        paired = set(calibration_pairs.match_pairs(index, path, written))
        photos = calibration_pairs.photos_without_captions(index, paired, seed)
        missing = count - len(paired)
        if missing > len(photos):
            raise UsageError(
                f"{folder} has {counted(len(photos), 'further photo')} to ask for, but {missing} are needed. Photos"
                " that trained the model, and photos with the name of another photo, are not asked for."
            )
        click.echo("Write what you would type to find each photo. Enter skips a photo, and Ctrl-D stops.")
        for photo in photos:
            if missing <= 0:
                break
            click.echo(printable(f"{count - missing + 1} of {count}: {_file_of(index, photo, Path(extracted))}"))
            try:
                caption = click.prompt("caption", default="", show_default=False).strip()
            except click.Abort:
                click.echo()
                break
            if caption:
                calibration_pairs.record_pair(path, photo.name, caption)
                missing -= 1
    if missing > 0:
        again = shlex.join(["jointspace", "calibrate", str(folder), str(path), "--ask"])
        log.info("%s has captions of %s; to continue: %s", path, counted(count - missing, "photo"), again)
    return missing <= 0


def _file_of(index: "StoredIndex", photo: "StoredPhoto", extracted: Path) -> str:
    """Return the path of a photo. A photo in a shard is first written to the folder `extracted`."""
    import numpy as np

    if photo.member is None:
        return photo.whole
    images = index.packed_table("images")
    (row,) = images.records(images.find("image_id", np.array([photo.image_id])).tolist())
    path = extracted / Path(photo.member).name
    path.write_bytes(index.photographs().read(row))
    return str(path)
