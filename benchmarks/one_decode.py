"""Compares decoding each photo once for two encoders with decoding each photo once for each encoder.

    python benchmarks/one_decode.py [--megapixels 0.2 2 6 12] [--sides 256,224 448,448] [--images 8]

The bytes of JPEGs become features of MobileNetV2 at two resolutions, as in `extract`, except that this process decodes
the JPEGs. `cosine` is the lowest cosine, over all photos and both encoders, between the features from the shared
decoding and the features from a decoding for this encoder alone. The photos and weights are random. If JOINTSPACE_DATA
is set, the benchmark uses enlarged photos of Flickr8k with added grain, and trained weights.
"""

import argparse
import copy
import hashlib
import io
import json
import os
from functools import partial
from pathlib import Path

from interleave import compare, parse_options, report

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from pipeline.encoders import weights  # noqa: E402
from pipeline.encoders.extraction import Extractor, choose_plan, extract_in_step, make_probes  # noqa: E402
from pipeline.encoders.networks import NetworkEncoder, NetworkSpec, trained, untrained  # noqa: E402
from pipeline.images.opening import ImageLimits  # noqa: E402
from pipeline.images.preprocess import Photograph, PhotographReader, Preprocessing, View  # noqa: E402

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
NETWORK = "mobilenet_v2"
BATCH = 8
QUALITY = 90
GRAIN = 4
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megapixels", type=float, nargs="+", default=[0.2, 2, 6, 12])
    parser.add_argument(
        "--sides", nargs=2, default=["256,224", "448,448"], help="resize,crop for each encoder, in pixels"
    )
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    options = parse_options(parser, globals(), megapixels=[0.05], sides=["64,64", "96,96"], images=2)
    data = Path(os.environ["JOINTSPACE_DATA"]) if "JOINTSPACE_DATA" in os.environ else None
    network = make_encoder(data)
    views = []
    extractors = []
    for resize, crop in (map(int, sides.split(",")) for sides in options.sides):
        encoder = copy.deepcopy(network)
        encoder.preprocessing = Preprocessing(resize, crop, MEAN, STD)
        views.append(View(encoder.preprocessing))
        extractors.append(Extractor(encoder, choose_plan(encoder, "cpu", "auto", BATCH)))
    for megapixels in options.megapixels:
        listed, read = make_photos(data, options.images, megapixels)

        def features(chosen: slice, listed: list[Photograph] = listed, read: dict = read) -> list[np.ndarray]:
            pictures = PhotographReader(read.__getitem__, LIMITS).views(listed, views[chosen])
            return next(extract_in_step(pictures, extractors[chosen], [len(listed)]))

        together = partial(features, slice(0, 2))

        def apart(features=features) -> list[np.ndarray]:
            return [made for at in range(2) for made in features(slice(at, at + 1))]

        label = f"{' and '.join(options.sides)} of {megapixels} megapixels: one decoding over two"
        result = compare(label, together, apart, options.pairs, runtime.threads())
        least = min(cosine(a, b) for a, b in zip(together(), apart(), strict=True))
        report({**result, "images": options.images, "cosine": least, "threads": torch.get_num_threads()})


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def make_encoder(data: Path | None) -> NetworkEncoder:
    spec = NetworkSpec(NETWORK, "average", Preprocessing(224, None, MEAN, STD), flip=False)
    if data is None:
        return untrained(spec, seed=0)
    file = json.loads((data / "weights/weights.json").read_text())[NETWORK]["file"]
    return trained(spec, weights.parse((data / "weights" / file).read_bytes(), file), {"origin": file})


def make_photos(data: Path | None, count: int, megapixels: float) -> tuple[list[Photograph], dict[str, bytes]]:
    """Make `count` JPEGs with the aspect ratio 4 : 3 and `megapixels` megapixels. Return the list of photos, and a
    mapping from their names to their bytes.

    The JPEGs are made from the photos of Flickr8k in the folder `data`, or from synthetic images if `data` is None.
    """
    size = (round((megapixels * 4e6 / 3) ** 0.5), round((megapixels * 3e6 / 4) ** 0.5))
    rng = np.random.default_rng(0)
    if data:
        images = [Image.open(file).convert("RGB") for file in sorted((data / "flickr8k/images").iterdir())[:count]]
    else:
        images = [Image.fromarray(one) for one in np.resize(make_probes(512), (count, 512, 512, 3))]
    read = {}
    for number, image in enumerate(images):
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC), np.float32)
        grainy = (pixels + rng.normal(0, GRAIN, pixels.shape[:2])[..., None]).clip(0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(grainy).save(file, "JPEG", quality=QUALITY)
        read[str(number)] = file.getvalue()
    return [Photograph(name, hashlib.sha256(data).hexdigest(), (name,)) for name, data in read.items()], read


if __name__ == "__main__":
    main()
