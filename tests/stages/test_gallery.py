"""Photographs without sentences beside some with: they are found, and nothing is learned from them."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_colours import COLOURS, make_colours
from synthetic_run import run_command

from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import MOMENTS, Shard

TOLD, SILENT = 40, 20


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_colours(tmp_path_factory.mktemp("gallery") / "colours", SILENT)


def test_they_are_counted_and_nothing_is_learned_from_them(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    assert manifest.summary["counts"]["images"] == {"given": 60, "kept": 60, "rejected": 0, "duplicate": 0}
    assert manifest.summary["splits"] == {"train": 32, "dev": 4, "test": 4, "gallery": 20}
    paths = np.array(manifest.images["path"].to_pylist(), object)
    silent = {path for path in paths if int(path[-6:-4]) >= TOLD}
    assert set(paths[manifest.splits == "gallery"]) == silent and len(silent) == SILENT
    learned = [Shard(path, MOMENTS)["image_id"] for path in sorted((run / "moments/target").glob("chunk-*.h5"))]
    assert np.concatenate(learned).tolist() == np.flatnonzero(manifest.splits == "train").tolist()


def test_they_are_found_and_find_sentences(run: Path) -> None:
    for colour in COLOURS:
        hits = json.loads(run_command("search", "--index", run / "bundle", colour, "--top-k", 15, "--json"))
        assert {hit["path"].partition("-")[0] for hit in hits} == {colour} and len(hits) == 15
    photograph = run / "data" / f"blue-{TOLD + 2}.png"
    arguments = ["--index", run / "bundle", "--config", run / "config.yaml", "--json", "--top-k", 1]
    (hit,) = json.loads(run_command("search", "--image", photograph, *arguments))
    assert hit["text"] == "a blue picture"
