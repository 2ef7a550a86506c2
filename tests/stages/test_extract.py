"""Tests of the stages `prepare-encoder` and `extract`: their outputs, a restart after a kill, and images that have
changed.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from synthetic_run import ingest, make_stage, run_command

from pipeline.errors import InputError
from pipeline.images import decode
from pipeline.images.preprocess import PhotographReader
from pipeline.storage.json_files import publish_json
from pipeline.storage.shards import FEATURES, Shard, shard_path

COUNT = 22
"""Number of images."""
SIDE = 48
"""Width and height in pixels of the inputs of the encoder."""
SETTINGS = {
    "collection": {"format": "text-files"},
    "shard_size": 16,
    "parts": 2,
    "encoders": [
        {"name": "small", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": SIDE}
    ],
    "extract": {
        "batch_size": 3,
        "checkpoint_images": 5,
        "decode_workers": 0,
        "precision": "float32",
        "storage": "float32",
    },
}


def configure(folder: Path, **changes: object) -> Path:
    """Write SETTINGS as the configuration in `folder`, and return its path. Each of `changes` replaces a key of the
    section `extract` if the section has this key, and otherwise a key of the encoder.
    """
    settings = json.loads(json.dumps(SETTINGS))
    for key, value in changes.items():
        (settings["extract"] if key in settings["extract"] else settings["encoders"][0])[key] = value
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with its collection of 22 images, its manifest and the encoder `small`, and return the folder of the
    run.
    """
    folder = tmp_path_factory.mktemp("made")
    (folder / "data").mkdir()
    for i in range(COUNT):
        coarse = np.random.default_rng(i).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((60, 50)).save(folder / f"data/{i:02d}.png")
        (folder / f"data/{i:02d}.txt").write_text("A picture .\n")
    configure(folder)
    ingest(folder, folder / "data")
    make_stage("prepare_encoder", folder, "small")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """Copy the run, so that a test may change it, and return the folder of the copy. The manifest of the copy names the
    copied images.
    """
    shutil.copytree(made, tmp_path / "run")
    summary = tmp_path / "run/manifest/manifest.json"
    value = json.loads(summary.read_text())
    publish_json(summary, {**value, "root": str(tmp_path / "run/data")})
    return tmp_path / "run"


def arguments(run: Path, part: int = 0, **changes: object) -> list[str]:
    """Configure the run with `changes`, and return the arguments of `extract` for the encoder `small` and the shard
    `part`.
    """
    configure(run, **changes)
    return ["small", "--run", str(run), "--part", str(part)]


def extract(run: Path, part: int = 0, **changes: object) -> Shard:
    """Configure the run with `changes`, extract the shard number `part` with the encoder `small`, and return the
    shard.
    """
    run_command("extract", *arguments(run, part, **changes))
    return Shard(shard_path(run / "features/small", part), FEATURES)


