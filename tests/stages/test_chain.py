"""Commands refuse what another encoder has made, under whatever name: from features to models of every kind."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import MADE_BY, make_stage, retell
from made_up_training import add_moments, fit, make_trainable
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json, read_sidecar
from pipeline.storage.manifest import Manifest
from pipeline.storage.regions import REGIONS
from pipeline.storage.shards import VECTORS, write_shard
from pipeline.storage.text_shards import VectorShard, write_vectors

GRID = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}
QUICK = {
    "fit": GRID, "models": ["both", "dvsa", "ncca-csls-refit", "bow-refit", "ncca-refined"],
    "variants": {
        "ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True},
        "bow-refit": {"model": "bow", "refit": True},
    },
    "ensembles": {"both": {"members": ["ncca", "bow"], "weights": [1]}},
    "train_defaults": {"epochs": 1}, "ncca_refined": {"epochs": 1, "averaging": 0},
    "regions": {"encoders": ["colour"]}, "dvsa": {"hidden": 4, "epochs": 1, "batch_size": 16},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models `ncca`, `bow` and `dvsa` with their embeddings; never to be written to."""
    run = make_trainable(tmp_path_factory.mktemp("made") / "run")
    add_moments(run, QUICK)
    add_regions(run)
    fit(run, "ncca")
    make_stage("train", run, "bow")
    make_stage("train", run, "dvsa")
    for model in ("ncca", "bow", "dvsa"):
        make_stage("embed", run, model)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "run")


def add_regions(run: Path) -> None:
    manifest, rng = Manifest(run / "manifest"), np.random.default_rng(0)
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        arrays = {
            "features": rng.standard_normal((2 * len(ids), 8), np.float32), "scores": np.ones(2 * len(ids), np.float32),
            "boxes": np.tile(np.float32([0, 0, 9, 9]), (2 * len(ids), 1)), "offsets": np.arange(0, 2 * len(ids) + 1, 2),
            "image_id": ids,
        }  # fmt: skip
        details = {"inputs": {**MADE_BY, "images": rows.fingerprints["images"]}}
        path = run / f"regions/colour/shard-{number:05d}.h5"
        write_shard(path, REGIONS, arrays, rows=len(ids), fingerprint=f"regions {number}", details=details)


def test_sentences_without_a_known_word_are_counted(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "text/tfidf/shard-00001.h5"
    shard, sidecar = VectorShard(path), read_sidecar(path, VECTORS)
    matrix = shard.matrix.toarray()
    assert sidecar.details["empty"] == 0
    matrix[[2, 5]] = 0
    for vectors in (sparse.csr_array(matrix), matrix):
        about = {"fingerprint": sidecar.fingerprint, "inputs": sidecar.details["inputs"], "encoder": "tfidf"}
        write_vectors(path, vectors, shard.sentence_id, shard.image_id, **about)
        assert read_sidecar(path, VECTORS).details["empty"] == 2
    fit(run, "ncca")
    log = read_json(run / "models/ncca/model.json")["details"]["training_log"]
    assert log["empty_sentences"] == {"tfidf": 2} and "2 of " in caplog.text
    retell(path.with_suffix(".h5.json"), "details", "empty", value=None)
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5 does not count its empty vectors"):
        fit(run, "ncca")
