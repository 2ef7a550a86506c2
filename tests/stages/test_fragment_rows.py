"""Tests of the stages `train`, `embed` and `evaluate` for region models, on a small collection with regions."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_multivectors import write_region_shard
from synthetic_run import THINGS, by_colour, features_of, make_run, make_stage, write_config
from trainable_run import CONFIG, build_tokens, read_model

from pipeline.config.registry import model_spec
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest

SETTINGS = {
    "regions": {"encoders": ["colour"]},
    "evaluate": {"bootstrap": 5},
    "dvsa": {"hidden": 12, "epochs": 12, "learning_rate": 0.01, "batch_size": 16},
    "ncca_recurrent": {"hidden": 8, "epochs": 3, "averaging": 0},
    "fragments": {"epochs": 6, "averaging": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 48 images with features, tokens and regions, and return its folder. Each image has one to four
    regions. Region 0 has the features of the image plus noise, and all other regions are noise.
    """
    folder = make_run(tmp_path_factory.mktemp("run"), images=48, held_out="dev")
    manifest = Manifest(folder / "manifest")
    write_config(folder, CONFIG, SETTINGS)
    build_tokens(folder)
    for number in range(manifest.n_shards):
        name = f"shard-{number:05d}.h5"
        rows = manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids])
        write_features(folder / "features/colour" / name, features, ids, by_colour(folder), {})
        rng = np.random.default_rng(number)
        lengths = 1 + ids % 4
        regions = [0.1 * rng.random((length, features.shape[1])) for length in lengths]
        for own, whole in zip(regions, features, strict=True):
            own[0] += whole
        boxes = [np.tile([0, 0, 9, 9], (length, 1)) for length in lengths]
        write_region_shard(folder, "colour", boxes, regions, number, ids[0])
    return folder


@pytest.mark.parametrize(("model", "geometry"), [("dvsa", False), ("fragments", True)])
def test_a_region_model_is_trained_embedded_and_evaluated(run: Path, model: str, geometry: bool) -> None:
    write_config(run, CONFIG, SETTINGS, {"regions": {"geometry": geometry}, "models": [model]})
    if model == "fragments":
        make_stage("train", run, "ncca-recurrent")
    make_stage("train", run, model)
    parameters = read_model(run, model)

    make_stage("embed", run, model)
    fragments = Embeddings(Manifest(run / "manifest"), run / "embeddings" / model)
    images = fragments.read("images", np.arange(48))
    assert np.diff(images.offsets).tolist() == (1 + np.arange(48) % 4).tolist()
    restored = model_spec(model).load().from_parts(parameters.settings, parameters.tensors)
    assert fragments.rule == restored.rule and fragments.registered == model
    assert restored.region_view.geometry == geometry

    make_stage("evaluate", run, model, "dev", "all-sentences")
    output = run / f"evaluation/{model}.dev.all-sentences.json"
    value = json.loads(output.read_text())
    assert value["model"] == model and value["n_images"] == 16 and value["n_sentences"] == 32
    assert value["image_to_sentence"]["recall@10"] > 80 and "recall@1_ci95" in value["sentence_to_image"]
