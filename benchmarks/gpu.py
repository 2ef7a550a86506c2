"""What a GPU does with each stage that it serves, against what it could do.

    python benchmarks/gpu.py [--device cuda]

Extraction from pixels in memory, over the bare forward pass of the same network on batches that lie on the device.
Moments of blocks of 4,096 halves and 3,000 sparse terms, over the bare product of such a block with itself in float32.
Training steps at batch 100: `busy` is the share of the time in which the device computes, `drawing` that in which the
processor draws the next batch. Exact search, over the bare products. It needs torch, torchvision, scikit-learn, h5py,
pyarrow, pydantic and click, and nothing else that the stages need. `--device cpu` is for trying it out.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from interleave import compare, report

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from pairs import DIM_X, DIM_Y, make_pairs  # noqa: E402

from pipeline.device import find_device, full_float32, upload  # noqa: E402
from pipeline.images.extraction import Extractor, choose_plan  # noqa: E402
from pipeline.images.networks import NetworkSpec, untrained  # noqa: E402
from pipeline.images.preprocess import Preprocessing  # noqa: E402
from pipeline.index.exact import search_exact  # noqa: E402
from pipeline.index.vectors import ArrayVectors  # noqa: E402
from pipeline.models.linear.accumulation import BLOCK_ROWS  # noqa: E402
from pipeline.models.linear.device_moments import DeviceAccumulator  # noqa: E402
from pipeline.models.linear.views import ImageView  # noqa: E402
from pipeline.models.neural.region_views import RegionView  # noqa: E402
from pipeline.models.neural.task import TrainingPairs, TrainingTask  # noqa: E402
from pipeline.models.neural.training import Training  # noqa: E402
from pipeline.precision import choose_precision, to_float32  # noqa: E402
from pipeline.specs.models import model_spec  # noqa: E402
from pipeline.specs.places import import_place  # noqa: E402
from pipeline.text.sequences import Tokens  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORDS, WORD_DIM, SENTENCES, REGIONS, WARM = 8000, 300, 5, 20, 10
SETTINGS = {
    "dimensions": 512, "loss": "info-nce", "negatives": "all", "contrastive": 1, "margin": 0.2, "temperature": 0.1,
    "optimiser": "adam", "adagrad_reset": 5, "learning_rate": 0.001, "decay": 1.0, "weight_decay": 0.0,
    "averaging": 0.98, "dropout": 0.3, "encoder_dropout": 0.0, "clip": 2.0, "batch_size": 100, "epochs": 10**6,
    "patience": 10**6, "precision": "auto", "checkpoint_seconds": 60,
}  # fmt: skip
OWN = {
    "lstm": {},
    "dvsa": {"hidden": 300, "sum": "mean-words", "global_weight": 0, "instance_weight": 0, "element_clip": 5.0},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="*", default=["vgg16", "resnet50"])
    parser.add_argument("--images", type=int, default=2048, help="That are extracted.")
    parser.add_argument("--batch", type=int, default=128, help="Images in one forward pass.")
    parser.add_argument("--blocks", type=int, default=32, help="Of images whose moments are summed.")
    parser.add_argument("--steps", type=int, default=200, help="Of training.")
    parser.add_argument("--trained", type=int, default=500, help="Images that are learned from.")
    parser.add_argument("--vectors", type=int, default=1 << 20, help="That are searched.")
    parser.add_argument("--queries", type=int, default=4096, help="That search.")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no CUDA device here that torch can use; run this on a machine with a GPU.", file=sys.stderr)
        return 1
    device = find_device(options.device)
    report({"name": "device", **describe(device)})
    for architecture in options.networks:
        report(extraction(architecture, device, options))
    report(moments(device, options))
    for name in OWN:
        report(training(name, device, options))
    report(search(device, options))
    return 0


def describe(device: torch.device) -> dict[str, Any]:
    about = {"device": str(device), "torch": torch.__version__, "threads": runtime.threads()}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {"card": found.name, "gib": found.total_memory / 2**30, "capability": f"{found.major}.{found.minor}"}
    return about


def finished(work: Callable[[], Any], device: torch.device) -> Callable[[], None]:
    """`work`, and the wait until the device has done it."""

    def run() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return run


def extraction(architecture: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    spec = NetworkSpec(architecture, "average", Preprocessing(224, None, MEAN, STD), flip=False)
    encoder = untrained(spec, seed=0)
    plan = choose_plan(encoder, str(device), "auto", options.batch)
    extractor, bare = Extractor(encoder, plan), encoder.optimised(device, plan.dtype)
    few = list(np.random.default_rng(0).integers(0, 256, (options.batch, 224, 224, 3), dtype=np.uint8))
    pixels = [few[i % len(few)] for i in range(options.images)]
    with torch.inference_mode():
        ready = bare.normalise(upload(np.stack(few), device))

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(0, options.images, options.batch):
                bare.body(ready)

    ours, reference = (finished(work, device) for work in (lambda: list(extractor(pixels)), forward))
    result = compare(f"{architecture} extraction over the bare forward pass", ours, reference, options.pairs)
    rate = {"images_per_s": options.images / result["ours"], "precision": plan.precision, "batch": options.batch}
    return {**result, **rate}


def moments(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    x, y = make_pairs(BLOCK_ROWS)
    view, owners = ImageView(("made-up",), (DIM_X,), ()), np.arange(BLOCK_ROWS)
    halves, rows = {"made-up": x.astype(np.float16)}, options.blocks * BLOCK_ROWS

    def ours() -> None:
        accumulator = DeviceAccumulator(view, DIM_Y, runtime.threads(), device)
        for _ in range(options.blocks):
            accumulator.add(halves, y, owners)
        accumulator.result()

    block, total = upload(x, device), torch.zeros(DIM_X, DIM_X, device=device)

    def product() -> None:
        with full_float32():
            for _ in range(options.blocks):
                total.addmm_(block.T, block)

    works = (finished(work, device) for work in (ours, product))
    result = compare("moments over the bare product in float32", *works, options.pairs)
    bare = 2 * rows * DIM_X**2 / result["reference"] / 1e12
    return {**result, "rows": rows, "rows_per_s": rows / result["ours"], "bare_tflop_per_s": bare}


class TimedBlock(NamedTuple):
    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray


class MadeUpRegions:
    """REGIONS regions of each of n images, stored in halves."""

    def __init__(self, n: int) -> None:
        self.features = make_features(n * REGIONS).reshape(n, REGIONS, DIM_X)

    def __len__(self) -> int:
        return len(self.features)

    def packed(self, rows: np.ndarray) -> TimedBlock:
        count = len(rows) * REGIONS
        features = to_float32(self.features[rows].reshape(count, DIM_X))
        return TimedBlock(features, np.zeros((count, 4)), np.zeros(count), np.arange(0, count + 1, REGIONS))


def make_features(n: int) -> np.ndarray:
    some = np.maximum(np.random.default_rng(0).standard_normal((min(n, 512), DIM_X), dtype=np.float32), 0)
    return np.resize(some.astype(np.float16), (n, DIM_X))


def make_task(name: str, device: torch.device, images: int) -> TrainingTask:
    """Images with five sentences of about 11 words each."""
    rng, m, spec = np.random.default_rng(0), SENTENCES * images, model_spec(name)
    lengths = np.clip(rng.normal(11, 4, m).astype(int), 3, 35)
    sentences = Tokens(rng.integers(0, WORDS, lengths.sum()).astype(np.int32), np.concatenate([[0], lengths.cumsum()]))
    regions = MadeUpRegions(images) if name == "dvsa" else None
    view, owners = ImageView(("made-up",), (DIM_X,), ("l2",)), np.repeat(np.arange(images), SENTENCES)
    pairs = TrainingPairs({"made-up": make_features(images)}, sentences, owners, np.arange(m), regions)
    return TrainingTask(
        view, pairs, pairs, import_place(spec.section)(**SETTINGS, **OWN[name]), seed=0,
        precision=choose_precision("auto", device), train_words=True, region_view=RegionView(view, geometry=False),
        words=rng.standard_normal((WORDS + 1, WORD_DIM), dtype=np.float32) * np.float32(0.1), device=device,
    )  # fmt: skip


class Enough(Exception):
    """As many steps as are timed."""


def seconds_of(training: Training, steps: int, device: torch.device) -> float:
    """Of `steps` more steps, without those that warm up."""
    first, marks = training.steps_done + WARM, []

    def after_step(training: Training) -> None:
        if training.steps_done in (first, first + steps):
            finished(lambda: None, device)()
            marks.append(time.perf_counter())
        if len(marks) == 2:
            raise Enough

    with suppress(Enough):
        training.run(after_step)
    return marks[1] - marks[0]


def training(name: str, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Steps of the registered model `name`; dev is judged at no cost."""
    task = make_task(name, device, options.trained)
    loop = model_spec(name).load().trainer(task).training
    loop.judge, draw, drawing = lambda: 0.0, loop.draw, [0.0]

    def timed(rows: np.ndarray) -> Any:
        start = time.perf_counter()
        drawn = draw(rows)
        drawing[0] += time.perf_counter() - start
        return drawn

    loop.draw = timed
    before = loop.steps_done
    seconds = seconds_of(loop, options.steps, device)
    share = drawing[0] / (loop.steps_done - before) * options.steps / seconds
    busy = None
    if device.type == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            seconds_of(loop, options.steps, device)
        computed = sum(times(profile)) / 1e6 / (options.steps + WARM)
        busy = computed * options.steps / seconds if computed else None
    return {
        "name": f"training {name}", "batch": SETTINGS["batch_size"], "seconds_per_step": seconds / options.steps,
        "busy": busy, "drawing": share, "precision": str(task.precision).removeprefix("torch."),
    }  # fmt: skip


