"""The parts of gpu_all.sh that see pixels."""

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_parts import Bench, agreement
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode
from torchvision.io import decode_jpeg
from torchvision.models import get_model
from torchvision.transforms.v2.functional import resize

from pipeline.compute import runtime
from pipeline.compute.device import full_float32, upload
from pipeline.encoders.detectors import build_detector, detect
from pipeline.encoders.extraction import ExtractionPlan, Extractor, make_probes
from pipeline.encoders.image_encoder import ModuleEncoder
from pipeline.encoders.networks import NetworkEncoder, NetworkSpec, untrained
from pipeline.encoders.preparation import PreparedImage, WholeImages
from pipeline.encoders.regions import RegionExtractor
from pipeline.images.boxes import Candidates
from pipeline.images.opening import ImageLimits
from pipeline.images.preprocess import Photograph, PhotographReader, Preprocessing
from pipeline.index.exact import search_exact

LIMITS = ImageLimits(max_pixels=64_000_000, min_side=8, max_aspect=20)
PHOTOGRAPH, DETECTOR = (500, 375), "fasterrcnn_mobilenet_v3_large_320_fpn"


def make_encoder(bench: Bench, architecture: str = "resnet50", layer: str = "average") -> NetworkEncoder:
    preprocessing = Preprocessing(bench.size(224, 64), None, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    name = "squeezenet1_1" if bench.tiny else architecture
    return untrained(NetworkSpec(name, layer, preprocessing, flip=False), seed=0)


def make_pixels(bench: Bench, count: int) -> np.ndarray:
    side = bench.size(224, 64)
    return np.resize(make_probes(side), (count, side, side, 3))


def extract(
    encoder: NetworkEncoder,
    pixels: Iterable[np.ndarray],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    batch: int = 64,
) -> np.ndarray:
    return Extractor(encoder, ExtractionPlan(device, dtype, batch))(pixels)


def parity_pixels(bench: Bench) -> None:
    encoder, view, rng = make_encoder(bench), WholeImages(bench.size(224, 64), 32, 2.0), np.random.default_rng(0)
    pixels, images = make_pixels(bench, bench.size(16, 2)), list(make_probes(bench.size(320, 64))[:2])
    corners = np.sort(rng.random((20, 2, 2), dtype=np.float32), axis=1).reshape(-1, 4)
    boxes = Candidates(corners * np.tile(np.float32(PHOTOGRAPH), 2), np.ones(20, np.float32))
    picture = view.render(Image.fromarray(images[0]).resize(PHOTOGRAPH), boxes.boxes)
    prepared = [PreparedImage(boxes, picture, PHOTOGRAPH, Counter())] * 4
    state = get_model(DETECTOR, weights=None, weights_backbone=None).state_dict()

    def bfloat16(device: torch.device) -> np.ndarray:
        return extract(encoder, pixels, device, torch.float32 if device.type == "cpu" else torch.bfloat16)

    def regions(device: torch.device) -> np.ndarray:
        return np.concatenate(RegionExtractor(encoder, ExtractionPlan(device, torch.float32, 8), view)(prepared))

    def proposals(device: torch.device) -> np.ndarray:
        network = build_detector(DETECTOR, state, DETECTOR)
        return np.stack([each.scores[:20] for each in detect(network, images, device, "rpn", 2)])

    bench.parity("resnet50 float32", lambda device: extract(encoder, pixels, device))
    bench.parity("resnet50 bfloat16", bfloat16)
    bench.parity("regions by roi-align", regions)
    bench.parity("scores of proposals", proposals)
    if not bench.tiny:
        vgg = make_encoder(bench, "vgg16", "fc7")
        bench.parity("vgg16 fc7 float32", lambda device: extract(vgg, pixels, device))


def make_jpegs(count: int) -> list[bytes]:
    picture = np.asarray(Image.fromarray(make_probes(512)[0]).resize(PHOTOGRAPH, Image.Resampling.BICUBIC))
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        data = io.BytesIO()
        Image.fromarray(np.roll(picture, rng.integers(0, 300, 2), (0, 1))).save(data, "JPEG", quality=88)
        files.append(data.getvalue())
    return files


def end_to_end(bench: Bench) -> None:
    """JPEGs in a tar through the commands, as a user calls them; then some features against the processor's."""
    count, files, side = bench.size(12_288, 12), make_jpegs(bench.size(500, 5)), bench.size(224, 64)
    network = {"name": "network", "architecture": make_encoder(bench).spec.architecture, "weights": "untrained"}
    settings = {
        "name": "gpu", "data_root": "data", "results_root": "results", "demo": {"generate": False},
        "device": str(bench.device), "shard_size": bench.size(4096, 5), "models": ["cca"],
        "collection": {"format": "webdataset", "default_split": "gallery"},
        "encoders": [{**network, "resize": side, "crop": None}],
    }  # fmt: skip
    Path("run.yaml").write_text(json.dumps(settings))
    Path("data").mkdir()
    with tarfile.open("data/0.tar", "w") as archive:
        for number in range(count):
            # A JPEG comment of its own, or `ingest` would leave out photographs of the same bytes.
            data = b"\xff\xd8\xff\xfe\x00\x0a%08d" % number + files[number % len(files)][2:]
            member = tarfile.TarInfo(f"{number:08d}.jpg")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))

    def command(*arguments: str) -> dict[str, Any]:
        start, called = time.perf_counter(), [sys.executable, "-m", "stages.cli", *arguments, "--run", "results/gpu"]
        result = subprocess.run(called, capture_output=True, text=True, errors="replace")
        seconds = time.perf_counter() - start
        print(result.stderr[-3000:])
        if result.returncode:
            reason = result.stderr.strip().splitlines()[-1]
            raise ImportError(reason) if "ModuleNotFoundError" in reason else RuntimeError(reason)
        shards = re.findall(r"shard \d+: .* s, (\d+ images/s: .*)", result.stderr)
        return {"seconds": seconds, "images_per_s": count / seconds, "shards": shards}

    def features() -> dict[str, float]:
        from pipeline.encoders.image_encoder import ImageEncoder
        from pipeline.encoders.restore import restore_encoder
        from pipeline.run.run import Run

        run, few = Run(Path("results/gpu")), bench.size(32, 4)
        photographs = [Photograph.from_row(row) for row in run.manifest.table("images", 0).slice(0, few).to_pylist()]
        encoder = restore_encoder(ImageEncoder, run.encoder("network"))
        pixels = PhotographReader(run.images.read, LIMITS).pixels(photographs, encoder.preprocessing)
        expected = extract(encoder, pixels, torch.device("cpu"))
        return agreement(run.features.open("network", 0)["features"][:few], expected)

    bench.measure("ingest", command, "ingest", "--config", "run.yaml")
    bench.measure("prepare-encoder", command, "prepare-encoder", "network")
    bench.measure("extract", command, "extract", "network")
    if not bench.tiny:
        bench.measure("extract again", command, "extract", "network", "--again")
    bench.measure("features", features)


