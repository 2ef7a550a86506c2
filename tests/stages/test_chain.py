"""Commands refuse what another encoder has made, under whatever name: from features to models of every kind."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, by_colour, make_stage, retell, write_config
from made_up_training import CONFIG, add_moments, fit, make_trainable
from scipy import sparse

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import read_json
from pipeline.storage.commit import open_commit
from pipeline.storage.manifest import Manifest
from pipeline.storage.regions import REGIONS
from pipeline.storage.shards import VECTORS, write_shard
from pipeline.storage.text_shards import VectorShard, write_vectors

GRID = {"dimensions": [4], "image_ridge": [0.1], "text_ridge": [0.1], "eigenvalue_power": [1]}
QUICK = {
    "fit": GRID, "models": ["both", "dvsa", "ncca-csls-refit", "bow-refit", "ncca-refined"],
    "ensembles": {"both": {"members": ["ncca", "bow"], "weights": [1]}},
    "train_defaults": {"epochs": 1}, "ncca_refined": {"epochs": 1, "averaging": 0},
    "regions": {"encoders": ["colour"]}, "dvsa": {"hidden": 4, "epochs": 1, "batch_size": 16},
}  # fmt: skip
ENCODER = ("details", "inputs", "encoder")


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
    shard, sidecar = VectorShard(path), open_commit(path, VECTORS)
    matrix = shard.matrix.toarray()
    assert sidecar.details["empty"] == 0
    matrix[[2, 5]] = 0
    for vectors in (sparse.csr_array(matrix), matrix):
        about = {"fingerprint": sidecar.fingerprint, "inputs": sidecar.details["inputs"], "encoder": "tfidf"}
        write_vectors(path, vectors, shard.sentence_id, shard.image_id, **about)
        assert open_commit(path, VECTORS).details["empty"] == 2
    fit(run, "ncca")
    log = read_json(run / "models/ncca/model.json")["details"]["training_log"]
    assert log["empty_sentences"] == {"tfidf": 2} and "2 of " in caplog.text
    retell(path.with_suffix(".h5.json"), "details", "empty", value=None)
    with pytest.raises(IntegrityError, match=r"shard-00001\.h5 does not count its empty vectors"):
        fit(run, "ncca")


def see_otherwise(run: Path, kind: str = "features", shards: str = "*") -> None:
    """Have the features of `colour` be another encoder's."""
    for path in (run / kind / "colour").glob(f"shard-{shards}.h5.json"):
        retell(path, *ENCODER, value="another")


def test_embed_takes_the_features_of_the_model_s_encoder_alone(run: Path) -> None:
    see_otherwise(run, shards="00003")
    for model in ("ncca", "bow"):
        with pytest.raises(
            IntegrityError, match=f"the encoder colour of .*models/{model} and of .*shard-00003.h5 differ"
        ):
            make_stage("embed", run, model, "--again")


def test_embed_takes_the_regions_of_the_model_s_encoder_alone(run: Path) -> None:
    see_otherwise(run, "regions", shards="00003")
    with pytest.raises(
        IntegrityError, match=r"the encoder colour of .*models/dvsa and of .*regions/colour/shard-00003"
    ):
        make_stage("embed", run, "dvsa", "--again")


def test_embed_takes_regions_that_were_reduced_as_the_model_s_were(run: Path) -> None:
    retell(run / "regions/colour/shard-00000.h5.json", "details", "projection", value="p")
    with pytest.raises(
        IntegrityError, match=r"the encoder colour of .*models/dvsa and of .*regions/colour/shard-00000"
    ):
        make_stage("embed", run, "dvsa", "--again")


@pytest.mark.parametrize("kind", ["features", "regions"])
def test_one_encoder_makes_all_that_a_model_learns_from(kind: str, run: Path) -> None:
    see_otherwise(run, kind, shards="00002")
    model = "bow" if kind == "features" else "dvsa"
    with pytest.raises(IntegrityError, match=rf"the encoder colour of .*{kind}/colour/shard-\d+\.h5 and of .* differ"):
        make_stage("train", run, model)


