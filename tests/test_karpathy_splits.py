"""The configurations of COCO, Flickr30K and Flickr8k in Karpathy's splits, as they stand, on small made-up folders."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import ingest, run_command
from made_up_downloads import Drawn, keep_weights, write_coco, write_flickr8k, write_flickr30k

from pipeline import config
from pipeline.storage.manifest import Manifest
from pipeline.storage.rows import RegionRows

ROOT = Path(__file__).parents[1]
WRITE = {"coco": write_coco, "flickr30k": write_flickr30k, "karpathy-flickr8k": write_flickr8k}
BOXES = {"coco": "annotations", "flickr30k": "Annotations", "karpathy-flickr8k": "boxes.tsv"}
FLICKR = {"train": 40, "val": 8, "test": 12}
COUNTS = {
    "coco": {"train": 30, "restval": 10, "val": 8, "test": 23}, "flickr30k": FLICKR, "karpathy-flickr8k": FLICKR,
}  # fmt: skip
TRANSLATED = {"restval": "train", "val": "dev"}


def reproduce(folder: Path, name: str, *configurations: str) -> Path:
    """`snakemake reproduce` with config/<name>.yaml over the collection `folder`; the folder of the run."""
    keep_weights("resnet50", folder.parent / "torch")
    command = [
        sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", "reproduce",
        "--configfile", str(ROOT / f"config/{name}.yaml"), *configurations, "--config", f"data_root={folder}",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_HOME": str(folder.parent / "torch")}
    result = subprocess.run(command, cwd=folder.parent, env=environment, capture_output=True, text=True, timeout=1800)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return folder.parent / "results" / name


@pytest.mark.parametrize("name", WRITE)
def test_images_keep_the_order_of_the_dataset(name: str, tmp_path: Path) -> None:
    counts = {split: 2 for split in COUNTS[name]}
    WRITE[name](tmp_path, counts)
    collection = name.removeprefix("karpathy-")
    given = json.loads((tmp_path / f"dataset_{collection}.json").read_text())["images"]
    settings = config.load(ROOT / "config" / f"{name}.yaml")
    assert settings.evaluate.folds == (5 if name == "coco" else 1) and settings.reproduce.collection == collection
    ingest(tmp_path, tmp_path, config.read_mapping(ROOT / "config" / f"{name}.yaml"), {"data_root": str(tmp_path)})
    manifest = Manifest(tmp_path / "manifest")
    assert manifest.splits.tolist() == [TRANSLATED.get(image["split"], image["split"]) for image in given]
    assert [Path(path).name for path in manifest.images["path"].to_pylist()] == [image["filename"] for image in given]
    assert manifest.sentences["text"].to_pylist() == [one["raw"] for image in given for one in image["sentences"]]
    assert manifest.sentence_images.tolist() == np.repeat(np.arange(len(given)), 5).tolist()


def check_boxes(run: Path, folder: Path, name: str, drawn: list[Drawn]) -> None:
    """Boxes of the collection's own annotations take the place of the grid's: the whole image, and the square."""
    chosen = {"regions": {"proposals": "boxes", "fill": False}}
    shipped = yaml.safe_load((ROOT / f"config/{name}.yaml").read_text())
    (run / "boxes.yaml").write_text(yaml.safe_dump(config.merge(shipped, chosen)))
    run_command(
        "extract_regions", "--manifest", run / "manifest", "--encoder", run / "encoders/resnet50", "--shard", 0,
        "--boxes", folder / BOXES[name], "--config", run / "boxes.yaml", "--output", run / "boxes/shard-00000.h5",
    )  # fmt: skip
    manifest = Manifest(run / "manifest")
    block = RegionRows(manifest, {"resnet50": run / "boxes"}, np.arange(len(drawn))).packed(np.arange(len(drawn)))
    assert block.lengths.tolist() == [2] * len(drawn)
    np.testing.assert_array_equal(block.boxes[1::2], [one.box for one in drawn])


@pytest.mark.slow
def test_reproduce_on_coco(tmp_path: Path) -> None:
    """From nothing to the tables, in folds."""
    drawn = write_coco(tmp_path / "coco", COUNTS["coco"])
    run = reproduce(tmp_path / "coco", "coco")
    value = json.loads((run / "evaluation/dvsa.test.all-sentences.json").read_text())
    assert [fold["n_images"] for fold in value["each_fold"]] == [4, 5, 4, 5, 5] and value["n_images"] == 23
    splits = Manifest(run / "manifest").splits.tolist()
    assert Counter(splits) == {"train": 40, "dev": 8, "test": 23}
    text = (run / "reproduction.md").read_text()
    assert text.count("measured with 1,000 test images at once, and ours are 4 and 23") == 2
    assert "Gong et al.: Tables 1 to 6\n\nLeft out" in text
    assert "mean of 5 folds: 4 images" in (run / "evaluation/summary.md").read_text()
    check_boxes(run, tmp_path / "coco", "coco", drawn)
