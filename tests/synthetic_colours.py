"""Functions that make a run whose model has learned the names of four colours from real images, and that draw further
images of these colours.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import yaml
from PIL import Image
from synthetic_run import build_bundle, ingest, make_stage

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 60, 230), "white": (235, 235, 235)}
CONFIG = {
    "name": "colours",
    "shard_size": 16,
    "encoders": [{"name": "eye", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 48, "crop": 48}],
    "extract": {"decode_workers": 0, "storage": "float32", "precision": "float32"},
    "models": ["ncca"],
    "text": {"min_count": 1, "size": 60},
    "fit": {"dimensions": [3], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]},
}


def draw(folder: Path, count: int, seed: int) -> list[str]:
    """Draw `count` images of one colour each, with a little noise, and return their file names in order. The images are
    PNG files in the new folder `folder`. The four colours take turns.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    names = []
    for number in range(count):
        name = list(COLOURS)[number % 4]
        pixels = (np.array(COLOURS[name]) + rng.normal(0, 9, (48, 48, 3))).clip(0, 255).astype(np.uint8)
        names.append(f"{name}-{number:02d}.png")
        Image.fromarray(pixels).save(folder / names[-1])
    return names


def make_colours(
    folder: Path, silent: int = 0, say: Callable[[str], str] = "a {} picture".format, **parts: object
) -> Path:
    """Make a run and its collection in `folder`, and return `folder`. The configuration is CONFIG, in which the
    sections `parts` replace whole sections.

    The collection has 40 images with one caption each and then `silent` images without captions. `say` makes a caption
    from the name of the colour. The run fits and indexes one model: the first of `parts["models"]`, which must be a
    mapping with a name, or `ncca` if there is no such section. The index is in the folder `bundle`.
    """
    names = draw(folder / "data", 40 + silent, 0)
    captions = (f"{name}\t0\t{say(name.partition('-')[0])}\n" for name in names[:40])
    (folder / "data/captions.tsv").write_text("".join(captions))
    (folder / "config.yaml").write_text(yaml.safe_dump({**CONFIG, **parts}))
    ingest(folder, folder / "data")
    for stage in ("prepare_encoder", "extract", "encode_sentences"):
        make_stage(stage, folder)
    make_stage("accumulate", folder, "target")
    model = parts["models"][0]["name"] if "models" in parts else "ncca"
    make_stage("fit", folder, model)
    make_stage("embed", folder, model)
    build_bundle(folder, model=model)
    return folder
