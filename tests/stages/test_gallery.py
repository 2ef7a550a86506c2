"""Tests of a collection in which some photos have no captions: these photos are found, but no model learns from
them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_colours import COLOURS, make_colours
from synthetic_run import run_command

from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import MOMENTS, Shard

CAPTIONED = 40
"""Number of photos with captions. These photos come first."""
UNLABELLED = 20
"""Number of photos without captions."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 40 photos with captions and 20 photos without captions, with an index in `bundle`. Return the
    folder of the run.
    """
    return make_colours(tmp_path_factory.mktemp("gallery") / "colours", UNLABELLED)


def test_unlabelled_photos_are_counted_and_not_learned_from(run: Path) -> None:
    manifest = Manifest(run / "manifest")
    assert manifest.summary["counts"]["images"] == {"given": 60, "kept": 60, "rejected": 0, "duplicate": 0}
    assert manifest.summary["splits"] == {"train": 32, "dev": 4, "test": 4, "gallery": 20}
    paths = np.array(manifest.images["path"].to_pylist(), object)
    unlabelled = {path for path in paths if int(path[-6:-4]) >= CAPTIONED}
    assert set(paths[manifest.splits == "gallery"]) == unlabelled and len(unlabelled) == UNLABELLED
    learned = [Shard(path, MOMENTS)["image_id"] for path in sorted((run / "moments/target").glob("chunk-*.h5"))]
    assert np.concatenate(learned).tolist() == np.flatnonzero(manifest.splits == "train").tolist()


def test_unlabelled_photos_are_found_and_find_captions(run: Path) -> None:
    for colour in COLOURS:
        hits = json.loads(run_command("search", "--index", run / "bundle", colour, "--top-k", 15, "--json"))
        assert {hit["path"].partition("-")[0] for hit in hits} == {colour} and len(hits) == 15
    photograph = run / "data" / f"blue-{CAPTIONED + 2}.png"
    arguments = ["--index", run / "bundle", "--config", run / "config.yaml", "--json", "--top-k", 1]
    (hit,) = json.loads(run_command("search", "--image", photograph, *arguments))
    assert hit["text"] == "a blue picture"
