"""Compares the extraction of features on a CPU with a plain loop: Pillow, float32, NCHW, batches of 32.

    python benchmarks/extraction.py [--images 512] [--pairs 3]

If JOINTSPACE_DATA is set, the benchmark uses the photos and the trained weights in that folder. Otherwise it uses
generated images and random weights. `end to end` starts with files, and `forward` starts with decoded pixels (already
normalised for the plain loop). The plain loop uses the usual memory allocator of the C library. In `forward, our
allocator`, the plain loop uses the allocator with the settings of jointspace. `cosine` is the lowest cosine between the
features of both ways, over all images.
"""

import argparse
import functools
import hashlib
import json
import os
import tempfile
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the runtime is configured
from PIL import Image  # noqa: E402

from pipeline.images.opening import ImageLimits  # noqa: E402
from pipeline.images.preprocess import Photograph, PhotographReader, Preprocessing  # noqa: E402

# Functions import torch when they need it, because the processes that decode import this file too.
MALLOC_THRESHOLD = 32 << 20
"""Largest block in bytes that malloc keeps when the block is freed, without the settings of jointspace. The GNU C
library raises its limit to this value by itself after large arrays were freed.
"""
LIMITS = ImageLimits(max_pixels=10**8, min_side=8, max_aspect=20)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
SIDES = {"squeezenet1_0": 224, "mobilenet_v2": 256}
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=3)
    options = parse_options(parser, globals(), images=4, BATCH=2, SIDES={"squeezenet1_0": 64})
    data = os.environ.get("JOINTSPACE_DATA")
    with tempfile.TemporaryDirectory() as folder:
        photographs = Path(data) / "flickr8k/images" if data else make_photos(Path(folder), options.images)
        files = sorted(photographs.iterdir())[: options.images]
        for architecture in SIDES:
            benchmark(architecture, make_encoder(architecture, data), files, options.pairs)


def benchmark(architecture: str, encoder, files: list[Path], pairs: int) -> None:
    from pipeline.encoders.extraction import Extractor, choose_plan

    preprocessing = encoder.spec.preprocessing
    extractor = Extractor(encoder, choose_plan(encoder, "cpu", "auto", BATCH))
    photographs = [Photograph(f.name, hashlib.sha256(f.read_bytes()).hexdigest(), (f,)) for f in files]
    pixels = list(PhotographReader(Path.read_bytes, LIMITS).pixels(photographs, preprocessing))
    batches = [normalise(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH)]

    def from_files() -> np.ndarray:
        decoded = PhotographReader(Path.read_bytes, LIMITS, 2).pixels(photographs, preprocessing)
        return extractor(decoded)

    def from_pixels() -> np.ndarray:
        return extractor(pixels)

    def plainly_from_files() -> np.ndarray:
        features = []
        for start in range(0, len(files), BATCH):
            images = [Image.open(file).convert("RGB") for file in files[start : start + BATCH]]
            images = [image.resize((preprocessing.side,) * 2, Image.Resampling.BILINEAR) for image in images]
            features.append(forward(encoder, normalise([np.asarray(image) for image in images])))
        return np.concatenate(features)

    def plainly_from_tensors() -> np.ndarray:
        return np.concatenate([forward(encoder, batch) for batch in batches])

    agreement = {"precision": extractor.plan.precision, "cosine": cosine(from_files(), plainly_from_files())}
    usual = usual_allocator(plainly_from_tensors)
    for name, ours, reference in (
        ("end to end", from_files, usual_allocator(plainly_from_files)),
        ("forward", from_pixels, usual),
        ("forward, our allocator", from_pixels, plainly_from_tensors),
    ):
        result = compare(f"{architecture} {name}", ours, reference, pairs, runtime.threads())
        rates = {
            "ours_images_per_s": len(files) / result["ours"],
            "reference_images_per_s": len(files) / result["reference"],
        }
        report({**result, **rates, **agreement})


def forward(encoder, images) -> np.ndarray:
    import torch

    with torch.inference_mode():
        return encoder.body(images).mean((2, 3)).numpy()


def normalise(pixels: list[np.ndarray]):
    """Normalise the pixels (side, side, 3) of each of n images by MEAN and STD, one image after another. Return (n, 3,
    side, side) in float32.
    """
    import torch

    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return torch.stack([(torch.tensor(image).permute(2, 0, 1) / 255 - mean) / std for image in pixels])


def usual_allocator(function):
    """Return a function that calls `function` with the usual settings of malloc, and then restores the settings of
    jointspace.
    """

    @functools.wraps(function)
    def run():
        runtime.keep_freed_memory(MALLOC_THRESHOLD)
        try:
            return function()
        finally:
            runtime.keep_freed_memory(runtime.KEPT_BYTES)

    return run


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def make_encoder(architecture: str, data: str | None):
    from pipeline.encoders import weights
    from pipeline.encoders.networks import NetworkSpec, trained, untrained

    side = SIDES[architecture]
    spec = NetworkSpec(architecture, "average", Preprocessing(side, None, MEAN, STD), flip=False)
    if data is None:
        return untrained(spec, seed=0)
    notes = json.loads((Path(data) / "weights/weights.json").read_text())[architecture]
    state = weights.parse((Path(data) / "weights" / notes["file"]).read_bytes(), notes["file"])
    return trained(spec, state, {"origin": notes["file"]})


def make_photos(folder: Path, count: int) -> Path:
    """Write `count` synthetic JPEG files of 500 x 375 pixels into `folder`, and return `folder`."""
    for i in range(count):
        coarse = np.random.default_rng(i).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i:05d}.jpg", quality=85)
    return folder


if __name__ == "__main__":
    main()
