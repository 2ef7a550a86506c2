"""Measures two steps between a JPEG and a network.

    python benchmarks/decoding.py --weights mobilenet_v2.safetensors

The first comparison decodes large JPEGs at a reduced scale and at full scale. The second comparison sends pixels from
worker processes through shared memory and through pickles. The last line compares the features of JPEGs that were
decoded at half scale with the features of the same JPEGs decoded at full scale.
"""

import argparse
import io
import math
from functools import partial
from pathlib import Path

import numpy as np
import torch
from interleave import compare, parse_options, report
from PIL import Image

from pipeline.compute.workers import isolated_map, shared_map
from pipeline.encoders.extraction import make_probes
from pipeline.encoders.networks import build
from pipeline.encoders.weights import parse
from pipeline.images.decode import decode
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Preprocessing, prepare

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
CAMERA = (4000, 3000)
RESIZE = 256
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SHAPE = (224, 224, 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--items", type=int, default=2000, help="number of images that the worker processes produce")
    parser.add_argument("--photographs", type=Path, help="folder of JPEGs for the cosines [default: synthetic images]")
    parser.add_argument("--weights", type=Path, help="weights of MobileNetV2 for the cosines [default: random]")
    chosen = parse_options(parser, globals(), items=8, CAMERA=(400, 300))

    photograph = camera_photograph()
    smaller, whole = (partial(decode, photograph, LIMITS, side) for side in (RESIZE, None))
    report(compare(f"{CAMERA[0]} x {CAMERA[1]} decoded for {RESIZE} pixels", smaller, whole, chosen.pairs, threads=1))

    # `make` fills an array by a function of NumPy, because a function of this script could not be sent to the workers.
    make = partial(np.full, SHAPE, dtype=np.uint8)

    def drawn(mapper) -> None:
        for _ in mapper(make, (number % 256 for number in range(chosen.items)), 2):
            pass

    shared = partial(drawn, partial(shared_map, room=math.prod(SHAPE)))
    report(compare("pixels by shared memory", shared, partial(drawn, isolated_map), chosen.pairs, threads=3))
    report(cosines(chosen.weights, chosen.photographs))


def camera_photograph() -> bytes:
    """Return a JPEG with as many pixels as a camera's photo (CAMERA).

    The JPEG shows an enlarged probe image of 512 x 512 pixels, so it has no detail finer than about 6 pixels.
    """
    probe = Image.fromarray(make_probes(512)[0]).resize(CAMERA, Image.Resampling.BICUBIC)
    data = io.BytesIO()
    probe.save(data, "JPEG", quality=92)
    return data.getvalue()


def cosines(weights: Path | None, folder: Path | None) -> dict:
    """Compare the features of JPEGs that were decoded at half scale with the features of the same JPEGs decoded at full
    scale.

    The network is MobileNetV2 with the `weights` of a file, or with random weights if `weights` is None. The JPEGs are
    at most 40 files of `folder`, or synthetic images if `folder` is None. The network sees a quarter of the shorter
    side, so that decoding at half scale is allowed. The result has the median and the least cosine between the two
    features of an image, and the number of images as `pictures`.
    """
    network = build("mobilenet_v2", seed=0).features
    if weights:
        state = parse(weights.read_bytes(), weights.name)
        network.load_state_dict({name[9:]: value for name, value in state.items() if name.startswith("features.")})
    jpegs = [path.read_bytes() for path in sorted(folder.glob("*.jpg"))[:40]] if folder else []
    for probe in [] if folder else make_probes(512):
        data = io.BytesIO()
        Image.fromarray(probe).save(data, "JPEG", quality=92)
        jpegs.append(data.getvalue())
    found = []
    for data in jpegs:
        whole = decode(data, LIMITS)
        side = min(whole.size) // 4  # The JPEG is then decoded at half scale, to twice this side.
        preprocessing = Preprocessing(side, None, MEAN, STD)
        pair = [prepare(one, preprocessing) for one in (whole, decode(data, LIMITS, side))]
        pixels = torch.from_numpy(np.stack(pair)).permute(0, 3, 1, 2).float() / 255
        pixels = (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        with torch.inference_mode():
            features = network(pixels).mean(dim=(2, 3))
        found.append(torch.nn.functional.cosine_similarity(*features, dim=0).item())
    return {"cosine, median": round(float(np.median(found)), 5), "least": round(min(found), 5), "pictures": len(found)}


if __name__ == "__main__":
    main()
