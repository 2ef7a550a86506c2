"""prepare-encoder and extract of an encoder that learns from the images themselves."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from made_up import ingest, make_stage
from PIL import Image

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.run.run import Run
from pipeline.storage.atomic import publish_json
from pipeline.storage.parameters import ENCODER, Parameters, read_parameters
from pipeline.storage.shards import FEATURES, Shard

pytest.importorskip("cv2")

COUNT, SIDE, TRAIN = 14, 32, 11
STANDARD = {
    "images": 9,
    "codebook_images": 4,
    "descriptors": 6,
    "patch": 8,
    "descriptor_dim": 8,
    "codebook": 4,
    "dimensions": {"gist": 5, "rgb": 4, "csift": 6, "rgbsift": 6, "hog": 3},
}
SETTINGS = {
    "collection": {"format": "folder"},
    "encoders": [
        {"name": "plain", "architecture": "standard", "resize": SIDE, "crop": None, "standard": STANDARD},
        {"name": "net", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": None},
    ],
    "extract": {"batch_size": 4, "checkpoint_images": 5, "decode_workers": 0, "storage": "float32"},
}


def configure(folder: Path, standard: dict | None = None, seed: int = 0, workers: int = 0, **encoder: object) -> Path:
    settings = json.loads(json.dumps(SETTINGS)) | {"seed": seed}
    settings["extract"]["decode_workers"] = workers
    settings["encoders"][0] |= encoder
    settings["encoders"][0]["standard"] |= standard or {}
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 14 images of all shapes, of which 11 are for training, its manifest, and a standard encoder."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data/images").mkdir(parents=True)
    captions, splits = [], []
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((8 + 9 * i, 40 + i), Image.Resampling.BICUBIC)
        (image.convert("L") if i % 5 == 4 else image).save(folder / f"data/images/{i:02d}.png")
        captions.append(f"{i:02d}.png\t0\tA picture .\n")
        splits.append(f"{i:02d}.png\t{'train' if i < TRAIN else 'dev'}\n")
    (folder / "data/captions.tsv").write_text("".join(captions))
    (folder / "data/splits.tsv").write_text("".join(splits))
    configure(folder)
    ingest(folder, folder / "data")
    prepare(folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil; the manifest's root is the copy's."""
    shutil.copytree(made, tmp_path / "run")
    summary = tmp_path / "run/manifest/manifest.json"
    value = json.loads(summary.read_text())
    publish_json(summary, {**value, "root": str(tmp_path / "run/data")})
    return tmp_path / "run"


def prepare(run: Path, **changes: object) -> Parameters:
    configure(run, **changes)
    make_stage("prepare_encoder", run, "plain")
    return Run(run).encoder("plain")


def extract(run: Path, workers: int = 0, again: bool = False) -> Shard:
    configure(run, workers=workers)
    make_stage("extract", run, "plain", *["--again"] * again)
    return Shard(run / "features/plain/shard-00000.h5", FEATURES)


def test_features_are_those_of_the_encoder_alone(run: Path) -> None:
    from pipeline.config.registry.stored import restore_encoder

    published = extract(run)
    parameters = read_parameters(run / "encoders/plain/model.safetensors", ENCODER)
    encoder = restore_encoder(parameters.settings, parameters.tensors)
    images = [Image.open(run / f"data/images/{i:02d}.png").convert("RGB") for i in range(COUNT)]
    pixels = [np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)) for image in images]
    expected = encoder(torch.from_numpy(np.stack(pixels)))
    assert published["features"].shape == (COUNT, 24) and published["features"].dtype == np.float32
    np.testing.assert_allclose(published["features"], expected, rtol=1e-3, atol=1e-4)
    assert published["image_id"].tolist() == list(range(COUNT))
    noted = published.details["encoder"]
    assert (noted["name"], noted["architecture"], noted["precision"]) == ("plain", "standard", "float32")
    assert noted["layer"] == "gist + rgb + csift + rgbsift + hog" and noted["weights"]["images"] == 9
    assert parameters.details["dim"] == published.details["dim"] == 24


