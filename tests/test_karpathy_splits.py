"""config/coco.yaml and config/flickr30k.yaml on small made-up collections in Karpathy's format."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import run_command
from PIL import Image

from pipeline import config
from pipeline.config import default_path
from pipeline.storage.manifest import Manifest

ROOT = Path(__file__).parents[1]
KARPATHY = {"coco": "dataset_coco.json", "flickr30k": "dataset_flickr30k.json"}
TINY = {
    "encoders": [
        {"name": "net", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 64, "crop": 64},
    ],
    "models": ["ncca"],
    "fit": {"dimensions": [8], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    "text": {"size": 200, "min_count": 1},
    "evaluate": {"bootstrap": 20},
}


def write_dataset(folder: Path, name: str, images: list[dict]) -> None:
    (folder / KARPATHY[name]).write_text(json.dumps({"images": images, "dataset": name}))


@pytest.mark.parametrize("name", KARPATHY)
def test_images_keep_the_order_of_the_dataset(name: str, tmp_path: Path) -> None:
    splits = ["test", "restval" if name == "coco" else "train", "val", "test", "train", "test", "val", "test"]
    where, images = "val2014" if name == "coco" else "images", []
    (tmp_path / where).mkdir()
    for i, split in enumerate(splits):
        file = f"{99 - i:012d}.jpg"  # names fall where positions rise
        pixels = np.random.default_rng(i).integers(256, size=(24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / where / file)
        given = {"filepath": where} if name == "coco" else {}
        texts = [{"raw": f"A dog number {i} {n}."} for n in range(5)]
        images.append({**given, "filename": file, "split": split, "sentences": texts})
    write_dataset(tmp_path, name, images)
    settings = config.load(ROOT / "config" / f"{name}.yaml")
    assert settings.evaluate.folds == (5 if name == "coco" else 1) and settings.reproduce.collection == name
    given = ("--config", ROOT / "config" / f"{name}.yaml", "--output", tmp_path / "manifest")
    run_command("ingest", "--root", tmp_path, *given)
    manifest = Manifest(tmp_path / "manifest")
    translated = {"restval": "train", "val": "dev"}
    assert manifest.splits.tolist() == [translated.get(split, split) for split in splits]
    assert [Path(path).name for path in manifest.images["path"].to_pylist()] == [i["filename"] for i in images]
    assert manifest.sentence_images.tolist() == np.repeat(np.arange(8), 5).tolist()


@pytest.mark.slow
def test_reproduce_on_coco(tmp_path: Path) -> None:
    """From a demo collection told in Karpathy's format to the tables, in folds."""
    demo = yaml.safe_load(default_path().read_text())["demo"] | {"train": 60, "dev": 10, "test": 23, "weak": 0}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump({"demo": demo}))
    run_command("make_demo", "--config", tmp_path / "demo.yaml", "--output", tmp_path / "drawn")
    rows = [line.split("\t") for line in (tmp_path / "drawn/captions.tsv").read_text().splitlines()]
    splits = dict(line.split("\t") for line in (tmp_path / "drawn/splits.tsv").read_text().splitlines())
    texts: dict[str, list[dict]] = {}
    for file, _, text in rows:
        texts.setdefault(file, []).append({"raw": text})
    images = [
        {"filepath": "val2014", "filename": file, "split": splits[file].replace("dev", "val"), "sentences": sentences}
        for file, sentences in texts.items()
    ]
    (tmp_path / "coco").mkdir()
    shutil.move(tmp_path / "drawn/images", tmp_path / "coco/val2014")
    write_dataset(tmp_path / "coco", "coco", images)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    files = ["--configfile", str(ROOT / "config/coco.yaml"), "tiny.yaml"]
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", "reproduce", *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

    value = json.loads((tmp_path / "results/coco/evaluation/ncca.test.all-sentences.json").read_text())
    assert [fold["n_images"] for fold in value["each_fold"]] == [4, 5, 4, 5, 5] and value["n_images"] == 23
    text = (tmp_path / "results/coco/reproduction.md").read_text()
    assert text.count("measured with 1,000 test images at once, and ours are 4 and 23") == 2
    assert "Gong et al.: Tables 1 to 6\n\nLeft out" in text
    assert "mean of 5 folds: 4 images" in (tmp_path / "results/coco/evaluation/summary.md").read_text()