def extract_in_plain_loop(run: Path, rows: range) -> np.ndarray:
    """Compute the features (n, 512) of the n images `rows` in the simplest way: one image at a time, in float32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = torchvision.models.get_model("squeezenet1_1", weights=None).eval()
    features = []
    for row in rows:
        image = Image.open(run / f"data/{row:02d}.png").convert("RGB")
        box = (5, 0, 55, 50)
        pixels = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box), np.float32) / 255
        pixels = (pixels - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])
        with torch.inference_mode():
            map_ = network.features(torch.from_numpy(pixels.transpose(2, 0, 1)[None].copy()))
        features.append(map_.mean((2, 3))[0].numpy())
    return np.stack(features)


@pytest.mark.parametrize(("part", "rows"), [(0, range(0, 16)), (1, range(16, 22))])
def test_features_equal_those_of_a_plain_loop(run: Path, part: int, rows: range) -> None:
    published = extract(run, part)
    assert published["image_id"].tolist() == list(rows)
    plain = extract_in_plain_loop(run, rows)
    # Pillow rounds differently, and pixels around the box reach the outermost pixels of its result.
    assert np.abs(published["features"] - plain).max() < 0.01 * np.abs(plain).max()
    assert not Path(f"{published.path}.parts").exists()
    encoder = published.details["encoder"]
    assert (encoder["name"], encoder["architecture"], encoder["precision"]) == ("small", "squeezenet1_1", "float32")
    assert published.details["dim"] == 512


def test_two_encoders_share_one_decoding_of_each_photo(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {**SETTINGS["encoders"][0], "name": "large", "architecture": "squeezenet1_0"}
    both = [SETTINGS["encoders"][0], large | {"resize": 2 * SIDE, "crop": 2 * SIDE}]
    (run / "config.yaml").write_text(json.dumps({**SETTINGS, "encoders": both}))
    make_stage("prepare_encoder", run, "large")

    def shard_of(encoder: str) -> Shard:
        return Shard(shard_path(run / "features" / encoder, 0), FEATURES)

    for encoder in ("small", "large"):
        make_stage("extract", run, encoder, "--part", 0)
    alone = {name: shard_of(name)["features"][:] for name in ("small", "large")}
    shutil.rmtree(run / "features")
    decoded = []
    monkeypatch.setattr(decode, "decode_each", lambda *p, f=decode.decode_each: decoded.append(p) or f(*p))
    make_stage("extract", run, "--part", 0)
    assert len(decoded) == 16
    for name, features in alone.items():
        shard = shard_of(name)
        assert shard.details["encoder"]["name"] == name and shard.details["decoded_for"] == 2 * SIDE
        np.testing.assert_allclose(shard["features"], features, rtol=1e-4, atol=1e-5)
    assert (run / "features/large/part-00000.json").exists()


class Killed(BaseException):
    """An error that stands for a kill of the process. `except Exception` does not catch it."""


def test_a_killed_extraction_continues_from_its_checkpoint(run: Path) -> None:
    whole = extract(run)
    features = whole["features"][:]
    image_id = whole["image_id"][:]
    shutil.rmtree(run / "features")
    load = PhotographReader.load
    part = Path(f"{whole.path}.parts/0000000.h5")
    loaded = []

    def until_the_second_part(*given: object) -> object:
        loaded.append(given[-1])
        if len(loaded) == 9:
            raise Killed
        return load(*given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(PhotographReader, "load", until_the_second_part)
        extract(run)
    assert not whole.path.exists() and sorted(p.name for p in part.parent.glob("*.h5")) == [part.name]
    written = part.stat().st_mtime_ns

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.storage.features.remove_own", lambda folder, names: seen.append(folder))
        assert extract(run).commit.made_by == whole.commit.made_by
    assert set(seen) == {part.parent} and part.stat().st_mtime_ns == written
    found = Shard(whole.path, FEATURES)
    np.testing.assert_allclose(found["features"], features, rtol=2e-3, atol=1e-5)  # The threads sum in another order.
    assert np.array_equal(found["image_id"], image_id)


def test_an_image_that_has_changed_is_named(run: Path) -> None:
    (run / "data/03.png").write_bytes((run / "data/03.png").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"03\.png: changed: .*run `jointspace stage ingest --run RUN` again"):
        extract(run)
    (run / "data/03.png").unlink()
    with pytest.raises(InputError, match=r"03\.png: missing: .*run `jointspace stage ingest --run RUN` again"):
        extract(run)
    assert not list((run / "features").rglob("shard-00000.h5"))
    # The other shard can still be extracted.
    assert extract(run, 1).rows == 6


def test_a_photo_that_takes_too_long_names_the_limit_and_no_other_remedy(run: Path) -> None:
    """`ingest` decodes a JPEG at an eighth of its size, so a photo that it accepted can exceed the limit here."""
    given = arguments(run)
    settings = json.loads((run / "config.yaml").read_text())
    settings["collection"]["decode_seconds"] = 1e-6
    (run / "config.yaml").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"00\.png: too-slow: .*\. Raise collection\.decode_seconds.*") as error:
        run_command("extract", *given)
    assert "ingest" not in str(error.value)
