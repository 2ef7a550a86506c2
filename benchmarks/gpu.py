"""What a GPU does with each stage that it serves, against what it could do.

    python benchmarks/gpu.py [--device cuda]

Extraction from pixels in memory and from JPEGs of 500 x 375, and regions by roi-align, over the bare forward pass of
the same network on batches that lie on the device. Two processes that extract on one card, over one after the other.
FAISS's assignment of vectors to lists, over the bare products.
Moments of blocks of 4,096 halves and 3,000 sparse terms, over the bare product of such a block with itself in float32.
Training steps at batch 100: `busy` is the share of the time in which the device computes, `drawing` that in which the
processor draws the next batch. Exact search, over the bare products. It needs torch, torchvision, scikit-learn, h5py,
pyarrow, pydantic and click, and nothing else that the stages need. `--device cpu` is for trying it out.
"""

import argparse
import subprocess
import sys
from typing import Any

from interleave import compare, report

from pipeline import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import torch  # noqa: E402
from gpu_pixels import extraction, finished, from_jpegs, regions  # noqa: E402
from gpu_training import OWN, training  # noqa: E402
from pairs import DIM_X, DIM_Y, make_pairs  # noqa: E402

from pipeline.device import find_device, full_float32, upload  # noqa: E402
from pipeline.index.exact import search_exact  # noqa: E402
from pipeline.index.vectors import ArrayVectors  # noqa: E402
from pipeline.models.linear.accumulation import BLOCK_ROWS  # noqa: E402
from pipeline.models.linear.device_moments import DeviceAccumulator  # noqa: E402
from pipeline.models.linear.views import ImageView  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="*", default=["vgg16", "resnet50"])
    parser.add_argument("--images", type=int, default=2048, help="That are extracted.")
    parser.add_argument("--batch", type=int, default=128, help="Images in one forward pass.")
    parser.add_argument("--decoders", type=int, default=max(2, runtime.threads() - 2), help="Processes that decode.")
    parser.add_argument("--lists", type=int, default=16384, help="Of an inverted file.")
    parser.add_argument("--blocks", type=int, default=32, help="Of images whose moments are summed.")
    parser.add_argument("--steps", type=int, default=200, help="Of training.")
    parser.add_argument("--trained", type=int, default=500, help="Images that are learned from.")
    parser.add_argument("--vectors", type=int, default=1 << 20, help="That are searched.")
    parser.add_argument("--queries", type=int, default=4096, help="That search.")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--alone", metavar="NETWORK", help="Print the seconds of one extraction, and end.")
    options = parser.parse_args()
    if options.alone:
        print(alone(options))
        return 0
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("There is no CUDA device here that torch can use; run this on a machine with a GPU.", file=sys.stderr)
        return 1
    device = find_device(options.device)
    report({"name": "device", **describe(device)})
    for architecture in options.networks:
        for part in (extraction, from_jpegs, regions):
            report(part(architecture, device, options))
    report(sharing(options))
    report(moments(device, options))
    for name in OWN:
        report(training(name, device, options))
    report(search(device, options))
    report(assignment(device, options))
    return 0


def describe(device: torch.device) -> dict[str, Any]:
    about = {"device": str(device), "torch": torch.__version__, "threads": runtime.threads()}
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {"card": found.name, "gib": found.total_memory / 2**30, "capability": f"{found.major}.{found.minor}"}
    return about


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
    right = {"right": float((found.rows[checked] == true).mean()), "queries_per_s": len(queries) / result["ours"]}
    return {**result, "vectors": len(vectors), "queries": len(queries), **right}


def assignment(device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Vectors to the lists of an inverted file, as its training by `build-index` does it."""
    name = "assignment to lists over the bare products"
    try:
        from pipeline.index.candidates import flat_on
    except ImportError as error:
        return {"name": name, "skipped": f"no FAISS here ({error})"}
    generator = np.random.default_rng(0)
    vectors = generator.standard_normal((min(options.vectors, 1 << 18), 128), dtype=np.float32)
    centroids = generator.standard_normal((options.lists, 128), dtype=np.float32)
    index = None if device.type == "cpu" else flat_on(device, 128, 1)
    if index is None:
        return {"name": name, "skipped": "FAISS has no GPU to use here"}
    index.add(centroids)
    there, asked = upload(centroids, device), upload(vectors, device)

    def products() -> None:
        with full_float32():
            for part in asked.split(1 << 14):
                (part @ there.T).argmax(dim=1)

    works = (lambda: index.search(vectors, 1), products)
    ours, reference = (finished(work, device) for work in works)
    result = compare(name, ours, reference, options.pairs)
    return {**result, "lists": options.lists, "vectors_per_s": len(vectors) / result["ours"]}


def sharing(options: argparse.Namespace) -> dict[str, Any]:
    """Two processes that extract at once, over the same one after the other."""
    command = [sys.executable, __file__, "--alone", options.networks[0], "--device", options.device]
    command += ["--images", str(options.images), "--batch", str(options.batch)]

    def run(at_once: int) -> float:
        """Seconds in which the networks compute, of the process that takes longest, or of both together."""
        seconds: list[float] = []
        for _ in range(0, 2, at_once):
            started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(at_once)]
            seconds.append(max(float(process.communicate()[0].splitlines()[-1]) for process in started))
        return sum(seconds)

    together, alone = run(2), run(1)
    return {"name": "two processes at once over one after the other", "ratio": alone / together, "together": together}


def alone(options: argparse.Namespace) -> float:
    """Seconds of an extraction from pixels in memory, without its start."""
    device = find_device(options.device)
    return extraction(options.alone, device, argparse.Namespace(**{**vars(options), "pairs": 3}))["ours"]


if __name__ == "__main__":
    sys.exit(main())
