"""`show-regions`: a contact sheet of images with their regions, for people."""

from pathlib import Path

import click

from pipeline.plan.needs import TORCH, Need, fixed, process
from pipeline.run import Job, Run, Stage

IMAGES, COLUMNS, BEST = 24, 6, 5


def show_regions(
    run: Run, job: Job, encoder: str, shard: int = 0, images: int = IMAGES, columns: int = COLUMNS, top: int = BEST
) -> None:
    """Draw the best regions of some images of a shard, spread evenly over it."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.images.contact_sheet import SheetPicture, draw_sheet, to_png
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, open_photograph
    from pipeline.storage.atomic import DRAWING, publish
    from pipeline.storage.regions import open_regions
    from pipeline.storage.sources import ImageSource, find_photographs

    manifest, settings = run.manifest, run.config
    collection = settings.collection
    limits = ImageLimits.from_settings(collection)
    regions = open_regions(manifest, run.layout.regions(encoder).folder, shard)
    read = ImageSource(find_photographs(manifest.root, Path(settings.data_root)), collection.follow_links).read
    places = np.unique(np.linspace(0, regions.rows - 1, images).astype(int))

    pictures = []
    for place, row in zip(places, manifest.images.take(regions.image_id[places]).to_pylist(), strict=True):
        photograph, block = Photograph.from_row(row), regions.packed(np.array([place]))
        rows = slice(1, 1 + top)  # region 0 is the whole image
        try:
            image, line = open_photograph(read, limits, photograph), photograph.name
        except InputError as error:
            image, line = None, f"{photograph.name}: {error}"
        pictures.append(SheetPicture(image, block.boxes[rows], block.scores[rows], line))

    details = {"inputs": {"regions": regions.fingerprint}}
    data = to_png(draw_sheet(pictures, columns))
    publish(job.path, data, kind=DRAWING, rows=len(pictures), fingerprint=job.fingerprint, details=details)


def _number(option: str, default: int, told: str, least: int = 1) -> click.Option:
    return click.Option([option], type=click.IntRange(min=least), default=default, show_default=True, help=told)


STAGE = Stage(
    show_regions,
    version=2,
    needs=Need(process(TORCH + 900), fixed(20), fixed(15), "the few images shown"),
    names=("encoder",),
    choices=lambda config: [(name,) for name in config.regions.encoders],
    wanted=lambda config: [(name,) for name in config.regions.encoders],
    reads=lambda config, layout, encoder: {"regions": layout.regions(encoder)},
    writes=lambda layout, encoder: layout.region_sheet(encoder),
    shown={"regions": "Regions and alignments"},
    options=(
        _number("--shard", 0, "Shard whose images are shown.", least=0),
        _number("--images", IMAGES, "Images shown."),
        _number("--columns", COLUMNS, "Images side by side."),
        _number("--top", BEST, "Best regions drawn in each."),
    ),
)
