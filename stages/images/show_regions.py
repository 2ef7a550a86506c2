"""`show-regions`: a contact sheet of images with their regions, for people."""

from pipeline.run import Job, Run, Stage
from stages.commands import count

IMAGES, COLUMNS, BEST = 24, 6, 5


def show_regions(
    run: Run, job: Job, encoder: str, shard: int = 0, images: int = IMAGES, columns: int = COLUMNS, top: int = BEST
) -> None:
    """Draw the best regions of some images of a shard, spread evenly over it."""
    import numpy as np

    from pipeline.images.contact_sheet import SheetPicture, draw_sheet, to_png
    from pipeline.images.preprocess import Photograph
    from pipeline.storage.commit import DRAWING, publish
    from pipeline.storage.regions import open_regions
    from stages.inputs import open_photographs

    regions = open_regions(run.layout.regions(encoder).folder, shard)
    places = np.unique(np.linspace(0, regions.rows - 1, images).astype(int))
    image_id = regions.image_id[places]
    names = [Photograph.from_row(row).name for row in run.manifest.pick(image_id)]
    pictures = []
    for place, name, (image, reason) in zip(places, names, open_photographs(run, image_id), strict=True):
        block, rows = regions.packed(np.array([place])), slice(1, 1 + top)  # region 0 is the whole image
        pictures.append(SheetPicture(image, block.boxes[rows], block.scores[rows], reason or name))

    data = to_png(draw_sheet(pictures, columns))
    publish(job.path, data, kind=DRAWING, rows=len(pictures), provenance=job.provenance)


STAGE = Stage(
    show_regions,
    version=2,
    names=("encoder",),
    choices=lambda config: [(name,) for name in config.regions.encoders],
    wanted=lambda config: [(name,) for name in config.regions.encoders],
    reads=lambda config, layout, encoder: {"regions": layout.regions(encoder)},
    writes=lambda layout, encoder: layout.region_sheet(encoder),
    options=(
        count("--shard", 0, "Shard whose images are shown.", least=0),
        count("--images", IMAGES, "Images shown."),
        count("--columns", COLUMNS, "Images side by side."),
        count("--top", BEST, "Best regions drawn in each."),
    ),
)
