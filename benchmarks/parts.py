"""Compares `extract` on shards of 64 images in one process with a separate process for each shard.

python benchmarks/parts.py --shards 64
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from interleave import compare, report
from PIL import Image

from pipeline.compute import runtime

SIDE = 160
IMAGES = 64
NETWORK = {"architecture": "squeezenet1_1", "weights": "untrained", "resize": 128, "crop": 128}
CONFIG = {"demo": {"generate": False}, "models": ["ncca"], "encoders": [{"name": "network", **NETWORK}]}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=2)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = begin(Path(name), chosen.shards)

        def together() -> None:
            (run / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"shards_per_job": chosen.shards}))
            jointspace("extract", "network", "--run", run, "--part", 0, "--force")

        def each() -> None:
            (run / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"shards_per_job": 1}))
            for number in range(chosen.shards):
                jointspace("extract", "network", "--run", run, "--part", number, "--force")

        each_is_new = {
            "threads": runtime.threads(),
            "warm_up": False,
        }  # every call starts new processes, so a warm-up has no effect
        report(compare("one process for a part", together, each, chosen.pairs, **each_is_new))


def begin(folder: Path, shards: int) -> Path:
    """Make a run in `folder` with a manifest of `shards` shards and a network with random weights."""
    rng = np.random.default_rng(0)
    run = folder / "run"
    (folder / "data/images").mkdir(parents=True)
    run.mkdir()
    lines: list[str] = []
    for number in range(shards * IMAGES):
        pixels = rng.integers(256, size=(SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
        lines.append(f"{number:05d}.jpg\t0\tan image of chance\n")
        Image.fromarray(pixels).resize((SIDE, SIDE)).save(folder / f"data/images/{number:05d}.jpg")
    (folder / "data/captions.tsv").write_text("".join(lines))
    config = CONFIG | {"shard_size": IMAGES, "data_root": str(folder / "data")}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    jointspace("ingest", "--run", run)
    jointspace("prepare-encoder", "network", "--run", run)
    return run


def jointspace(*words: object) -> None:
    program = [sys.executable, "-m", "stages.cli", "--quiet", "stage", *map(str, words)]
    subprocess.run(program, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
