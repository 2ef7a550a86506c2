"""The parts of gpu_all.sh that compute from arrays in memory: moments, exact search and networks."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_parts import Bench, agreement
from gpu_pixels import LIMITS, make_encoder, make_jpegs
from pairs import DIM_X, DIM_Y, make_pairs
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import VisionTransformer, get_model

from pipeline.compute.precision import fast_at_float64
from pipeline.encoders.detectors import build_detector, detect
from pipeline.images.boxes import Candidates
from pipeline.images.decode import decode
from pipeline.index.exact import search_exact
from pipeline.models.linear.device import DeviceAccumulator
from pipeline.models.linear.moments import BLOCK_ROWS, Moments
from pipeline.models.linear.views import ImageView
from pipeline.storage.pairs import write_moments

CPU = torch.device("cpu")


def accumulation(bench: Bench) -> None:
    """Measure the time for summing the moments of one shard, and for storing the sum, in milliseconds. The floor of the
    summing is the time for the lower half of the product X'X alone.
    """
    rows = bench.size(BLOCK_ROWS, 64)
    dim_x = bench.size(DIM_X, 128)
    dim_y = bench.size(DIM_Y, 96)
    images = {"network": make_pairs(rows)[0][:, :dim_x].astype(np.float16)}
    precision = "float64" if fast_at_float64(bench.device) else "float32"

    def total(captions: int, shards: int, device: torch.device) -> Moments:
        accumulator = DeviceAccumulator(ImageView(("network",), (dim_x,), ()), dim_y, device)
        for _ in range(shards):
            accumulator.add(images, texts[captions], np.repeat(np.arange(rows), captions))
        return accumulator.result()

    def summed(captions: int) -> dict[str, Any]:
        one, nine = (bench.seconds(partial(total, captions, shards, bench.device), 3) for shards in (1, 9))
        compared = agreement(total(captions, 1, bench.device).xx, total(captions, 1, CPU).xx)
        return {"value": 1e3 * (nine - one) / 8, "floor": 1e3 * rows * dim_x**2 / bench.ceiling(precision), **compared}

    def stored() -> dict[str, Any]:
        folds = {0: total(1, 1, bench.device).to_arrays()}
        none = np.empty(0, np.int64)
        path = Path("moments.h5")
        seconds = bench.seconds(lambda: write_moments(path, folds, none, none, details={}), 3)
        return {"value": 1e3 * seconds, "megabytes": path.stat().st_size / 1e6}

    texts = {captions: make_pairs(rows * captions)[1][:, :dim_y] for captions in (1, 5)}
    for captions in texts:
        bench.measure("moments of a shard", f"{captions} captions per photo", "ms", precision, summed, captions)
    bench.measure("moments of a shard", "storing", "ms", precision, stored)


def exact_search(bench: Bench) -> None:
    """Measure the time of an exact search among 524,288 vectors, in milliseconds. The floor is the time of the matrix
    product in float32 alone.
    """
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((bench.size(1 << 19, 3000), 512), dtype=np.float32)
    queries = rng.standard_normal((bench.size(1024, 16), 512), dtype=np.float32)

    def search(k: int, device: torch.device) -> np.ndarray:
        return search_exact(queries, np.array_split(vectors, 8), k, "inner_product", device).scores

    def exact(k: int) -> dict[str, Any]:
        seconds = bench.seconds(lambda: search(k, bench.device), 3)
        floor = 2 * vectors.size * len(queries) / bench.ceiling("float32")
        return {"value": 1e3 * seconds, "floor": 1e3 * floor, **agreement(search(k, bench.device), search(k, CPU))}

    for k in (10, 100):
        bench.measure("exact search", f"k = {k}", "ms", "float32", exact, k)


def detector(bench: Bench) -> None:
    """Measure the detector of regions in three precisions, in images per second. The weights are random."""
    name = bench.size("fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn")
    count = bench.size(32, 2)
    images = [np.array(decode(data, LIMITS)) for data in make_jpegs(bench.size(500, 5))[:count]]
    state = get_model(name, weights=None, weights_backbone=None).state_dict()
    network = build_detector(name, state, name)

    def find(precision: str) -> list[Candidates]:
        rounding = torch.autocast(bench.device.type, torch.bfloat16) if precision == "bfloat16" else nullcontext()
        with rounding:
            return list(detect(network, images, bench.device, "detections", 16, precision == "tf32"))

    def rate(precision: str) -> dict[str, Any]:
        return {"value": count / bench.seconds(lambda: find(precision), 3)}

    for precision in ("float32", "tf32", "bfloat16"):
        bench.measure("detector", precision, "images/s", precision, rate, precision)


class Traffic(TorchDispatchMode):
    """A mode of torch that counts in `bytes` the bytes that operations read and write. Operations that return a view
    count nothing.
    """

    bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            self.bytes += sum(leaf.nbytes for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor))
        return result


def make_network(bench: Bench, name: str) -> torch.nn.Module:
    """Make the network `name` with random weights on the device, in bfloat16. In a ResNet, batch norms are folded into
    convolutions. For a ViT, torch's fast path of attention is switched off, because its operations would not be
    counted.
    """
    if name == "resnet50":
        return make_encoder(bench).optimised(bench.device, torch.bfloat16).body
    torch.backends.mha.set_fastpath_enabled(False)  # The operations of the fast path would not be counted.
    layers, heads, dim = bench.size({"vit_b_16": (12, 12, 768), "vit_l_16": (24, 16, 1024)}[name], (1, 1, 16))
    with bench.device:
        return VisionTransformer(bench.size(224, 64), 16, layers, heads, dim, 4 * dim).eval().bfloat16()


def capture(network: torch.nn.Module, images: torch.Tensor) -> Callable:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(images)
    return lambda _: graph.replay()


VARIANTS: dict[str, Callable] = {
    "as extract": lambda network, _: network,
    "cudnn.benchmark": lambda network, _: network,
    "CUDA graph": capture,
    "compiled": lambda network, _: torch.compile(network),
}
"""Mapping from a variant of the forward pass to a function. The function gets a network and a batch, and returns the
function that is called with the batch and timed. The last two variants need a GPU.
"""


def forward(bench: Bench) -> None:
    """Measure forward passes of a batch on the device, in images per second, for three networks and the VARIANTS.

    The floor is the rate that is possible if only the multiplications took time, or only the reading and writing of
    memory, whichever rate is lower. `bound` says which of the two sets the floor: `compute` or `memory`.
    """
    count = bench.size(256, 2)
    images = torch.randn(count, 3, *[bench.size(224, 64)] * 2, device=bench.device)
    images = images.to(torch.bfloat16, memory_format=torch.channels_last)

    def rate(network: torch.nn.Module, variant: str) -> dict[str, Any]:
        with torch.no_grad():
            with FlopCounterMode(display=False) as operations, Traffic() as traffic:
                network(images)
            work = VARIANTS[variant](network, images)
            seconds = bench.seconds(lambda: work(images))
        compute = operations.get_total_flops() / bench.ceiling("bfloat16")
        memory = traffic.bytes / bench.ceiling("memory")
        bound = "compute" if compute > memory else "memory" if memory >= compute else math.nan
        return {"value": count / seconds, "floor": count / max(compute, memory), "bound": bound}

    networks = {name: make_network(bench, name) for name in ("resnet50", "vit_b_16", "vit_l_16")}
    for variant in list(VARIANTS)[: 4 if bench.on_gpu else 2]:
        torch.backends.cudnn.benchmark = variant == "cudnn.benchmark"
        for name, network in networks.items():
            bench.measure(f"forward {name}", variant, "images/s", "bfloat16", rate, network, variant)
