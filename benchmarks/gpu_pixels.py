"""The parts of gpu_all.sh that start from JPEGs. They write photos, and measure `ingest`, `extract` and decoders."""

import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_parts import Bench, agreement
from gpu_verdict import PRESENT, TRANSPORT
from PIL import Image
from torch.nn.functional import interpolate
from torchvision.io import decode_jpeg

from pipeline.compute.workers import CHUNK_ITEMS, CHUNKS_AHEAD, Failure, shared_map
from pipeline.encoders.extraction import ExtractionPlan, Extractor, make_probes
from pipeline.encoders.networks import NetworkEncoder, NetworkSpec, untrained
from pipeline.images.decode import decode, decode_pixels
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Preprocessing, prepare

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
PHOTO = (500, 375)


def make_encoder(bench: Bench) -> NetworkEncoder:
    preprocessing = Preprocessing(bench.size(224, 64), None, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    architecture = bench.size("resnet50", "squeezenet1_1")
    return untrained(NetworkSpec(architecture, "average", preprocessing, flip=False), seed=0)


def extract(encoder: Any, pixels: Iterable[np.ndarray], device: torch.device) -> np.ndarray:
    return Extractor(encoder, ExtractionPlan(device, torch.float32, 64))(pixels)


@cache
def make_jpegs(count: int) -> list[bytes]:
    picture = np.asarray(Image.fromarray(make_probes(512)[0]).resize(PHOTO, Image.Resampling.BICUBIC))
    files = []
    for shift in np.random.default_rng(0).integers(0, 300, (count, 2)):
        data = io.BytesIO()
        Image.fromarray(np.roll(picture, shift, (0, 1))).save(data, "JPEG", quality=88)
        files.append(data.getvalue())
    return files


def photos(bench: Bench) -> None:
    """Write data/0.tar, an archive of JPEGs that the part `extraction` reads later. Nothing is measured, because the
    GPU tests may run at the same time.
    """
    files = make_jpegs(bench.size(500, 5))
    Path("data").mkdir(exist_ok=True)
    with tarfile.open("data/0.tar", "w") as archive:
        for number in range(bench.size(49_152, 12)):
            # Each JPEG gets a different comment, because `ingest` would leave out photos with the same bytes.
            data = b"\xff\xd8\xff\xfe\x00\x0a%08d" % number + files[number % len(files)][2:]
            member = tarfile.TarInfo(f"{number:08d}.jpg")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def command(*arguments: str) -> str:
    """Run a stage of jointspace in a new process, and return its messages. Raises ImportError if the stage fails
    because a module is missing, and RuntimeError if the stage fails for another reason.
    """
    called = [sys.executable, "-m", "stages.cli", "stage", *arguments, "--run", "results/gpu"]
    result = subprocess.run(called, capture_output=True, text=True, errors="replace")
    print(result.stderr[-3000:])
    if result.returncode:
        reason = result.stderr.strip().splitlines()[-1]
        raise ImportError(reason) if "ModuleNotFoundError" in reason else RuntimeError(reason)
    return result.stderr


def extraction(bench: Bench) -> None:
    """Measure the commands on all photos: `ingest`, then `extract` with ResNet-50 and with ViT-L/16 of timm.

    The rate of `extract` is measured on shards 3 to 12, after the start-up. Some features are compared with float32
    features that are computed on the CPU.
    """
    resnet = {"name": "resnet50", "architecture": bench.size("resnet50", "squeezenet1_1"), "weights": "untrained"}
    vit = {"kind": "timm", "architecture": bench.size("vit_large_patch16_224", "vit_tiny_patch16_224"), "resize": 224}
    settings = {
        "name": "gpu", "data_root": "data", "results_root": "results", "demo": {"generate": False}, "models": ["cca"],
        "device": str(bench.device), "shard_size": bench.size(4096, 4), "extract": {"precision": "bfloat16"},
        "collection": {"format": "webdataset", "default_split": "gallery"},
        "encoders": [{**resnet, "resize": bench.size(224, 64), "crop": None},
                     {**resnet, **vit, "name": "vit_l_16", "crop": None}],
    }  # fmt: skip
    Path("run.yaml").write_text(json.dumps(settings))

    def ingest() -> dict[str, Any]:
        start = time.perf_counter()
        command("ingest", "--set-config", "run.yaml")
        return {"value": bench.size(49_152, 12) / (time.perf_counter() - start)}

    def steady(name: str) -> dict[str, Any]:
        if name == "vit_l_16" and find_spec("timm") is None:
            raise ImportError("ViT-L/16 is not measured, because timm is not installed. Install timm to measure it.")
        command("prepare-encoder", name)
        begun = time.strftime("%T")
        said = command("extract", name)
        found = re.findall(r"(\d+) images in .* s, (\d+) images/s: decode (\d+)%, .*forward (\d+)%; limited", said)
        images, rates, decoding, forward = np.array(found, float)[2:].T
        seconds = images / rates.clip(1)
        shares = np.array([decoding, forward]) @ seconds / seconds.sum() / 100
        line = {"value": images.sum() / seconds.sum(), "decode": shares[0], "forward": shares[1]}
        return {**line, "busy": busy(bench, begun), **compare(name)}

    def compare(name: str) -> dict[str, Any]:
        from pipeline.encoders.image_encoder import ImageEncoder
        from pipeline.encoders.restore import restore_encoder
        from pipeline.run.run import Run

        run = Run(Path("results/gpu"))
        encoder = restore_encoder(ImageEncoder, run.encoder(name))
        images = [decode(data, LIMITS) for data in make_jpegs(bench.size(500, 5))[: bench.size(16, 2)]]
        expected = extract(encoder, [prepare(image, encoder.preprocessing) for image in images], torch.device("cpu"))
        found = run.features.open(name, 0)["features"][: len(images)]
        return agreement(found, expected, allowed=0.045)  # A cosine of 0.999 gives this difference.

    bench.measure("ingest", "", "images/s", "", ingest)
    for name in ("resnet50", "vit_l_16"):
        bench.measure(f"extract {name}", "shards 3 to 12", "images/s", "bfloat16", steady, name)


def busy(bench: Bench, begun: str) -> float:
    """Return the median load of the GPU, from 0 to 1, over the seconds with any load since the time `begun` (HH:MM:SS).

    The loads are in the file dmon.txt in the folder of the results. The result is NaN if there are no loads.
    """
    path = bench.path.with_name("dmon.txt")
    lines = [line.strip("# ").split() for line in path.read_text().splitlines()] if path.exists() else []
    column = next((line.index("sm") for line in lines if "sm" in line), None)
    loads = [line[column] for line in lines if column and len(line) > column and line[0] >= begun]
    return float(np.median([int(load) for load in loads if load.isdigit() and load != "0"] or [np.nan])) / 100


def by_opencv(data: bytes) -> np.ndarray:
    import cv2

    return cv2.cvtColor(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


DECODERS: dict[str, Callable[[bytes], np.ndarray]] = {
    "Pillow, resized by torch": lambda data: np.array(decode(data, LIMITS)),
    "torchvision, resized by torch": lambda data: decode_jpeg(as_tensor(data)).permute(1, 2, 0).numpy(),
    "OpenCV, resized by torch": by_opencv,
}
KINDS = (PRESENT, *DECODERS)


def decode_by(kind: str, data: bytes, side: int) -> np.ndarray:
    """Return the pixels (side, side, 3) of a JPEG from the decoder `kind`. For TRANSPORT, all pixels are black."""
    if kind == TRANSPORT:
        return np.zeros((side, side, 3), np.uint8)
    if kind == PRESENT:
        (image,) = decode_pixels(data, LIMITS, [side])
        return prepare(image, Preprocessing(side, None, (0, 0, 0), (1, 1, 1)))
    image = torch.from_numpy(DECODERS[kind](data)).permute(2, 0, 1)[None]
    return interpolate(image, (side, side), mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()


def decode_item(count: int, side: int, item: tuple[str, int]) -> np.ndarray:
    """Decode JPEG number n modulo `count` in a decoder process, and return its pixels as `decode_by` does. `item` has
    the kind of decoder and the number n.
    """
    torch.set_num_threads(1)
    kind, number = item
    return decode_by(kind, make_jpegs(count)[number % count], side)


def measure_rate(outcomes: Iterator[Any], under_way: int, images: int) -> dict[str, Any]:
    """Measure the rate at which `images` outcomes of decoder processes arrive. The first `under_way` outcomes of the
    iterator are taken before and are not measured.

    Return the rate in images per second as `value`, and the CPU time of the main process for each image in microseconds
    as `main_us`. If an outcome is a failure, return only its reason as `error`. Raises RuntimeError if the iterator
    ends early.
    """
    deque(islice(outcomes, under_way), maxlen=0)
    start = time.perf_counter()
    begun = time.process_time()
    reasons = [outcome.reason if isinstance(outcome, Failure) else "" for outcome in islice(outcomes, images)]
    spent = time.process_time() - begun
    value = images / (time.perf_counter() - start)
    if len(reasons) < images:
        raise RuntimeError(
            f"The decoder processes ended after {len(reasons)} of {images} images. Read log.txt for the cause."
        )
    failed = next(filter(None, reasons), None)
    return {"error": failed} if failed else {"value": value, "main_us": 1e6 * spent / images}


def decoders(bench: Bench) -> None:
    """Measure four decoders on the CPU, then nvJPEG, in images per second. Compare their pixels, and the features of
    these pixels, with the decoder that `extract` uses (PRESENT).

    The decoder processes use one decoder after the other. The measurement of a decoder begins when all photos for the
    decoder before it have arrived. The rate of TRANSPORT, which decodes nothing, is the highest rate at which the main
    process can receive photos.
    """
    count = bench.size(128, 4)
    side = bench.size(224, 64)
    encoder = make_encoder(bench)
    encoded = list(map(as_tensor, make_jpegs(count)))
    decode_there = partial(decode_jpeg, device=bench.device)

    def decoded(kind: str) -> np.ndarray:
        return np.stack([decode_by(kind, data, side) for data in make_jpegs(count)])

    def compare(pixels: np.ndarray) -> dict[str, Any]:
        features = (extract(encoder, images, bench.device) for images in (pixels, decoded(PRESENT)))
        levels = np.abs(pixels.astype(int) - decoded(PRESENT)).mean()
        return {"value": agreement(*features)["cosine"], "pixel_levels": float(levels)}

    def nvjpeg(threads: int) -> dict[str, Any]:
        batches = [encoded] * bench.size(4 * threads, 1)
        with ThreadPoolExecutor(threads) as pool:
            seconds = bench.seconds(lambda: list(pool.map(decode_there, batches)), 3)
        return {"value": len(batches) * count / seconds}

    def resize() -> dict[str, Any]:
        images = torch.stack(decode_there(encoded))
        work = partial(interpolate, size=(side, side), mode="bilinear", antialias=True)
        compared = compare(work(images.float()).round().byte().permute(0, 2, 3, 1).cpu().numpy())
        seconds = bench.seconds(lambda: work(images.float()).round().byte())
        return {**compared, "cosine": compared["value"], "value": count / seconds}

    for kind in KINDS:
        bench.measure(kind, "cosine to now", "", "float32", lambda kind=kind: compare(decoded(kind)))
    for processes in bench.size((8, 14, 16), (2,)):
        under_way = CHUNKS_AHEAD * CHUNK_ITEMS * processes
        images = bench.size(768, 16) * processes
        items = ((kind, number) for kind in (*KINDS, TRANSPORT) for number in range(under_way + images))
        outcomes = shared_map(partial(decode_item, count, side), items, processes, 3 * side**2)
        for kind in (*KINDS, TRANSPORT):
            bench.measure(
                kind, f"{processes} processes", "images/s", "uint8", measure_rate, outcomes, under_way, images
            )
    for threads in bench.size((1, 2, 4), (1,)):
        bench.measure("nvJPEG", f"{threads} threads", "images/s", "uint8", nvjpeg, threads)
    bench.measure("nvJPEG", "resize", "images/s", "uint8", resize)
