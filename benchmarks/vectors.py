"""Measures the time from two `.npy` files of synthetic pairs to an index, with `jointspace run` and `jointspace.fit`.

    python benchmarks/vectors.py [--pairs 100000] [--runs 5] [--cores 2] [--folder FILES]

Images and texts are vectors of DIM values. The two vectors of a pair are different linear maps of one latent vector of
LATENT values, with added noise. Every run starts new processes. The output is one JSON line for each of the two ways,
with the medians of the wall seconds and the CPU seconds, the wall seconds of each stage, the peak memory of all
processes together (proportional set sizes), and the recall@10. The recall is measured among all images for texts that
were not used for fitting: the test split of the run, or the last QUERIES texts for `jointspace.fit`. `allowed` is the
recall of the last QUERIES texts by the true likelihood ratio of each pair, which is the best possible recall.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from interleave import parse_options

PAIRS = 100_000
DIM = 768
LATENT = 64
QUERIES = 1000
NOISE = 25.0
"""Standard deviation of the noise in each value. The latent part of a value has the standard deviation sqrt(LATENT)."""
LOOK_SECONDS = 0.5
K = 10
PROGRAM = """
import sys, time
start = time.time()
import numpy as np
import jointspace
from jointspace import space
folder, queries = sys.argv[1], int(sys.argv[2])
images, texts = (np.load(f"{folder}/data/{name}.npy") for name in ("images", "texts"))
names = open(f"{folder}/data/images.txt").read().split()
imported = time.time()
fitted = jointspace.fit(images[:-queries], texts[:-queries])
done = time.time()
index = fitted.index(f"{folder}/index", images, texts, names=names)
indexed = time.time()
index.search(text_vector=texts[-1])
print("import", imported - start, "fit", done - imported, "index", indexed - done, "search", time.time() - indexed)
"""


def draw(pairs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw the images and the texts of `pairs` pairs, each (pairs, DIM) in float32.

    Also return the true log likelihood ratios (QUERIES, pairs) of the last QUERIES texts with all images, as
    `_likelihood_ratios` computes them.
    """
    fixed = np.random.default_rng(0)
    rng = np.random.default_rng(1)
    latent = rng.standard_normal((pairs, LATENT), np.float32)
    matrices = [fixed.standard_normal((LATENT, DIM)).astype(np.float32) for _ in range(2)]
    images, texts = (latent @ matrix + NOISE * rng.standard_normal((pairs, DIM), np.float32) for matrix in matrices)
    return images, texts, _likelihood_ratios(images, texts[-QUERIES:], *matrices)


def _likelihood_ratios(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute log p(x, y) / (p(x) p(y)) for each row of y (q, DIM) with each row of x (n, DIM), up to a term that is
    the same for all x. Return (q, n). `a` and `b` are the maps from the latent vectors to the vectors x and y.

    In the canonical variables u and v of the true covariances, the logarithm is the sum over k of (rho u v - rho^2 (u^2
    + v^2) / 2) / (1 - rho^2), up to a constant.
    """
    xx, yy = (m.T.astype(float) @ m + NOISE**2 * np.eye(DIM) for m in (a, b))
    lx = np.linalg.cholesky(xx)
    ly = np.linalg.cholesky(yy)
    t = np.linalg.solve(ly, np.linalg.solve(lx, a.T.astype(float) @ b).T).T
    left, rho, right = np.linalg.svd(t)
    rho = rho[:LATENT]
    u = x @ np.linalg.solve(lx.T, left[:, :LATENT]).astype(np.float32)
    v = y @ np.linalg.solve(ly.T, right[:LATENT].T).astype(np.float32)
    shape = rho / (1 - rho**2)
    return (v * shape).astype(np.float32) @ u.T - (u**2 @ (rho * shape / 2)).astype(np.float32)


def recall(scores: np.ndarray, owners: np.ndarray) -> float:
    """Return the share of the rows of `scores` (q, n) in which the right column is among the K greatest. `owners` (q,)
    has the right column of each row.
    """
    own = scores[np.arange(len(scores)), owners]
    return float(np.mean((scores > own[:, None]).sum(axis=1) < K))


def make(folder: Path, pairs: int) -> float:
    """Write the files of `pairs` pairs into `folder` if they do not exist. Return the best possible recall@K of the
    last QUERIES texts, from 0 to 1.
    """
    data = folder / "data"
    kept = folder / f"allowed-{pairs}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    data.mkdir(parents=True, exist_ok=True)
    images, texts, ratios = draw(pairs)
    np.save(data / "images.npy", images)
    np.save(data / "texts.npy", texts)
    (data / "images.txt").write_text("".join(f"{row:06d}.jpg\n" for row in range(pairs)))
    (data / "texts.txt").write_text("".join(f"the {row}th text\n" for row in range(pairs)))
    allowed = recall(ratios, np.arange(pairs - len(ratios), pairs))
    kept.write_text(json.dumps(allowed))
    return allowed


def measure(words: list[str], folder: Path, cores: int | None = None) -> dict[str, object]:
    """Run the command `words` in `folder`. Return its wall `seconds`, its `cpu_seconds`, the peak memory of all its
    processes together (`peak_gib`), and its `output`.

    This program ends if the command fails. `cores` is the number of threads of the command, or None for its default.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    threads = {"OMP_NUM_THREADS": str(cores)} if cores else {}
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads})
    peak = [0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], memory(process.pid))
            time.sleep(LOOK_SECONDS)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    if process.returncode:
        raise SystemExit(
            f"The command {' '.join(words)} ended with the exit code {process.returncode}. Its messages are above."
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "cpu_seconds": processor, "peak_gib": peak[0] / 2**20, "output": output}


