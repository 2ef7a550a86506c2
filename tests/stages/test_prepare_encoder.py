"""prepare-encoder of an encoder that learns from the images themselves."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from synthetic_run import ingest, make_stage

from pipeline.run.run import Run

pytest.importorskip("cv2")

COUNT, SIDE, TRAIN = 14, 32, 11
STANDARD = {
    "images": 500, "codebook_images": 4, "descriptors": 6, "patch": 8, "descriptor_dim": 8, "codebook": 4,
    "dimensions": {"gist": 5, "rgb": 4, "csift": 6, "rgbsift": 6, "hog": 3},
}  # fmt: skip
ENCODER = {"name": "plain", "kind": "standard", "resize": SIDE, "crop": None, **STANDARD}


def test_only_the_train_split_is_learned_from(tmp_path: Path) -> None:
    """Images of all shapes, some of them grey; those of other splits are not even there any more."""
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
