"""`suggest`: says which photos to caption first."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError, UsageError
from stages.commands import PATH, output, say

if TYPE_CHECKING:
    import numpy as np


@click.command("suggest")
@click.argument("source", metavar="RUN|VECTORS", type=PATH)
@click.option("-n", "--count", type=click.IntRange(min=10), default=100, show_default=True, help="Number of photos.")
@output("Folder for captions.tsv and splits.tsv. It may be the folder of the photos.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
              help="Seed of the random photos for dev and test.")  # fmt: skip
def command(source: Path, count: int, output: Path, seed: int) -> None:
    """Suggest which photos to caption first.

    The command chooses photos by their features: the features of a RUN, which may have no captions, or a file of
    VECTORS with the names of the photos (such as images.npy with images.txt). The command writes captions.tsv, in which
    you write a caption after the tab of each line, and splits.tsv. Photos of the run with a caption are not suggested.
    A tenth of the suggested photos are random photos for dev, and a tenth for test. If no photo had a caption before,
    put both files into the folder of the photos, and `init` and `run` fit a model to your captions.
    """
    from pipeline.models.linear.selection import choose_photos
    from pipeline.storage.batch import publish_text

    files = [output / name for name in ("splits.tsv", "captions.tsv")]
    if existing := [path for path in files if path.exists()]:
        raise UsageError(f"{existing[0]} exists already. Name another folder with --output, or move this file away.")
    vectors, names, captioned = _read_vectors(source)
    if unusable := [name for name in names if "\t" in name or len(name.splitlines()) != 1]:
        raise InputError(
            f"The file name of the photo {unusable[0]!r} has a tab or a line end, so the photo cannot be in the list."
            " Rename the file."
        )
    chosen = choose_photos(vectors, count, seed, captioned)
    rows = [(names[row], split) for split, numbers in chosen._asdict().items() for row in numbers]
    output.mkdir(parents=True, exist_ok=True)
    publish_text(files[0], "".join(f"{name}\t{split}\n" for name, split in rows))
    publish_text(files[1], "".join(f"{name}\t\n" for name, _ in rows))
    say(f"Write a caption after the tab of each line of {files[1]}.")
    if len(captioned):
        say(f"{len(captioned):,} photos have captions already and are not suggested.")
        say("Then add the lines of both files to the lists of your collection, and run `jointspace init` with it.")
    else:
        say("Then put both files into the folder of the photos, and run `jointspace init` with this folder.")


def _read_vectors(source: Path) -> "tuple[dict[str, np.ndarray], list[str], np.ndarray]":
    """Read the vectors (n, D) of each image encoder of a run, or the vectors of a file. Return them as name of the
    encoder -> vectors, with the name `images` for the vectors of a file.

    Also return the names (n,) of the photos, and the rows of the photos that have captions. The vectors of a file have
    no captions.

    Raises UsageError if `source` is neither a file nor a run, or if a photo of the run is inside another file. Raises
    IntegrityError if the run has no features, or if a vector of the file is not finite.
    """
    import numpy as np

    from pipeline.compute.precision import require_finite
    from pipeline.foreign.vectors import Source, open_foreign
    from pipeline.run import Run
    from pipeline.run.run import is_run, not_a_run
    from pipeline.storage.features import FeatureRows

    if source.is_file():
        given = open_foreign(Source(source, None, None))
        vectors = given.take(np.arange(len(given)))
        require_finite(source, "vectors", vectors)
        return {"images": vectors}, given.names or [], np.zeros(0, np.int64)
    if not is_run(source):
        raise not_a_run(source)
    run = Run(source)
    if run.manifest.images["member"].null_count < run.manifest.n_images:
        raise UsageError(
            f"The photos of {source} are inside tar or Parquet files. A captions.tsv next to these files is not read."
            " Call jointspace.suggest in Python with the features of the run."
        )
    ids = np.arange(run.manifest.n_images)
    encoders = [entry.name for entry in run.config.encoders]
    vectors = {name: FeatureRows(run.features, name, ids)[:] for name in encoders}
    return vectors, run.manifest.images["path"].to_pylist(), np.unique(run.manifest.sentence_images)
