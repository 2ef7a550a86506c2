"""prepare-encoder and extract of an encoder that learns from the images themselves."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import ingest, make_stage
from PIL import Image

from pipeline.run.run import Run
from pipeline.storage.json_files import publish_json
from pipeline.storage.parameters import Parameters
from pipeline.storage.shards import FEATURES, Shard

pytest.importorskip("cv2")

COUNT, SIDE, TRAIN = 14, 32, 11
STANDARD = {
    "images": 9,
    "codebook_images": 4,
    "descriptors": 6,
    "patch": 8,
    "descriptor_dim": 8,
    "codebook": 4,
    "dimensions": {"gist": 5, "rgb": 4, "csift": 6, "rgbsift": 6, "hog": 3},
}
SETTINGS = {
    "collection": {"format": "folder"},
    "encoders": [
        {"name": "plain", "architecture": "standard", "resize": SIDE, "crop": None, "standard": STANDARD},
        {"name": "net", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": None},
    ],
    "extract": {"batch_size": 4, "checkpoint_images": 5, "decode_workers": 0, "storage": "float32"},
}


def configure(folder: Path, standard: dict | None = None, seed: int = 0, workers: int = 0, **encoder: object) -> Path:
    settings = json.loads(json.dumps(SETTINGS)) | {"seed": seed}
    settings["extract"]["decode_workers"] = workers
    settings["encoders"][0] |= encoder
    settings["encoders"][0]["standard"] |= standard or {}
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 14 images of all shapes, of which 11 are for training, its manifest, and a standard encoder."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data/images").mkdir(parents=True)
    captions, splits = [], []
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((8 + 9 * i, 40 + i), Image.Resampling.BICUBIC)
        (image.convert("L") if i % 5 == 4 else image).save(folder / f"data/images/{i:02d}.png")
        captions.append(f"{i:02d}.png\t0\tA picture .\n")
        splits.append(f"{i:02d}.png\t{'train' if i < TRAIN else 'dev'}\n")
    (folder / "data/captions.tsv").write_text("".join(captions))
    (folder / "data/splits.tsv").write_text("".join(splits))
    configure(folder)
    ingest(folder, folder / "data")
    prepare(folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil; the manifest's root is the copy's."""
    shutil.copytree(made, tmp_path / "run")
    summary = tmp_path / "run/manifest/manifest.json"
    value = json.loads(summary.read_text())
    publish_json(summary, {**value, "root": str(tmp_path / "run/data")})
    return tmp_path / "run"


def prepare(run: Path, **changes: object) -> Parameters:
    configure(run, **changes)
    make_stage("prepare_encoder", run, "plain")
    return Run(run).encoder("plain")


def extract(run: Path, workers: int = 0, again: bool = False) -> Shard:
    configure(run, workers=workers)
    make_stage("extract", run, "plain", *["--again"] * again)
    return Shard(run / "features/plain/shard-00000.h5", FEATURES)


def test_only_the_train_split_is_learned_from(run: Path) -> None:
    for i in range(TRAIN, COUNT):
        (run / f"data/images/{i:02d}.png").unlink()
    again = prepare(run, standard={"images": 500})
    assert again.settings["weights"]["images"] == TRAIN
