"""Compares region features by roi-align with features of crops, and minibatches of regions with a loader of rows.

    python benchmarks/regions.py [ARCHITECTURE SIDE]

The first line also has the ratio that the numbers of operations of both ways predict (`operations`).
"""

import argparse
import tempfile
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import h5py  # noqa: E402  after the runtime is configured
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from pipeline.encoders.extraction import choose_plan  # noqa: E402
from pipeline.encoders.networks import NetworkEncoder, NetworkSpec, untrained  # noqa: E402
from pipeline.encoders.preparation import Crops, PreparedImage, WholeImages  # noqa: E402
from pipeline.encoders.regions import RegionExtractor, region_encoder  # noqa: E402
from pipeline.images.boxes import NONE, Candidates, Selection, select  # noqa: E402
from pipeline.images.preprocess import Preprocessing  # noqa: E402
from pipeline.storage.commit import Provenance  # noqa: E402
from pipeline.storage.regions import RegionShard, UnfinishedRegions  # noqa: E402

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SELECTION = Selection(0.7, 19, True)
IMAGES = 20
MAP_SIDE = 384
SHARD_IMAGES = 2048
REGIONS = 20
DIM = 512
BATCH = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architecture", nargs="?", default="squeezenet1_0")
    parser.add_argument("side", nargs="?", type=int, default=224)
    options = parse_options(parser, globals(), side=64, MAP_SIDE=96, IMAGES=1, SHARD_IMAGES=64, DIM=8, BATCH=4)
    spec = NetworkSpec(options.architecture, "average", Preprocessing(options.side, None, MEAN, STD), False)
    features(untrained(spec, 0))
    with tempfile.TemporaryDirectory() as folder:
        minibatches(Path(folder))


def features(encoder: NetworkEncoder) -> None:
    """Print the time for features of 20 regions of each image by roi-align, compared with the time for features of
    crops. Decoding is not measured, because it is the same for both ways.
    """
    plan = choose_plan(encoder, "cpu", "auto", 32)
    side = encoder.spec.preprocessing.side
    crops, maps = (prepare(view) for view in (Crops(side, 16, MEAN), WholeImages(MAP_SIDE, 32, 2.5)))
    by_crops = RegionExtractor(encoder, plan, Crops(side, 16, MEAN))
    by_maps = RegionExtractor(encoder, plan, WholeImages(MAP_SIDE, 32, 2.5))
    promise = REGIONS * operations(encoder, side) / operations(region_encoder(encoder), MAP_SIDE, REGIONS)
    name = f"roi-align over crops, {encoder.spec.architecture}"
    result = compare(name, lambda: by_maps(maps), lambda: by_crops(crops), 5, runtime.threads())
    report({**result, "operations": promise, "of_promise": result["ratio"] / promise, "precision": plan.precision})


def prepare(view: Crops | WholeImages) -> list[PreparedImage]:
    """Prepare IMAGES smooth random images of 224 x 224 pixels for `view`: as crops of the regions, or as whole images
    for roi-align. The 20 regions of an image are the whole image and 19 windows.
    """
    prepared = []
    for seed in range(IMAGES):
        coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((224, 224), Image.Resampling.BICUBIC)
        regions, counts = select(Candidates(NONE.boxes, NONE.scores), image.size, SELECTION)
        prepared.append(PreparedImage(regions, view.render(image, regions.boxes), image.size, counts))
    return prepared


def operations(network: torch.nn.Module, side: int, regions: int = 0) -> int:
    """Return the number of floating-point operations of a network for one image of `side` x `side` pixels. `regions` is
    the number of regions whose features are computed, or 0 for a network that gets no regions.
    """
    boxes = [torch.tensor([0.1, 0.1, 0.9, 0.9]).expand(1, regions, 4)] if regions else []
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        network(torch.zeros(1, side, side, 3, dtype=torch.uint8), *boxes)
    return counter.get_total_flops()


class RegionDataset(Dataset):
    """A dataset that reads each region by itself from an HDF5 file, as a plain program would. An item is the features
    (DIM,) of a region in float32.
    """

    def __init__(self, path: Path) -> None:
        self.features = h5py.File(path)["features"]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.features[row].astype("f4")


def minibatches(folder: Path) -> None:
    """Print the time for reading shuffled minibatches of the regions of BATCH images from a shard, which is first
    written into `folder`, compared with the time for reading as many regions row by row.
    """
    rng = np.random.default_rng(0)
    made_by = Provenance(folder, "by hand", 1)
    unfinished = UnfinishedRegions(folder / "shard-00000.h5", made_by, np.arange(SHARD_IMAGES), SHARD_IMAGES)
    total = SHARD_IMAGES * REGIONS
    arrays = {"features": rng.random((total, DIM), np.float32).astype(np.float16)}
    arrays |= {"boxes": np.zeros((total, 4)), "scores": np.zeros(total)}
    arrays["lengths"] = np.full(SHARD_IMAGES, REGIONS)
    unfinished.keep(range(SHARD_IMAGES), arrays, {"rejects": [], "counts": {}})
    unfinished.publish({})
    shard = RegionShard(unfinished.path)
    batches = rng.permutation(SHARD_IMAGES)[: 4 * BATCH].reshape(4, BATCH)
    rows = rng.permutation(total)[: batches.size * REGIONS].tolist()
    loader = DataLoader(RegionDataset(unfinished.path), batch_size=BATCH * REGIONS, sampler=rows)
    report(
        compare(
            "shuffled minibatches of regions over a loader of rows",
            lambda: [shard.packed(batch) for batch in batches],
            lambda: list(loader),
            7,
            1,
        )
    )


if __name__ == "__main__":
    main()
