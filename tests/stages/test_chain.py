"""Commands refuse what another encoder has made, under whatever name: from features to models of every kind."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import ENCODER_SETTINGS, by_colour, by_hand, make_stage, write_config
from made_up_training import CONFIG, add_moments, fit, make_trainable
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json
from pipeline.storage.commit import open_commit
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.moments import NAMES
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.regions import REGIONS
from pipeline.storage.shards import FEATURES, MOMENTS, VECTORS, Shard, write_shard
from pipeline.storage.tables import read_table, write_table
from pipeline.storage.text_shards import VectorShard, write_vectors

GRID = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}
QUICK = {
    "fit": GRID, "models": ["both", "dvsa", "ncca-csls-refit", "bow-refit", "ncca-refined"],
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
        path = run / f"regions/colour/shard-{number:05d}.h5"
        write_shard(path, REGIONS, arrays, rows=len(ids), provenance=by_colour(run), details={})


def test_sentences_without_a_known_word_are_counted(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = run / "text/tfidf/shard-00001.h5"
    shard, commit = VectorShard(path), open_commit(path, VECTORS)
    matrix = shard.matrix.toarray()
    assert commit.details["empty"] == 0
    matrix[[2, 5]] = 0
    for vectors in (sparse.csr_array(matrix), matrix):
        about = {"provenance": by_hand(run, **commit.inputs), "encoder": "tfidf"}
        write_vectors(path, vectors, shard.sentence_id, shard.image_id, **about)
        assert open_commit(path, VECTORS).details["empty"] == 2
    (run / "text/tfidf/part-00000.json").unlink()
    for pairs in ("target", "dev"):
        make_stage("accumulate", run, pairs)
    fit(run, "ncca")
    log = read_json(run / "models/ncca/model.json")["details"]["training_log"]
    assert log["empty_sentences"] == {"tfidf": 2} and "2 of " in caplog.text


COMMANDS = [
    ("embed", "ncca", "--again"), ("embed", "bow", "--again"), ("embed", "dvsa", "--again"), ("fit", "ncca"),
    ("train", "bow"), ("train", "dvsa"), ("train", "ncca-refined"), ("train", "bow-refit"), ("fit_csls", "ncca-csls"),
    ("combine", "both"), ("build_index", "ncca"), ("accumulate", "target", "--again"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_another_encoder_of_the_same_name_is_refused_by_all_that_follows(words: tuple[str, ...], run: Path) -> None:
    path = run / "encoders/colour/model.safetensors"
    about = {"settings": ENCODER_SETTINGS, "provenance": by_hand(run)}
    write_parameters(path, ENCODER, {"nothing": np.ones(1, np.float32)}, **about)
    with pytest.raises(IntegrityError, match=r"\.json is mixed: .*; run its stage again"):
        make_stage(words[0], run, *words[1:])


def test_fit_reads_the_moments_that_it_is_asked_for(run: Path) -> None:
    """Those of dev, and those of features that were made again."""
    (run / "moments/target").rename(run / "moments/own")
    shutil.copytree(run / "moments/dev", run / "moments/target")
    with pytest.raises(IntegrityError, match=r"moments/target/shard-00000\.h5\.json is misplaced"):
        fit(run, "ncca")
    shutil.rmtree(run / "moments/target")
    (run / "moments/own").rename(run / "moments/target")
    for number in range(5):
        path = run / f"features/colour/shard-{number:05d}.h5"
        features = Shard(path, FEATURES)
        write_features(path, features["features"] + 1, features["image_id"], by_colour(run), {})
    with pytest.raises(IntegrityError, match=r"target/shard-00000\.h5\.json is mixed: .*features/colour/shard-00000"):
        fit(run, "ncca")


def test_a_stage_that_was_killed_half_way_leaves_nothing_to_read(run: Path) -> None:
    """Moments of some shards by another configuration: the commit of all of them is of the others."""
    path = run / "moments/target/shard-00001.h5"
    moments = Shard(path, MOMENTS)
    arrays = {name: np.array(moments[name]) for name in ("stored", "image_id", "fold", *NAMES)}
    arrays["xx"] += 1
    write_shard(path, MOMENTS, arrays, rows=moments.rows, details=moments.details, provenance=by_hand(run))
    with pytest.raises(IntegrityError, match=r"moments/target/shard-00001\.h5\.json is (changed|truncated)"):
        fit(run, "ncca")


def test_documents_of_another_manifest_s_simulation_are_refused(run: Path) -> None:
    documents = {"mild": {"fields": ["tags"], "simulate": {"tag_words": 2, "true_words": 1, "wrong": 0, "missing": 0}}}
    write_config(run, CONFIG, {"documents": documents, "auxiliary": {"splits": ["train"]}})
    make_stage("simulate_documents", run, "mild")
    old = open_commit(run / "text/simulated/mild.parquet", "simulated-documents")
    table = read_table(run / "text/simulated/mild.parquet", old.kind)[0]
    about = {"provenance": by_hand(run, **{"manifest/manifest.json#fingerprint": "another"}), "details": old.details}
    write_table(run / "text/simulated/mild.parquet", old.kind, table, **about)
    with pytest.raises(IntegrityError, match=r"mild\.parquet\.json is mixed: made from another manifest"):
        make_stage("encode_documents", run, "mild")
