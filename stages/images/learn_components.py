"""`learn-components`: the principal components of regions."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Job, Run, Stage

if TYPE_CHECKING:
    from pipeline.images.region_features import Scatter

BLOCK = 256
"""Images whose regions are in double precision at a time."""


def learn_components(run: Run, job: Job, encoder: str) -> None:
    """Learn the principal components of the features of ENCODER's regions in the train split."""
    from pipeline.images.region_features import COMPONENTS, absorb, fit_projection, merge
    from pipeline.mapreduce import map_reduce
    from pipeline.run.run import chunks
    from pipeline.storage.parameters import write_parameters

    manifest = run.manifest
    parts = chunks(manifest.n_shards, manifest.shard_size)
    scatter = map_reduce(sum_regions, parts, merge, run.sums, (run.root.absolute(), encoder), absorb=absorb)
    components = fit_projection(scatter, run.config.regions.dimensions)
    write_parameters(job.path, COMPONENTS, components._asdict(), settings={}, provenance=job.provenance)


def sum_regions(part: range, root: Path, encoder: str) -> "Scatter | None":
    """The scatter of the regions of the train split in the shards of a part."""
    import numpy as np

    from pipeline.images.region_features import Scatter, absorb
    from pipeline.storage.features import open_regions

    run, total = Run(root), None
    for number in part:
        shard = open_regions(run.layout.regions(encoder).folder, number)
        train = np.flatnonzero(run.manifest.shard_splits(number) == "train")
        for first in range(0, len(train), BLOCK):
            features = shard.packed(train[first : first + BLOCK]).features
            total = absorb(total, Scatter.of(features) if len(features) else None)
    return total


STAGE = Stage(
    learn_components,
    version=3,
    names=("encoder",),
    choices=lambda config: [(name,) for name in config.regions.encoders if config.regions.reduced],
    keys=lambda config, encoder: {"dimensions": config.regions.dimensions},
    reads=lambda config, layout, encoder: {"manifest": layout.manifest, "regions": layout.regions(encoder)},
    writes=lambda layout, encoder: layout.components(encoder),
)
