"""What Snakemake notices of a changed collection: a dry run says that `ingest` would run again."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import warm
import yaml
from PIL import Image
from warm import ROOT

TARGET = "results/seen/manifest/manifest.json"
FEATURES = "results/seen/features/theirs/part-00000.json"
ENCODER = {"name": "small", "architecture": "squeezenet1_1", "weights": "untrained"}


def snakemake(folder: Path, *arguments: str, target: str = TARGET) -> str:
    result = warm.snakemake(
        folder, "-s", ROOT / "Snakefile", "--cores", 2, target, *arguments, "--configfile", "seen.yaml"
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


def plans_ingest(folder: Path) -> bool:
    return bool(re.search(r"^rule ingest:", snakemake(folder, "-n"), flags=re.M))


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(256, size=(16, 16, 3), dtype=np.uint8)).save(path)


def write_coco(data: Path) -> None:
    (data / "annotations").mkdir(parents=True)
    for split, first in (("train", 0), ("val", 4)):
        images = [{"id": n, "file_name": f"{n}.png"} for n in range(first, first + 4)]
        annotations = [{"image_id": n, "caption": f"thing {n}"} for n in range(first, first + 4)]
        value = {"images": images, "annotations": annotations}
        (data / f"annotations/captions_{split}2014.json").write_text(json.dumps(value))
        for n in range(first, first + 4):
            draw(data / f"{split}2014/{n}.png", n)


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a collection has been ingested."""
    folder = tmp_path_factory.mktemp("coco")
    write_coco(folder / "data")
    values = {"name": "seen", "data_root": "data", "demo": {"generate": False}, "encoders": [ENCODER]}
    values |= {"models": ["ncca"], "collection": {"format": "coco"}}
    (folder / "seen.yaml").write_text(yaml.safe_dump(values))
    snakemake(folder)
    assert not plans_ingest(folder)
    return folder


def change_caption(path: Path) -> None:
    path.write_text(path.read_text().replace("thing 1", "other 1"))  # as many bytes as before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("annotations/captions_train2014.json", change_caption),
        ("val2014/5.png", lambda path: draw(path, 99)),
    ],
)
def test_a_changed_collection_is_ingested_again(ingested: Path, tmp_path: Path, name: str, change: object) -> None:
    """Lists are inputs of the rule, images a parameter; other changes are those of collections/test_watching."""
    folder = shutil.copytree(ingested, tmp_path / "copy")  # with the times of change
    change(folder / "data" / name)
    assert plans_ingest(folder)