def times(profile: torch.profiler.profile) -> Iterator[float]:
    """Microseconds of each kernel; torch before 2.4 called them otherwise."""
    for event in profile.key_averages():
        yield getattr(event, "self_device_time_total", None) or getattr(event, "self_cuda_time_total", 0)


def search(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((options.vectors, 512), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    queries = vectors[generator.integers(0, len(vectors), options.queries)]
    queries += 0.02 * generator.standard_normal(queries.shape, dtype=np.float32)
    there, asked = upload(vectors, device), upload(queries, device)

    def products() -> None:
        with full_float32():
            for part in there.split(1 << 16):
                for some in asked.split(1024):
                    some @ part.T

    found = search_exact(queries, ArrayVectors(vectors).blocks(), 10, "inner_product", device)
    checked = np.arange(0, len(queries), max(1, len(queries) // 8))
    exact = [queries[checked].astype(float) @ part.T.astype(float) for part in ArrayVectors(vectors, 1 << 16).blocks()]
    true = np.argsort(-np.hstack(exact), axis=1, kind="stable")[:, :10]
    works = (lambda: search_exact(queries, ArrayVectors(vectors).blocks(), 10, "inner_product", device), products)
    ours, reference = (finished(work, device) for work in works)
    result = compare("exact search over the bare products", ours, reference, options.pairs)
    right = {"right": bool((found.rows[checked] == true).all()), "queries_per_s": len(queries) / result["ours"]}
    return {**result, "vectors": len(vectors), "queries": len(queries), **right}


if __name__ == "__main__":
    sys.exit(main())
