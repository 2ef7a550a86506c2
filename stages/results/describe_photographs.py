"""`describe-photographs`: sentences for photographs of your own, or for the images of an index."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.remote.paths import Place
from pipeline.run import Run
from stages.commands import FOLDER, PATH, images_option, on_run, output

if TYPE_CHECKING:
    from pipeline.generate.describing import QueryPhotograph
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.sources import ImageSources

Box = tuple[float, float, float, float]


@click.command("describe-photographs")
@click.argument("generator")
@click.argument("paths", type=PATH, nargs=-1)
@click.option(
    "--index", "bundle_folder", type=FOLDER,
    help="Bundle with the generator's encoders. [default: the run's of `describe.space`]",
)  # fmt: skip
@images_option
@click.option("--split", help="Describe the images of this split of the index.")
@click.option("--box", "boxes", type=(float,) * 4, multiple=True, help="Regions x1 y1 x2 y2 of one photograph.")
@on_run
@output(FOLDER, "Folder of descriptions.json, descriptions.txt and index.html.")
def command(
    run: Run,
    generator: str,
    paths: tuple[Path, ...],
    bundle_folder: Path | None,
    images_root: Place | None,
    split: str | None,
    boxes: tuple[Box, ...],
    output: Path,
) -> None:
    """Describe PATHS, photographs or folders of them, by GENERATOR of a run."""
    from pipeline.errors import UsageError
    from pipeline.generate.describing import encode_photographs
    from pipeline.images.decode import ImageLimits
    from pipeline.storage.bundles import open_bundle
    from stages.generators import BATCH, read_bundled_encoders, read_generator, write_descriptions

    if bool(paths) == bool(split) or (boxes and len(paths) != 1):
        raise UsageError("give photographs (one with --box), or a --split of --index")
    settings = run.config
    stored = read_generator(run, generator)
    about = {"generator": stored.name, "of": "images", "split": split}
    bundle = open_bundle(bundle_folder or run.layout.index(settings.describe.space).path)
    encoders, limits = read_bundled_encoders(stored, bundle), ImageLimits.from_settings(settings.collection)
    links = settings.collection.follow_links
    photographs = list(
        _find(paths, boxes) if paths else _of_split(bundle, split, bundle.photographs(images_root, links))
    )
    batches = encode_photographs(photographs, encoders, limits, BATCH)
    write_descriptions(run, stored, batches, output, {**about, "bundle": bundle.card["fingerprint"]})


def _of_split(bundle: "Bundle", split: str, source: "ImageSources") -> "Iterator[QueryPhotograph]":
    """The photographs of a split of a bundle."""
    from pipeline.generate.describing import QueryPhotograph

    for row in bundle.table("images").to_pylist():
        if row["split"] == split:
            shown = {"image_id": row["image_id"], "image": row["path"], "box": None}
            yield QueryPhotograph(shown, None, partial(source.read, row))


def _find(paths: tuple[Path, ...], boxes: tuple[Box, ...]) -> "Iterator[QueryPhotograph]":
    """The files `paths` and those of the folders among them, each whole and within each of `boxes`."""
    from pipeline.generate.describing import QueryPhotograph

    for path in paths:
        for file in sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path]:
            for box in [None, *boxes]:
                yield QueryPhotograph({"image_id": None, "image": str(file), "box": box}, box, file.read_bytes)
