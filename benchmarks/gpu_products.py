"""The parts of gpu_all.sh that multiply matrices and train."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from epochs import make_loop, make_start, runner
from gpu_parts import Bench
from pairs import DIM_X, DIM_Y, make_pairs

from pipeline.index.exact import search_exact
from pipeline.index.vectors import ArrayVectors
from pipeline.models.linear.accumulation import mapped_moments
from pipeline.models.linear.device import DeviceAccumulator, Projections
from pipeline.models.linear.feature_maps import FeatureMaps, FourierFeatures, FourierMap
from pipeline.models.linear.moments import BLOCK_ROWS
from pipeline.models.linear.views import ImageView, ViewBlock

VIEW = ImageView(("made-up",), (DIM_X,), ())


def make_block(rows: int, sentences: int = 1) -> ViewBlock:
    """Images in half precision, as they are stored, with some sentences each."""
    images = make_pairs(rows)[0].astype(np.float16)
    return ViewBlock(images, make_pairs(rows * sentences)[1], np.repeat(np.arange(rows), sentences))


def sum_block(block: ViewBlock, times: int, device: torch.device) -> DeviceAccumulator:
    accumulator = DeviceAccumulator(VIEW, DIM_Y, device)
    for _ in range(times):
        accumulator.add({"made-up": block.x}, block.y, block.owners)
    return accumulator


def make_vectors(count: int, dim: int) -> np.ndarray:
    vectors = np.random.default_rng(count).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def parity_products(bench: Bench) -> None:
    block = make_block(bench.size(BLOCK_ROWS, 64))
    rng = np.random.default_rng(0)
    known = sum_block(block, 1, torch.device("cpu")).result()
    single = replace(block, x=block.x.astype(np.float32))
    drawn = FourierMap.draw("cosine-sine", 16, bench.size(2048, 32), 1.0, rng)
    matrix = rng.standard_normal((DIM_X, 16), dtype=np.float32) / np.float32(DIM_X**0.5)
    maps = FeatureMaps(image=FourierFeatures(matrix, np.zeros(16, np.float32), drawn, 1.0))
    vectors = make_vectors(bench.size(1 << 17, 500), 128)
    queries = make_vectors(64, 128)

    def moments(device: torch.device) -> np.ndarray:
        found = sum_block(block, 1, device).result()
        return np.hstack([found.xx, found.xy])

    def losses(device: torch.device) -> np.ndarray:
        loop = make_loop("lstm", device, dropout=0.0, precision="float32")
        runner(loop, bench.size(20, 1))()
        return np.array([[loop.checkpoint().progress["losses"]]])

    bench.parity("moments", moments)
    bench.parity("moments of mapped views", lambda device: mapped_moments(known, [single], maps, device).xx)
    bench.parity("projection", lambda device: Projections(make_start(), device).images({"made-up": block.x}))
    bench.parity("exact search", lambda device: search_exact(queries, [vectors], 10, "inner_product", device).scores)
    bench.parity("losses of lstm", losses)


def moments(bench: Bench) -> None:
    def summed(sentences: int) -> dict[str, Any]:
        rows = bench.size(BLOCK_ROWS, 64)
        blocks = bench.size(16, 1)
        block = make_block(rows, sentences)
        seconds = bench.seconds(lambda: sum_block(block, blocks, bench.device), 3)
        floor = bench.floor("fp32", blocks * rows * DIM_X**2)
        return {"seconds": seconds, "rows_per_s": blocks * rows / seconds, "floor": floor}

    for sentences in (1, 5):
        bench.measure(f"{sentences} sentences an image", summed, sentences)


def search(bench: Bench) -> None:
    vectors = make_vectors(bench.size(1 << 19, 3000), 512)
    queries = make_vectors(bench.size(1024, 16), 512)

    def exact(k: int) -> dict[str, Any]:
        blocks = ArrayVectors(vectors).blocks
        seconds = bench.seconds(lambda: search_exact(queries, blocks(), k, "inner_product", bench.device), 3)
        floor = bench.floor("fp32", 2 * vectors.size * len(queries))
        return {"seconds": seconds, "queries_per_s": len(queries) / seconds, "floor": floor}

    def cluster() -> dict[str, Any]:
        from pipeline.index.candidates import ROUNDS, find_centroids  # FAISS

        lists = bench.size(16_384, 16)
        seconds = bench.seconds(lambda: find_centroids(vectors, lists, True, bench.device), 1)
        return {"seconds": seconds, "floor": bench.floor("fp32", 2 * vectors.size * lists * ROUNDS)}

    for k in (10, 100):
        bench.measure(f"exact search, k = {k}", exact, k)
    bench.measure("k-means", cluster)


def training(bench: Bench) -> None:
    def train(name: str) -> dict[str, Any]:
        loop = make_loop(name, bench.device)
        steps = bench.size(50, 1)
        run = runner(loop, steps)
        seconds = bench.seconds(run, 1)
        values = {"ms_a_step": 1e3 * seconds / steps, "batch": loop.schedule.batch_size}
        if not bench.on_gpu:
            return values
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            run()
        events = [event for event in profile.key_averages() if event.self_device_time_total]
        kernels = [event for event in events if not event.is_user_annotation]  # which would count kernels twice
        busy = sum(event.self_device_time_total for event in kernels) / 1e6 / seconds
        return {**values, "busy": busy, "kernels_a_step": sum(event.count for event in kernels) / steps}

    for name in ("lstm", "gru", "dvsa"):
        bench.measure(name, train, name)
