"""`extract-regions`, `pool-regions`: features of regions of images, and their pooling into one vector per image."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import IntegrityError
from pipeline.run import Inputs, Layout, Outside, ShardJob, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run import Run

POOLED_IMAGES = 256
"""Maximum number of images whose region features are in memory at a time, while the features are pooled."""


def _keys(config: "Config", encoder: str) -> Mapping[str, object]:
    return {**config.regions.decisive(), **config.extract.decisive()}


def _reads(config: "Config", layout: Layout, encoder: str) -> Inputs:
    regions = config.regions
    detector = None
    boxes = []
    if regions.proposals == "faster-rcnn" and regions.detector.file is not None:
        detector = Outside("detector", Path(config.weights_root) / regions.detector.file)
    if regions.proposals == "boxes" and regions.boxes is not None:
        path = Path(config.data_root) / regions.boxes
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        boxes = [Outside(f"boxes/{file.name}", file) for file in files if not file.name.startswith(".")]
    return {"encoder": layout.encoder(encoder), "detector": detector, "boxes": boxes}


def _names(run: "Run", encoder: str) -> dict[str, str]:
    """Return {"names of images": digest of the names of all images} if the boxes come from a file, and otherwise {}.

    A file of boxes names the images, so the result depends on the names.
    """
    regions = run.config.regions
    in_files = regions.proposals == "boxes" and regions.boxes is not None
    return {"names of images": run.manifest.names_digest} if in_files else {}


@stage(
    version=6,
    gpu=True,
    decodes=True,
    threads=8,
    memory=8000,
    choices=lambda config: [(name,) for name in config.regions.encoders],
    wanted=lambda config: [(name,) for name in config.regions.encoders],
    keys=_keys,
    reads=_reads,
    also=_names,
    columns=("images", "boxes"),
    writes=lambda layout, encoder: layout.regions(encoder),
)
def extract_regions(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Find regions in images and extract their features with ENCODER.

    If the job is killed, run it again: it continues at the last checkpoint.
    """
    from pipeline.compute.workers import behind
    from pipeline.run.reading.regions import RegionExtraction

    extraction = RegionExtraction(run, encoder, run.inputs.path("detector"))
    return behind(extraction.write, extraction.extract_parts(extraction.list_parts(jobs)))


@stage(
    version=3,
    memory=3000,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "regions"],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    reads=lambda config, layout, encoder: {
        "encoder": layout.encoder(encoder),
        "regions": layout.regions(config.encoder(encoder).base or ""),
    },
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def pool_regions(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Pool the features of each image's regions into one vector per image."""
    import numpy as np

    from pipeline.encoders.regions import pool
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.json_files import require_same
    from pipeline.storage.regions import RegionShard

    stored = run.encoder(encoder)
    folder = run.layout.encoder(encoder).path
    cut = stored.settings["regions"]
    pooling = stored.settings["pooling"]
    details = {"encoder": {"name": encoder, "sha256": stored.sha256, **stored.settings}}
    for job in jobs:
        regions = RegionShard(run.inputs.shards("regions").shard(job.number))
        # The regions may have been extracted with other settings, if the configuration was changed since.
        cuts = {str(regions.path): {key: regions.details["regions"].get(key) for key in cut}, str(folder): cut}
        require_same("the regions", {path: json.dumps(keys, sort_keys=True) for path, keys in cuts.items()})
        if not np.diff(regions.offsets).all():
            first = regions.image_id[np.diff(regions.offsets).argmin()]
            raise IntegrityError(
                f"Image {first} has no regions in {regions.path}. Remove the image from the collection, or add its name"
                " to the file of collection.takedown, and run `jointspace run CONFIG`."
            )
        n = len(regions.image_id)
        blocks = (
            regions.packed(np.arange(start, min(start + POOLED_IMAGES, n))) for start in range(0, n, POOLED_IMAGES)
        )
        features = np.concatenate([pool(block.features, block.offsets, pooling) for block in blocks])
        names = [f"image {number}" for number in regions.image_id]
        rows = to_stored(features, run.config.extract.storage, names)
        write_features(job.path, rows, regions.image_id, job.provenance, details)
        yield job.number
