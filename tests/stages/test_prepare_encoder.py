"""Tests of the stage `prepare-encoder` for an encoder that learns from the images of the collection."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic_run import ingest, make_stage

from pipeline.run.run import Run

pytest.importorskip("cv2")

COUNT = 14
"""Number of images."""
SIDE = 32
"""Width and height in pixels to which the encoder resizes images."""
TRAIN = 11
"""Number of images in the train split."""
STANDARD = {
    "images": 500, "codebook_images": 4, "descriptors": 6, "patch": 8, "descriptor_dim": 8, "codebook": 4,
    "dimensions": {"gist": 5, "rgb": 4, "csift": 6, "rgbsift": 6, "hog": 3},
}  # fmt: skip
ENCODER = {"name": "plain", "kind": "standard", "resize": SIDE, "crop": None, **STANDARD}


def test_the_encoder_learns_only_from_the_train_split(tmp_path: Path) -> None:
    """The files of the dev split are deleted before the encoder is prepared, so that reading one of them would fail.
    The images have different shapes, and some are grey.
    """
    images = tmp_path / "data/images"
    images.mkdir(parents=True)
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((8 + 9 * i, 40 + i), Image.Resampling.BICUBIC)
        (image.convert("L") if i % 5 == 4 else image).save(images / f"{i:02d}.png")
    names = [f"{i:02d}.png" for i in range(COUNT)]
    (tmp_path / "data/captions.tsv").write_text("".join(f"{name}\t0\tA picture .\n" for name in names))
    splits = ["train"] * TRAIN + ["dev"] * (COUNT - TRAIN)
    lines = (f"{name}\t{split}\n" for name, split in zip(names, splits, strict=True))
    (tmp_path / "data/splits.tsv").write_text("".join(lines))
    (tmp_path / "config.yaml").write_text(json.dumps({"encoders": [ENCODER]}))
    ingest(tmp_path, tmp_path / "data")
    for name in names[TRAIN:]:
        (images / name).unlink()
    make_stage("prepare_encoder", tmp_path, "plain")
    assert Run(tmp_path).encoder("plain").settings["weights"]["images"] == TRAIN