def memory(top: int) -> int:
    """Return the memory in KiB of the process `top` and of all its descendants, as the sum of the proportional set
    sizes that Linux measures. Memory that processes share counts once.
    """
    parents = {}
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    for process in parents:
        above = process
        while above not in (top, 0):
            above = parents.get(above, 0)
        if above == top:
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total


def by_command(folder: Path, cores: int | None) -> dict[str, object]:
    """Measure `jointspace init` and `jointspace run`. Return the wall `seconds` and `cpu_seconds` of both together, and
    the larger `peak_gib`. `stages` has the seconds of `init` and of the jobs of the run by stage, and `index` the
    folder of the index. `cores` is the number of cores of the run, or None for its default.
    """
    program = str(Path(sys.executable).with_name("jointspace"))
    shutil.rmtree(folder / "results", ignore_errors=True)
    (folder / "data.yaml").unlink(missing_ok=True)
    parts = {"init": measure([program, "init", "data"], folder, cores)}
    options = ["--cores", str(cores)] if cores else []
    parts["run"] = measure([program, "run", "data.yaml", *options], folder, cores)
    stages: dict[str, float] = {}
    for path in (folder / "results/data/benchmarks").glob("*/*.tsv"):
        header, values = (line.split("\t") for line in path.read_text().splitlines())
        stage = path.parent.name
        stages[stage] = stages.get(stage, 0.0) + float(dict(zip(header, values, strict=True))["s"])
    return {
        **{name: sum(part[name] for part in parts.values()) for name in ("seconds", "cpu_seconds")},
        "peak_gib": max(part["peak_gib"] for part in parts.values()),
        "stages": {"init": parts["init"]["seconds"], **stages},
        "index": folder / "results/data/index/ncca",
    }


def by_python(folder: Path, cores: int | None) -> dict[str, object]:
    """Measure PROGRAM, which fits, indexes and searches in one process, and return the values of `measure` except the
    output. `stages` has the seconds of each step that PROGRAM prints, and `index` is the folder of the index. `cores`
    is the number of threads, or None for the default.
    """
    shutil.rmtree(folder / "index", ignore_errors=True)
    found = measure([sys.executable, "-c", PROGRAM, str(folder), str(QUERIES)], folder, cores)
    words = found.pop("output").split()
    return {**found, "stages": dict(zip(words[::2], map(float, words[1::2]), strict=True)), "index": folder / "index"}


def search(index_folder: Path, folder: Path, pairs: int) -> float:
    """Search for the images of the texts that were not used for fitting, and return the recall@K, from 0 to 1. The
    index is in `index_folder`, and the texts of the `pairs` pairs are in `folder`.
    """
    import jointspace

    index = jointspace.load(index_folder)
    texts = np.load(folder / "data/texts.npy", mmap_mode="r", allow_pickle=False)
    table = index._searcher.table("images")  # The table stays in memory after the first use.
    split = np.array(table["split"].to_pylist())
    rows = np.flatnonzero(split == "test") if "test" in split else np.arange(pairs - QUERIES, pairs)
    numbers = [int(path.removesuffix(".jpg")) for path in table["path"].take(rows).to_pylist()]
    embedded = index.embed(text_vectors=texts[numbers])
    hits = index._searcher.nearest("images", embedded, K)
    own = table["path"].take(rows).to_pylist()
    return float(np.mean([path in [hit.row["path"] for hit in few] for path, few in zip(own, hits, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cores", type=int, help="Number of CPU cores. [default: all]")
    parser.add_argument("--way", choices=("command", "python"), help="Way to measure. [default: both]")
    parser.add_argument("--folder", type=Path, help="Folder in which the files are written and kept.")
    given = parse_options(parser, globals(), pairs=400, runs=1, way="python", DIM=16, LATENT=8, QUERIES=40, NOISE=1.0)
    folder = (given.folder or Path(tempfile.mkdtemp())).absolute()
    allowed = make(folder, given.pairs)
    ways = {"command": by_command, "python": by_python}
    for name in [given.way] if given.way else ways:
        runs = [ways[name](folder, given.cores) for _ in range(given.runs)]
        found = search(runs[-1]["index"], folder, given.pairs)
        middle = {
            key: round(statistics.median(run[key] for run in runs), 2) for key in ("seconds", "cpu_seconds", "peak_gib")
        }
        stages = {
            stage: round(statistics.median(run["stages"][stage] for run in runs), 2) for stage in runs[0]["stages"]
        }
        recalls = {"recall@10": round(found, 4), "allowed": round(allowed, 4), "share": round(found / allowed, 3)}
        line = {"name": f"vectors by {name}", "pairs": given.pairs, **recalls, **middle, "runs": given.runs}
        line["slowest"] = round(max(run["seconds"] for run in runs), 2)
        print(json.dumps({**line, "stages": stages}), flush=True)
    if given.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
