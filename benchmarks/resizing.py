"""Compares decoding and resizing JPEGs for a network with the decoder and the resizing of Pillow.

    python benchmarks/resizing.py [--images 200] [--pairs 9]

The first comparison uses Pillow's decoder for both ways. In the second comparison, torchvision decodes the photos that
it can decode, as in `extract`. The photos are noise at every scale with the grain of a camera. If JOINTSPACE_DATA is
set, the photos are enlarged photos of Flickr8k. `difference` is the mean difference from the pixels of Pillow, in
levels from 0 to 255. The last line for each size compares inspecting a JPEG at an eighth of its size, as `ingest` does,
with decoding it in full size.
"""

import argparse
import hashlib
import os
from functools import partial
from pathlib import Path

from interleave import compare, parse_options, report
from one_decode import make_photos  # one_decode chooses the BLAS kernels, so its import comes before numpy

import numpy as np  # isort: skip
import torch  # isort: skip
from PIL import Image  # isort: skip

from pipeline.images.decode import decode, decode_pixels, inspect
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Preprocessing, prepare

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
SIZES = ((500, 375), (1024, 768))
PREPROCESSING = Preprocessing(256, 224, (0.5,) * 3, (0.5,) * 3)


def prepare_by_pillow(data: bytes) -> np.ndarray:
    """Decode the JPEG `data`, and cut out and resize its middle square in one pass, by Pillow alone. Return the pixels
    (side, side, 3) uint8.
    """
    image = decode(data, LIMITS, PREPROCESSING.resize)
    half = min(image.size) * PREPROCESSING.side / PREPROCESSING.resize / 2
    width, height = image.size
    box = (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half)
    return np.asarray(image.resize((PREPROCESSING.side,) * 2, Image.Resampling.BILINEAR, box))


def resize_by_torch(data: bytes) -> np.ndarray:
    """Decode the JPEG `data` by Pillow, and resize it by PyTorch. Return the pixels (side, side, 3) uint8."""
    return prepare(decode(data, LIMITS, PREPROCESSING.resize), PREPROCESSING)


def decode_by_torchvision(data: bytes) -> np.ndarray:
    """Decode and resize the JPEG `data` as `extract` does, by torchvision if it can decode the JPEG. Return the pixels
    (side, side, 3) uint8.
    """
    (image,) = decode_pixels(data, LIMITS, [PREPROCESSING.resize])
    return prepare(image, PREPROCESSING)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--pairs", type=int, default=9)
    options = parse_options(parser, globals(), images=2, SIZES=((120, 90),))
    torch.set_num_threads(1)
    data = Path(os.environ["JOINTSPACE_DATA"]) if "JOINTSPACE_DATA" in os.environ else None
    for width, height in SIZES:
        jpegs = list(make_photos(data, options.images, width * height / 1e6)[1].values())

        def all_by(function, jpegs: list[bytes] = jpegs) -> list:
            return [function(jpeg) for jpeg in jpegs]

        size = f"{width} x {height}"
        about = {"images": options.images, "bytes": sum(map(len, jpegs)) // len(jpegs)}
        reference = partial(all_by, prepare_by_pillow)
        ways = {"Pillow's decoder": resize_by_torch, "torchvision's decoder": decode_by_torchvision}
        for label, function in ways.items():
            result = compare(f"{size}: {label}", partial(all_by, function), reference, options.pairs)
            differences = [np.abs(function(jpeg).astype(int) - prepare_by_pillow(jpeg)).mean() for jpeg in jpegs]
            report({**result, **about, "difference": float(np.mean(differences))})

        def inspected(jpeg: bytes) -> object:
            return inspect(lambda *_: jpeg, LIMITS, ("", None, None))

        def decoded(jpeg: bytes) -> object:
            return decode(jpeg, LIMITS).size, hashlib.sha256(jpeg).hexdigest()

        label = f"{size}: inspected at an eighth over decoded whole"
        report({**compare(label, partial(all_by, inspected), partial(all_by, decoded), options.pairs), **about})


if __name__ == "__main__":
    main()