def test_a_model_starts_from_one_of_the_same_encoder(run: Path) -> None:
    make_stage("train", run, "ncca-refined")
    see_otherwise(run)
    with pytest.raises(IntegrityError, match="the encoder colour of .*models/ncca and of .*/ncca-refined differ"):
        make_stage("train", run, "ncca-refined")


@pytest.mark.parametrize("command", ["fit", "train", "fit-csls"])
def test_a_refit_has_the_encoder_of_the_model_that_it_refits(command: str, run: Path) -> None:
    base = {"fit": "ncca", "train": "bow", "fit-csls": "ncca-csls"}[command]
    if command == "fit-csls":
        make_stage("fit_csls", run, base)
    retell(run / f"models/{base}/model.json", "details", "encoders", "colour", value={"encoder": "another"})
    with pytest.raises(IntegrityError, match="the encoder colour of .* and of .* differ"):
        if command == "fit":
            fit(run, "ncca-refit")
        elif command == "train":
            make_stage("train", run, "bow-refit")
        else:
            for path in (run / "models/ncca/model.json", *(run / "embeddings/ncca").glob("*.json")):
                retell(path, "details", "model", value="ncca-refit")
            (run / "models/ncca").rename(run / "models/ncca-refit")
            (run / "embeddings/ncca").rename(run / "embeddings/ncca-refit")
            make_stage("fit_csls", run, "ncca-csls-refit")


def test_members_of_an_ensemble_see_through_the_same_encoder(run: Path) -> None:
    make_stage("combine", run, "both")
    retell(run / "models/bow/model.json", "details", "encoders", "colour", value={"encoder": "another"})
    with pytest.raises(IntegrityError, match="the encoder colour of .*models/ncca and of .*models/bow differ"):
        make_stage("combine", run, "both")


def test_an_index_of_another_encoder_is_not_built(run: Path) -> None:
    build_bundle(run)
    retell(run / "encoders/colour/model.json", "fingerprint", value="another")
    with pytest.raises(
        IntegrityError, match=r"the encoder colour of .*models/ncca and of .*encoders/colour/model.safetensors"
    ):
        build_bundle(run)


def test_fit_reads_the_moments_that_it_is_asked_for(run: Path) -> None:
    """Those of dev, those that another view was summed in, and those of features that were made again."""
    (run / "moments/target").rename(run / "moments/own")
    shutil.copytree(run / "moments/dev", run / "moments/target")
    with pytest.raises(IntegrityError, match=r"moments/target/shard-00000\.h5 is of pairs dev, not of target"):
        fit(run, "ncca")
    shutil.rmtree(run / "moments/target")
    (run / "moments/own").rename(run / "moments/target")
    retell(run / "features/colour/shard-00004.h5.json", "fingerprint", value="made again")
    with pytest.raises(
        IntegrityError, match=r"target/shard-00004\.h5 was summed from other features/colour than .*04\.h5"
    ):
        fit(run, "ncca")


def test_documents_of_another_manifest_s_simulation_are_refused(run: Path) -> None:
    documents = {"mild": {"fields": ["tags"], "simulate": {"tag_words": 2, "true_words": 1, "wrong": 0, "missing": 0}}}
    write_config(run, CONFIG, {"documents": documents, "auxiliary": {"splits": ["train"]}})
    simulated = run / "text/simulated/mild.parquet"
    make_stage("simulate_documents", run, "mild")
    make_stage("encode_documents", run, "mild")
    retell(simulated.with_name("mild.parquet.json"), "details", "inputs", "manifest", value="another")
    with pytest.raises(IntegrityError, match="manifest of .*manifest and of .*mild.parquet differ"):
        make_stage("encode_documents", run, "mild", "--again")
