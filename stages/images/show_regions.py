"""`show-regions`: a contact sheet of images with their regions, for people."""

from pathlib import Path

import click

from stages import options


@click.command("show-regions")
@click.argument("shard_path", metavar="SHARD", type=options.FILE)
@options.manifest
@click.option("--images", "count", type=click.IntRange(min=1), default=24, show_default=True, help="Images shown.")
@click.option("--columns", type=click.IntRange(min=1), default=6, show_default=True, help="Images side by side.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Best regions drawn in each.")
@options.config
@options.output("file", "The sheet, a PNG file.")
def command(
    shard_path: Path, manifest_folder: Path, count: int, columns: int, top: int, config_path: Path | None, output: Path
) -> None:
    """Draw the best regions of some images of SHARD, a file of `extract-regions`, spread evenly over it."""
    import numpy as np

    from pipeline import config
    from pipeline.errors import InputError, IntegrityError
    from pipeline.images.contact_sheet import Picture, draw_sheet, to_png
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, open_photograph
    from pipeline.storage.atomic import DRAWING, publish
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.regions import RegionShard
    from pipeline.storage.sources import ImageSource, find_photographs

    settings = config.load(config_path)
    collection = settings.collection
    limits = ImageLimits.from_settings(collection)
    manifest, shard = Manifest(manifest_folder), RegionShard(shard_path)
    if shard.image_id.max() >= manifest.images.num_rows:
        raise IntegrityError(f"{shard_path} is of other images than {manifest_folder}; give their manifest")
    read = ImageSource(find_photographs(manifest.root, Path(settings.data_root)), collection.follow_links).read
    places = np.unique(np.linspace(0, shard.rows - 1, count).astype(int))

    pictures = []
    for place, row in zip(places, manifest.images.take(shard.image_id[places]).to_pylist(), strict=True):
        photograph, block = Photograph.from_row(row), shard.packed(np.array([place]))
        rows = slice(1, 1 + top)  # region 0 is the whole image
        try:
            image, line = open_photograph(read, limits, photograph), photograph.name
        except InputError as error:
            image, line = None, f"{photograph.name}: {error}"
        pictures.append(Picture(image, block.boxes[rows], block.scores[rows], line))

    data, inputs = to_png(draw_sheet(pictures, columns)), {"regions": shard.fingerprint}
    digest = fingerprint("sheet", 1, [count, columns, top], inputs)
    publish(output, data, kind=DRAWING, rows=len(pictures), fingerprint=digest, details={"inputs": inputs})
