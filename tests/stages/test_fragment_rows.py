"""`train`, `embed` and `evaluate` of rows whose images and sentences are sets, on a small collection with regions."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from made_up import MADE_BY, THINGS, features_of, make_run, run_command
from made_up_training import CONFIG, with_dev

from pipeline.config import merge
from pipeline.errors import UsageError
from pipeline.specs.models import model_spec
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.features import write_features
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, read_parameters
from pipeline.storage.regions import REGIONS
from pipeline.storage.shards import write_shard

OWN = {
    "regions": {"encoders": ["colour"]},
    "evaluate": {"bootstrap": 5},
    "dvsa": {"hidden": 12, "epochs": 12, "learning_rate": 0.01, "batch_size": 16},
    "ncca_recurrent": {"hidden": 8, "epochs": 3, "averaging": 0},
    "fragments": {"epochs": 6, "averaging": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 48 images with features, tokens and regions: the whole image, and one to three of other things."""
    folder = make_run(tmp_path_factory.mktemp("run"), images=48)
    manifest = with_dev(folder)
    (folder / "c.yaml").write_text(yaml.safe_dump(merge(CONFIG, OWN)))
    about = ("--manifest", folder / "manifest")
    run_command("build_token_vocabulary", *about, "--config", folder / "c.yaml", "--output", folder / "tokens.json")
    for number in range(manifest.n_shards):
        name, rows = f"shard-{number:05d}.h5", manifest.shard(number)
        ids = np.arange(rows.first_image, rows.last_image)
        features = np.concatenate([features_of(THINGS[i % 8])["colour"] for i in ids])
        details = {"inputs": {**MADE_BY, "images": rows.fingerprints["images"]}}
        write_features(folder / "features/colour" / name, features, ids, f"features {number}", details)
        lengths = 1 + ids % 4
        noise = 0.1 * np.random.default_rng(number).random((lengths.sum(), features.shape[1]))
        stacked = noise.astype(np.float32)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        stacked[offsets[:-1]] += features
        arrays = {
            "features": stacked, "boxes": np.tile(np.float32([0, 0, 9, 9]), (len(stacked), 1)),
            "scores": np.ones(len(stacked), np.float32), "offsets": offsets, "image_id": ids,
        }  # fmt: skip
        write_shard(
            folder / "regions/colour" / name, REGIONS, arrays, rows=len(ids), fingerprint=f"regions {number}",
            details=details,
        )  # fmt: skip
        tokens = ("--vocabulary", folder / "tokens.json", "--output", folder / "tokens" / name)
        run_command("encode_tokens", *about, "--shard", number, *tokens)
    return folder


def run_row(run: Path, command: str, *more: object) -> None:
    inputs = {"manifest": "manifest", "features": "features", "tfidf": "tfidf", "tokens": "tokens"}
    options = [argument for option, name in inputs.items() for argument in (f"--{option}", run / name)]
    run_command(command, *(more[:1] if command == "train" else ()), *options, *more[command == "train" :])


@pytest.mark.parametrize(("row", "geometry"), [("dvsa", False), ("fragments", True)])
def test_a_row_of_sets_is_trained_embedded_and_evaluated(run: Path, row: str, geometry: bool) -> None:
    own = merge(merge(CONFIG, OWN), {"regions": {"geometry": geometry}})
    (run / f"{row}.yaml").write_text(yaml.safe_dump(own))
    more = ("--vocabulary", run / "tokens.json", "--config", run / f"{row}.yaml", "--regions", run / "regions")
    if row == "fragments":
        terms = ("--start", run / "model", "--terms", run / "vocabulary.json")
        run_row(run, "train", "ncca-recurrent", *more, *terms, "--output", run / "recurrent")
        more += ("--start", run / "recurrent")
    run_row(run, "train", row, *more, "--output", run / row)
    parameters = read_parameters(run / row / "model.safetensors", MODEL)
    assert {"regions/colour/00000"} <= set(parameters.details["inputs"])
    assert ("start" in parameters.details["inputs"]) == (row == "fragments")

    manifest = Manifest(run / "manifest")
    for number in range(manifest.n_shards):
        output = run / f"embedded-{row}/shard-{number:05d}.h5"
        model = ("--model", run / row, "--regions", run / "regions", "--output", output)
        run_row(run, "embed", "--shard", number, *model)
    fragments = Embeddings(manifest, run / f"embedded-{row}")
    images = fragments.read("images", np.arange(48))
    assert np.diff(images.offsets).tolist() == (1 + np.arange(48) % 4).tolist()
    model = model_spec(row).load().from_parts(parameters.settings, parameters.tensors)
    assert fragments.score == model.rule._asdict() and fragments.registered == row
    assert model.region_view.geometry == geometry

    output = run / f"{row}.json"
    about = ("--manifest", run / "manifest", "--split", "dev", "--protocol", "all-sentences")
    run_command(
        "evaluate", *about, "--embeddings", run / f"embedded-{row}", "--config", run / "c.yaml", "--output", output
    )
    value = json.loads(output.read_text())
    assert value["model"] == row and value["n_images"] == 16 and value["n_sentences"] == 32
    assert value["image_to_sentence"]["recall@10"] > 80 and "recall@1_ci95" in value["sentence_to_image"]


def test_what_is_missing_is_named(run: Path) -> None:
    words = ("--vocabulary", run / "tokens.json", "--config", run / "c.yaml", "--output", run / "wrong")
    with pytest.raises(UsageError, match="learns from regions; name regions.encoders, and give .*--regions"):
        run_row(run, "train", "dvsa", *words)
    with pytest.raises(UsageError, match="starts from an ncca-recurrent row .* give its folder as --start"):
        run_row(run, "train", "fragments", *words, "--regions", run / "regions")