def pieces(bench: Bench) -> None:
    """What `extract` waits for beside the network: the decoders and the main process; and what a GPU would decode."""
    encoder, files, photographs = make_encoder(bench), make_jpegs(bench.size(128, 4)), []
    for number, data in enumerate(files):
        path = Path(f"{number}.jpg").absolute()
        path.write_bytes(data)
        photographs.append(Photograph(path.name, hashlib.sha256(data).hexdigest(), (path,)))

    def decode(processes: int) -> dict[str, Any]:
        todo = photographs * bench.size(64, 3)
        decoded = PhotographReader(Path.read_bytes, LIMITS, processes).pixels(todo, encoder.preprocessing)
        next(decoded)  # once the processes have started
        start = time.perf_counter()
        rest = sum(1 for _ in decoded)
        return {"images_per_s": rest / (time.perf_counter() - start)}

    def receive() -> dict[str, Any]:
        pixels = make_pixels(bench, bench.size(256, 4))
        seconds = bench.seconds(lambda: upload(np.stack([image.copy() for image in pixels]), bench.device))
        return {"images_per_s": len(pixels) / seconds}

    def nvjpeg() -> dict[str, Any]:
        encoded = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
        size = [encoder.preprocessing.side] * 2

        def decode_there() -> torch.Tensor:
            return torch.stack([resize(one, size, antialias=True) for one in decode_jpeg(encoded, device=bench.device)])

        theirs = decode_there().permute(0, 2, 3, 1).cpu().numpy()
        ours = PhotographReader(Path.read_bytes, LIMITS).pixels(photographs, encoder.preprocessing)
        agree = agreement(extract(encoder, theirs, bench.device), extract(encoder, ours, bench.device))
        return {"images_per_s": len(files) / bench.seconds(decode_there), **agree}

    for processes in sorted({max(2, runtime.threads() - 2), max(2, runtime.threads())}):
        bench.measure(f"decode by {processes} processes", decode, processes)
    bench.measure("copy, stack, pin", receive)
    bench.measure("decode by nvJPEG", nvjpeg)


def rate(bench: Bench, module: ModuleEncoder, batch: int, benchmark: bool = False) -> dict[str, Any]:
    """Of a network on a batch that lies on the device."""
    torch.backends.cudnn.benchmark = benchmark
    with torch.inference_mode(), full_float32():
        ready = module.normalise(upload(make_pixels(bench, batch), bench.device))
        seconds = bench.seconds(lambda: module.body(ready))
        with FlopCounterMode(display=False) as counter:
            getattr(module.body, "_orig_mod", module.body)(ready[:1])
    floor = bench.floor("bf16", batch * counter.get_total_flops())
    return {"seconds": seconds, "images_per_s": batch / seconds, "floor": floor}


def forward(bench: Bench) -> None:
    """The bare forward passes in bfloat16."""
    batches = {"resnet50": (64, 512, 256), "vgg16": (256,), "convnext_tiny": (256,)}
    for architecture in list(batches)[: bench.size(3, 1)]:
        module = make_encoder(bench, architecture).optimised(bench.device, torch.bfloat16)
        for batch in batches[architecture]:
            bench.measure(f"{architecture}, {batch} images", rate, bench, module, bench.size(batch, 2))
        bench.measure(f"{architecture}, 256 images, cudnn.benchmark", rate, bench, module, bench.size(256, 2), True)


def compiled(bench: Bench) -> None:
    module = make_encoder(bench).optimised(bench.device, torch.bfloat16)
    module.body = torch.compile(module.body)
    bench.measure("resnet50, 256 images, torch.compile", rate, bench, module, 256)


def full_memory(bench: Bench) -> None:
    """What does not fit is halved, with the same results."""
    total = torch.cuda.get_device_properties(bench.device).total_memory
    encoder, images = make_encoder(bench), make_pixels(bench, 2048)
    vectors = np.random.default_rng(0).standard_normal((1 << 16, 512), dtype=np.float32)

    def limited(gib: float, work: Callable[[], np.ndarray]) -> dict[str, Any]:
        expected = work()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / total, bench.device)
        try:
            return agreement(work(), expected)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, bench.device)

    def search() -> np.ndarray:
        return search_exact(vectors[:1024], [vectors], 10, "inner_product", bench.device).scores

    bench.measure("extraction in 2 GiB", limited, 2, lambda: extract(encoder, images, bench.device, batch=2048))
    bench.measure("exact search in 0.3 GiB", limited, 0.3, search)