def test_search_makes_the_same_features_of_an_image(run: Path) -> None:
    from pipeline.config.registry.stored import restore_encoder
    from pipeline.images.decode import ImageLimits, decode

    stored = read_parameters(run / "encoders/plain/model.safetensors", ENCODER)
    image = decode((run / "data/images/04.png").read_bytes(), ImageLimits(10**6, 1, 99))
    features = restore_encoder(stored.settings, stored.tensors).encode([image])
    np.testing.assert_allclose(features, extract(run)["features"][4:5], rtol=1e-3, atol=1e-4)


def test_processes_change_nothing(run: Path) -> None:
    files = [run / "encoders/plain" / name for name in ("model.safetensors", "model.json")]
    before = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()
    prepare(run, workers=2)
    assert [path.read_bytes() for path in files] == before
    alone = extract(run)["features"][:]
    np.testing.assert_allclose(extract(run, workers=2, again=True)["features"], alone, rtol=1e-4, atol=1e-5)


def test_another_seed_or_setting_is_another_encoder(run: Path) -> None:
    first = read_parameters(run / "encoders/plain/model.safetensors", ENCODER).fingerprint
    assert prepare(run, seed=1).fingerprint != first
    assert prepare(run, standard={"grid_step": 4}).fingerprint != first


def test_only_the_train_split_is_learned_from(run: Path) -> None:
    for i in range(TRAIN, COUNT):
        (run / f"data/images/{i:02d}.png").unlink()
    again = prepare(run, standard={"images": 500})
    assert again.settings["weights"]["images"] == TRAIN


def test_few_images_reduce_the_dimensions(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    parameters = prepare(run, standard={"images": 4})
    assert parameters.details["dim"] == 15 and parameters.tensors["gist.directions"].shape == (3, 960)
    assert "dimensions from 4 images: gist 3 instead of 5" in caplog.text


def test_what_is_missing_is_said(run: Path) -> None:
    configure(run)
    shutil.rmtree(run / "manifest")
    shutil.rmtree(run / "encoders")
    with pytest.raises(IntegrityError, match=r"manifest/manifest\.json does not exist; run its stage first"):
        make_stage("prepare_encoder", run, "plain")
    make_stage("prepare_encoder", run, "net")
    splits = (run / "data/splits.tsv").read_text()
    (run / "data/splits.tsv").write_text(splits.replace("train", "test").replace("00.png\ttest", "00.png\ttrain"))
    ingest(run, run / "data")
    with pytest.raises(UsageError, match="learns from the train split, which has 1 images"):
        prepare(run)
    assert not list(run.glob("encoders/plain/model*"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"standard": {"patch": 34}}, "standard.patch 34 exceeds the side 32"),
        ({"standard": {"patch": 9}}, "standard.patch: .* multiple of 2"),
        ({"standard": {"words": 9}}, "unknown key encoders.0.standard.words; legal here: images, codebook_images"),
        ({"standard": {"dimensions": {"sift": 9}}}, "unknown key .*dimensions.sift; did you mean csift"),
        (
            {"weights": "file", "file": "a.pt"},
            "kind standard has no weights file; give none as `weights`",
        ),
        ({"weights": "finetuned", "architecture": "alexnet"}, "configuration has no encoder plain; there are net"),
    ],
)
def test_settings_that_cannot_be_are_named(run: Path, changes: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        prepare(run, **changes)


def test_an_image_that_has_changed_is_named_and_the_others_kept(run: Path) -> None:
    whole = extract(run)["features"][:]
    shutil.rmtree(run / "features")
    bad = run / "data/images/07.png"
    data = bad.read_bytes()
    bad.write_bytes(data[:-40])
    with pytest.raises(InputError, match=r"07\.png: changed: .*run ingest again"):
        prepare(run, standard={"images": 50})
    with pytest.raises(InputError, match=r"07\.png: changed: .*run ingest again"):
        extract(run, workers=1)
    part = run / "features/plain/shard-00000.h5.parts/0000000.h5"
    written = part.stat().st_mtime_ns
    bad.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.storage.features.remove_own", lambda folder, names: None)
        again = extract(run)
    assert part.stat().st_mtime_ns == written
    np.testing.assert_allclose(again["features"], whole, rtol=1e-4, atol=1e-5)
