"""Networks computed on the processor by other engines than torch, from decoded pixels to features.

    python benchmarks/engines.py [--images 64] [--pairs 5] [--networks mobilenet_v2 resnet50 ...]

For every network a line for each installed engine and each precision that it and torch's plan (`auto`) have in common,
against that plan: bfloat16 where the processor is fast at it and the network bears it, float32 otherwise. `cosine` is
the least of all images or regions, of the engine's features to torch's in float32; `first_s` the seconds of the first
run, which compiles. `roi-align` has the regions of whole photographs of several sizes, one map each.
On drawn images with untrained weights, or with JOINTSPACE_DATA set on its photographs and with those that it has.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from interleave import compare, parse_options, report

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the runtime is configured
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from pipeline import config  # noqa: E402
from pipeline.images import weights  # noqa: E402
from pipeline.images.backbones import build  # noqa: E402
from pipeline.images.boxes import NONE  # noqa: E402
from pipeline.images.extraction import ExtractionPlan, Extractor, choose_plan, make_probes  # noqa: E402
from pipeline.images.modules import ModuleEncoder  # noqa: E402
from pipeline.images.networks import NetworkEncoder, NetworkSpec, trained, untrained  # noqa: E402
from pipeline.images.preparation import Cutting, PreparedImage  # noqa: E402
from pipeline.images.preprocess import Preprocessing, prepare  # noqa: E402
from pipeline.images.regions import RegionExtractor  # noqa: E402
from pipeline.specs.engines import ENGINES  # noqa: E402

NETWORKS = ("mobilenet_v2", "resnet50", "squeezenet1_0", "vit_b_32")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PREPROCESSING = Preprocessing(224, None, MEAN, STD)
BATCH = 32
BY_MAPS = config.load().regions.model_dump() | {"proposals": "grid", "features": "roi-align"}
CUTTING = Cutting.from_settings(BY_MAPS, PREPROCESSING)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    options = parse_options(parser, globals(), images=2, networks=["squeezenet1_0"])
    data = Path(os.environ["JOINTSPACE_DATA"]) if "JOINTSPACE_DATA" in os.environ else None
    pixels, photographs = read_pixels(data, options.images), read_photographs(data, options.images)
    for name in options.networks:
        encoder = make_encoder(name, data)
        plan = choose_plan(encoder, "cpu", "auto", BATCH)
        benchmark(name, plan, partial(whole_images, encoder, pixels), options)
        if isinstance(encoder, NetworkEncoder):
            benchmark(f"{name} roi-align", plan, partial(regions, encoder, photographs), options)


Run = Callable[[], np.ndarray]


def benchmark(name: str, plan: ExtractionPlan, prepared: Callable[[ExtractionPlan], Run], options: Any) -> None:
    """`prepared` gives for a plan what computes the features of all images."""
    reference, exact = prepared(plan), prepared(ExtractionPlan(plan.device, torch.float32, BATCH))()
    for engine in ENGINES:
        if not engine.installed:
            print(json.dumps({"name": f"{name} {engine.name}", "skipped": f"pip install 'jointspace[{engine.extra}]'"}))
            continue
        precision = plan.precision if plan.precision in engine.precisions else engine.precisions[0]
        begun = time.perf_counter()
        ours = prepared(ExtractionPlan(plan.device, getattr(torch, precision), BATCH, engine.name))
        features = ours()
        first = {"first_s": time.perf_counter() - begun}
        label = f"{name} {engine.name} {precision}, torch {plan.precision}"
        result = compare(label, ours, reference, options.pairs, runtime.threads(), warm_up=False)
        rates = {f"{side}_images_per_s": options.images / result[side] for side in ("ours", "reference")}
        report({**result, **rates, "cosine": cosine(features, exact), **first})


def whole_images(encoder: ModuleEncoder, pixels: np.ndarray, plan: ExtractionPlan) -> Run:
    extractor = Extractor(encoder, plan)
    return lambda: np.concatenate(list(extractor(pixels)))


def regions(encoder: NetworkEncoder, photographs: list[PreparedImage], plan: ExtractionPlan) -> Run:
    extractor = RegionExtractor(encoder, plan, CUTTING.view)
    return lambda: np.concatenate(extractor(photographs))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min())


def read_pixels(data: Path | None, count: int) -> np.ndarray:
    """(count, 224, 224, 3) uint8."""
    if data is None:
        return np.resize(make_probes(PREPROCESSING.side), (count, PREPROCESSING.side, PREPROCESSING.side, 3))
    files = sorted((data / "flickr8k/images").iterdir())[:count]
    return np.stack([prepare(Image.open(file).convert("RGB"), PREPROCESSING) for file in files])


def read_photographs(data: Path | None, count: int) -> list[PreparedImage]:
    """Pictures of a few sizes with the windows of a grid as regions."""
    if data is None:
        drawn = make_probes(2 * CUTTING.view.side)
        images = [Image.fromarray(drawn[n % len(drawn)][: 512 + 64 * (n % 5)]) for n in range(count)]
    else:
        images = [Image.open(file) for file in sorted((data / "flickr8k/images_fullres").iterdir())[:count]]
    return [CUTTING(image.convert("RGB"), NONE) for image in images]


def make_encoder(name: str, data: Path | None) -> ModuleEncoder:
    known = json.loads((data / "weights/weights.json").read_text()) if data else {}
    if name.startswith("vit"):  # no map of activations to average: its class token, as other libraries give it
        body = build(name, seed=0)
        body.heads = torch.nn.Identity()
        return ModuleEncoder(PREPROCESSING, body, flip=False)
    spec = NetworkSpec(name, "average", PREPROCESSING, flip=False)
    if name not in known:
        return untrained(spec, seed=0)
    file = known[name]["file"]
    return trained(spec, weights.parse((data / "weights" / file).read_bytes(), file), {"origin": file})


if __name__ == "__main__":
    main()
