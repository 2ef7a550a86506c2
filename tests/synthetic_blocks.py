"""Functions that make a synthetic run of images that show one red or blue block each, and that extract regions from
these images.
"""

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from synthetic_run import ingest, make_stage, run_command

from pipeline.storage.json_files import publish_json
from pipeline.storage.regions import RegionShard
from pipeline.storage.shards import shard_path

COUNT = 20
SIDE = 32
COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}
SETTINGS = {
    "collection": {"format": "folder", "reject_limit": 0.2},
    "shard_size": 12,
    "parts": 2,
    "encoders": [
        {"name": "plain", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": None},
        {"name": "tuned", "architecture": "shufflenet_v2_x0_5", "weights": "finetuned", "resize": SIDE, "crop": None},
    ],
    "extract": {"batch_size": 7, "decode_workers": 0, "precision": "float32", "storage": "float32"},
    "regions": {"encoders": ["plain"], "count": 5, "context": 4, "checkpoint_images": 4},
    "finetune": {
        "side": SIDE, "context": 4, "iterations": 12, "learning_rate": 0.05, "images": 6, "precision": "float32"
    },
}  # fmt: skip


def configure(folder: Path, section: str = "regions", **changes: object) -> Path:
    settings = {**json.loads(json.dumps(SETTINGS)), "data_root": str(folder / "data")}
    settings.setdefault(section, {}).update(changes)
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


def make_blocks(folder: Path) -> Path:
    """Make the run and its collection of 20 images in `folder`, prepare the encoder `plain`, and return `folder`.

    Each image shows one red or blue block. All images except the last two have two labelled boxes: the box of the
    block, with the score 0.9, and a box beyond the edges of the image, with the score 0.3.
    """
    (folder / "data/images").mkdir(parents=True)
    rng = np.random.default_rng(0)
    boxes = ["file\tx1\ty1\tx2\ty2\tscore\tlabel"]
    captions = []
    splits = []
    for i in range(COUNT):
        name = f"{i:02d}.png"
        colour = list(COLOURS)[i % 2]
        image = Image.new("RGB", (80 + i, 60), (128, 128, 128))
        x, y = rng.integers(0, 30, 2).tolist()
        ImageDraw.Draw(image).rectangle((x, y, x + 35, y + 25), COLOURS[colour])
        image.save(folder / "data/images" / name)
        captions.append(f"{name}\t0\tA {colour} block .")
        splits.append(f"{name}\t{'dev' if i % 4 == 3 else 'train'}")
        if i < COUNT - 2:
            boxes += [f"{name}\t{x}\t{y}\t{x + 36}\t{y + 26}\t0.9\t{colour}", f"{name}\t-9\t0\t300\t50\t0.3\t{colour}"]
    for name, lines in (("boxes", boxes), ("captions", captions), ("splits", splits)):
        (folder / f"data/{name}.tsv").write_text("\n".join(lines) + "\n")
    configure(folder)
    ingest(folder, folder / "data")
    make_stage("prepare_encoder", folder, "plain")
    return folder


def copy_blocks(made: Path, run: Path) -> Path:
    """Copy the run `made` to the folder `run`, so that a test may change the copy, and return `run`. The manifest of
    the copy finds the images in the copy.
    """
    shutil.copytree(made, run)
    summary = run / "manifest/manifest.json"
    publish_json(summary, {**json.loads(summary.read_text()), "root": str(run / "data")})
    return run


def arguments(run: Path, part: int = 0, encoder: str = "plain") -> list[str]:
    return [encoder, "--run", str(run), "--part", str(part)]


def extract(
    run: Path, part: int = 0, encoder: str = "plain", section: str = "regions", again: bool = False, **changes: object
) -> RegionShard:
    """Extract the regions of the shard with the number `part` of the run with an encoder, and return the region shard.

    The configuration is first written anew. It is SETTINGS, in which `changes` replace keys of the section `section`.
    With `again`, the stage repeats finished work.
    """
    configure(run, section, **changes)
    run_command("extract_regions", *arguments(run, part, encoder), *["--force"] * again)
    return RegionShard(shard_path(run / "regions" / encoder, part))
