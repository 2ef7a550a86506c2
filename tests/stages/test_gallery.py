"""Photographs without sentences beside some with: they are found, and nothing is learned from them."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import build_bundle, ingest, make_stage, run_command
from PIL import Image

from pipeline.storage.bundle import Bundle
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import MOMENTS, Shard

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 60, 230), "white": (235, 235, 235)}
TOLD, SILENT, SHARD = 32, 20, 20
CONFIG = {
    "shard_size": SHARD,
    "encoders": [{"name": "eye", "architecture": "squeezenet1_1", "weights": "untrained", "resize": 48, "crop": 48}],
    "extract": {"decode_workers": 0, "storage": "float32", "precision": "float32"},
    "models": ["ncca"],
    "text": {"min_count": 1, "size": 20},
    "fit": {"dimensions": [3], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]},
}


def name_of(number: int) -> str:
    return f"{list(COLOURS)[number % len(COLOURS)]}-{number:02d}.png"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one colour each with a little noise, 32 of 52 with a sentence, from a folder to an index."""
    folder = tmp_path_factory.mktemp("gallery")
    (folder / "data").mkdir()
    rng = np.random.default_rng(0)
    for number in range(TOLD + SILENT):
        colour = np.array(list(COLOURS.values())[number % len(COLOURS)])
        pixels = (colour + rng.normal(0, 9, (48, 48, 3))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "data" / name_of(number))
    captions = (f"{name_of(n)}\t0\ta {name_of(n).partition('-')[0]} picture\n" for n in range(TOLD))
    (folder / "data/captions.tsv").write_text("".join(captions))
    (folder / "data/splits.tsv").write_text(f"{name_of(TOLD)}\ttrain\n{name_of(TOLD + 1)}\tgallery\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    ingest(folder, folder / "data")
    for stage in ("prepare_encoder", "prepare_text_encoder", "extract", "encode_sentences"):
        make_stage(stage, folder)
    make_stage("accumulate", folder, "target")
    make_stage("fit", folder, "ncca")
    make_stage("embed", folder, "ncca")
    build_bundle(folder)
    return folder


def test_the_manifest_counts_them(run: Path) -> None:
    summary = Manifest(run / "manifest").summary
    assert summary["counts"]["images"] == {"given": 52, "kept": 52, "rejected": 0, "duplicate": 0}
    assert summary["splits"] == {"train": 26, "dev": 3, "test": 3, "gallery": 20}


def test_nothing_is_learned_from_them(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    learned = [Shard(path, MOMENTS)["image_id"] for path in sorted((run / "moments/target").glob("shard-*.h5"))]
    assert len(learned) == 3 and np.concatenate(learned).tolist() == np.flatnonzero(manifest.splits == "train").tolist()
    paths = np.array(manifest.images["path"].to_pylist(), object)
    assert sorted(paths[manifest.splits == "gallery"]) == sorted(map(name_of, range(TOLD, TOLD + SILENT)))


def test_they_are_found(run: Path) -> None:
    table = Bundle(run / "bundle").table("images")
    assert table.num_rows == TOLD + SILENT
    for colour in COLOURS:
        hits = json.loads(run_command("search", "--index", run / "bundle", colour, "--top", 13, "--json"))
        assert {hit["path"] for hit in hits} == {
            name_of(n) for n in range(TOLD + SILENT) if name_of(n).startswith(colour)
        }


def test_one_of_them_finds_sentences(run: Path) -> None:
    arguments = ["--index", run / "bundle", "--config", run / "config.yaml", "--json", "--top", 1]
    (hit,) = json.loads(run_command("search", "--image", run / "data" / name_of(TOLD + 2), *arguments))
    assert hit["text"] == f"a {name_of(TOLD + 2).partition('-')[0]} picture"
