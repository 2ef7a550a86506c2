"""Measures the whole way of small photos from tar shards to an index, and estimates the time for a million photos.

    python benchmarks/pixels.py [--images 20000] [--side 128] [--folder pixels] [--cores 2]

The benchmark draws JPEGs with a fixed seed (smooth noise, which takes as long to decode as photos of this size) with
sentences, and writes them as img2dataset does. `snakemake` runs SqueezeNet 1.0 with random weights on images of this
size, up to the index of `ncca`. The output is a Markdown table of stages with jobs, seconds, CPU seconds and images per
second, and the estimated hours for a million images. The time of a stage that passes over the images grows with their
number, and the time of all other stages is taken as constant.
"""

import argparse
import io
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from pipeline.compute import runtime

runtime.configure()

import numpy as np  # noqa: E402  after the BLAS kernels are chosen
import yaml  # noqa: E402
from PIL import Image  # noqa: E402

from pipeline.storage.records import read_benchmarks  # noqa: E402

ROOT = Path(__file__).parents[1]
MILLION = 1_000_000
IN_A_TAR = 5000
HELD_OUT = 1000
COLOURS = ("red", "green", "blue", "grey", "yellow", "dark", "bright", "pale")
PASSES = ("ingest", "extract", "encode_sentences", "accumulate", "embed")
"""Rules whose time is taken to be proportional to the number of images. The time of all other rules is taken as
constant.
"""


def draw(side: int, rng: np.random.Generator) -> tuple[bytes, str]:
    """Draw a picture of smooth noise around one of eight colours. Return the picture as a JPEG of `side` x `side`
    pixels, and a sentence that names the colour and then a random colour.
    """
    kind = int(rng.integers(len(COLOURS)))
    coarse = rng.normal(128, 60, (side // 8, side // 8, 3)) + [90 * (kind >> bit & 1) - 45 for bit in range(3)]
    picture = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=85)
    return data.getvalue(), f"a {COLOURS[kind]} picture with {COLOURS[int(rng.integers(len(COLOURS)))]} spots"


def write_tars(folder: Path, images: int, side: int) -> None:
    rng = np.random.default_rng(0)
    splits = {"dev": HELD_OUT, "test": HELD_OUT, "train": images - 2 * HELD_OUT}
    for split, count in splits.items():
        for first in range(0, count, IN_A_TAR):
            with tarfile.open(folder / f"{split}-{first:07d}.tar", "w") as tar:
                for number in range(first, min(first + IN_A_TAR, count)):
                    data, sentence = draw(side, rng)
                    for suffix, content in (("jpg", data), ("txt", sentence.encode())):
                        member = tarfile.TarInfo(f"{split}{number:07d}.{suffix}")
                        member.size = len(content)
                        tar.addfile(member, io.BytesIO(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=128)
    parser.add_argument("--folder", type=Path, default=Path("pixels"))
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    data = given.folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    encoder = {"name": "net", "architecture": "squeezenet1_0", "weights": "untrained"}
    shards = {split: f"{split}-*.tar" for split in ("train", "dev", "test")}
    config = {
        "name": "pixels", "data_root": "data", "demo": {"generate": False}, "models": ["ncca"],
        "encoders": [{**encoder, "resize": given.side, "crop": None}], "shard_size": 4096,
        "collection": {"format": "webdataset", "files": shards}, "fit": {"dimensions": [16]},
    }  # fmt: skip
    (given.folder / "pixels.yaml").write_text(yaml.safe_dump(config))
    write_tars(data, given.images, given.side)
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", str(given.cores)]
    command += ["results/pixels/index/ncca/card.json", "--quiet", "all", "--configfile", "pixels.yaml"]
    start = time.perf_counter()
    subprocess.run(command, cwd=given.folder, check=True)
    seconds = time.perf_counter() - start
    hours = 0.0
    print("| stage | jobs | seconds | CPU seconds | images per second | hours for a million images |")
    print("|---|---|---|---|---|---|")
    for rule, jobs in read_benchmarks(given.folder / "results/pixels/benchmarks").items():
        spent = sum(job.seconds for job in jobs)
        busy = sum(job.processor for job in jobs)
        grows = rule in PASSES
        million = spent * (MILLION / given.images if grows else 1) / 3600
        hours += million
        rate = f"{given.images / spent:.0f}" if grows else ""
        print(f"| `{rule}` | {len(jobs)} | {spent:.1f} | {busy:.1f} | {rate} | {million:.2f} |")
    size = sum(path.stat().st_size for path in data.glob("*.tar"))
    total = {"images": given.images, "side": given.side, "seconds": round(seconds, 1), "tar_mb": round(size / 1e6)}
    print(json.dumps({**total, "hours_of_a_million": round(hours, 2)}))


if __name__ == "__main__":
    main()
