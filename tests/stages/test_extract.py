"""prepare-encoder and extract by hand: what they leave, take up again, leave alone and refuse."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from made_up import ingest, make_stage, run_command
from PIL import Image

from pipeline.errors import InputError, UsageError
from pipeline.images import decode, preprocess
from pipeline.run.run import Run
from pipeline.storage.atomic import publish_json
from pipeline.storage.gather import shard_path
from pipeline.storage.parameters import ENCODER, read_parameters
from pipeline.storage.shards import FEATURES, Shard

COUNT, SIDE = 22, 48
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
    """A configuration file: SETTINGS, with `changes` to `extract` or to the encoder."""
    settings = json.loads(json.dumps(SETTINGS))
    for key, value in changes.items():
        (settings["extract"] if key in settings["extract"] else settings["encoders"][0])[key] = value
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of 22 images, its manifest, and an encoder."""
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
    """A copy that a test may spoil; the manifest's root is the copy's."""
    shutil.copytree(made, tmp_path / "run")
    summary = tmp_path / "run/manifest/manifest.json"
    value = json.loads(summary.read_text())
    publish_json(summary, {**value, "root": str(tmp_path / "run/data")})
    return tmp_path / "run"


def arguments(run: Path, part: int = 0, **changes: object) -> list[str]:
    configure(run, **changes)
    return ["small", "--run", str(run), "--part", str(part)]


def extract(run: Path, part: int = 0, **changes: object) -> Shard:
    """One shard, which is a part."""
    run_command("extract", *arguments(run, part, **changes))
    return Shard(shard_path(run / "features/small", part), FEATURES)


def plainly(run: Path, rows: range) -> np.ndarray:
    """The features as one plainly writes them down: one image at a time, in float32."""
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
def test_features_are_those_of_the_plain_loop(run: Path, part: int, rows: range) -> None:
    published = extract(run, part)
    assert published["image_id"].tolist() == list(rows)
    np.testing.assert_allclose(published["features"], plainly(run, rows), rtol=1e-4, atol=1e-5)
    assert not Path(f"{published.path}.parts").exists()
    encoder = published.details["encoder"]
    assert (encoder["name"], encoder["architecture"], encoder["precision"]) == ("small", "squeezenet1_1", "float32")
    assert published.details["dim"] == 512


ENCODERS = [
    {"name": name, "architecture": architecture, "weights": "untrained", "resize": side, "crop": side}
    for name, architecture, side in (("small", "squeezenet1_1", SIDE), ("large", "squeezenet1_0", 2 * SIDE))
]


def configure_both(run: Path, **changes: object) -> list[str]:
    """A configuration of two encoders at two resolutions; returns the arguments that make what is of the first."""
    settings = {**SETTINGS, "encoders": ENCODERS, "extract": {**SETTINGS["extract"], **changes}}
    (run / "config.yaml").write_text(json.dumps(settings))
    return ["small", "--run", str(run), "--part", "0"]


def shard_of(run: Path, encoder: str) -> Shard:
    return Shard(shard_path(run / "features" / encoder, 0), FEATURES)


@pytest.mark.parametrize("workers", [0, 1])
def test_two_encoders_decode_each_photograph_once_and_each_keeps_its_own(
    run: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = configure_both(run, decode_workers=workers)
    make_stage("prepare_encoder", run, "large")
    for encoder in ("small", "large"):
        run_command("extract", encoder, *given[1:])
    alone = {name: shard_of(run, name)["features"][:] for name in ("small", "large")}
    shutil.rmtree(run / "features")
    decoded = []
    for module in (preprocess, decode):  # in this process; those that decode elsewhere have their own
        monkeypatch.setattr(module, "decode_each", lambda *p, f=decode.decode_each: decoded.append(p) or f(*p))
    run_command("extract", *given[1:])
    assert len(decoded) == (0 if workers else 16)
    for name, features in alone.items():
        shard = shard_of(run, name)
        assert shard.details["encoder"]["name"] == name
        assert shard.details["decoded_for"] == 2 * SIDE
        np.testing.assert_allclose(shard["features"], features, rtol=1e-4, atol=1e-5)
    assert (run / "features/large/part-00000.json").exists()


def test_what_one_encoder_lacks_is_made_for_it_alone(run: Path) -> None:
    given = configure_both(run)
    make_stage("prepare_encoder", run, "large")
    run_command("extract", *given[1:])
    kept, whole = shard_of(run, "small").path.stat().st_mtime_ns, shard_of(run, "large")["features"][:]
    shutil.rmtree(run / "features/large")
    run_command("extract", *given[1:])
    assert shard_of(run, "small").path.stat().st_mtime_ns == kept
    np.testing.assert_allclose(shard_of(run, "large")["features"], whole, rtol=1e-4, atol=1e-5)


def test_worker_processes_and_storage_change_little(run: Path) -> None:
    plain = extract(run)["features"]
    stored = extract(run, storage="float16", decode_workers=1)["features"]
    assert stored.dtype == np.float16
    np.testing.assert_allclose(stored, plain, rtol=1e-3, atol=1e-4)


def test_what_is_there_is_left_alone_without_torch(run: Path) -> None:
    path = extract(run).path
    before = path.stat().st_mtime_ns
    code = (
        "import sys; from click.testing import CliRunner; from stages.cli import cli\n"
        "result = CliRunner().invoke(cli, ['extract', *sys.argv[1:]], catch_exceptions=False)\n"
        "print(result.exit_code, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code, *arguments(run)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "0 False"
    assert path.stat().st_mtime_ns == before


def test_another_setting_is_another_shard(run: Path) -> None:
    first = extract(run).fingerprint
    assert extract(run, batch_size=7, decode_workers=1).fingerprint == first
    assert extract(run, storage="float16").fingerprint != first


def test_a_killed_run_is_taken_up(run: Path) -> None:
    whole = extract(run)
    features, image_id = whole["features"][:], whole["image_id"][:]
    shutil.rmtree(run / "features")
    # The eighth image hangs: two of the four parts, at most, are there when the process is killed.
    code = (
        "import sys, time, pipeline.images.preprocess as p; load = p.load\n"
        "def slowly(*parts, **more):\n"
        "    time.sleep(3600 if parts[-1].name == '08.png' else 0)\n"
        "    return load(*parts, **more)\n"
        "p.load = slowly\n"
        "from stages.cli import cli; cli.get_command(None, 'extract')(sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *arguments(run)])
    part = Path(f"{whole.path}.parts/0000000.h5")
    while not part.with_name(f"{part.name}.json").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not whole.path.exists() and sorted(p.name for p in part.parent.glob("*.h5")) == [part.name]
    written = part.stat().st_mtime_ns

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.storage.features.remove_own", lambda folder, names: seen.append(folder))
        assert extract(run).fingerprint == whole.fingerprint
    assert set(seen) == {part.parent} and part.stat().st_mtime_ns == written
    found = Shard(whole.path, FEATURES)
    np.testing.assert_allclose(found["features"], features, rtol=2e-3, atol=1e-5)  # threads round
    assert np.array_equal(found["image_id"], image_id)


def test_an_image_that_has_changed_is_named(run: Path) -> None:
    (run / "data/03.png").write_bytes((run / "data/03.png").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"03\.png: changed: .*run ingest again"):
        extract(run)
    (run / "data/03.png").unlink()
    with pytest.raises(InputError, match=r"03\.png: missing: .*run ingest again"):
        extract(run)
    assert not list((run / "features").rglob("shard-00000.h5"))
    # The other shard is none the worse for it.
    assert extract(run, 1).rows == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_takes_too_long_is_named(run: Path, workers: int) -> None:
    parts = arguments(run, decode_workers=workers)
    config = run / "config.yaml"
    settings = json.loads(config.read_text())
    settings["collection"]["decode_seconds"] = 1e-6
    config.write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"00\.png: too-slow: took longer than 1e-06 s .*run ingest again"):
        run_command("extract", *parts)
    assert not list((run / "features").rglob("shard-00000.h5"))


def test_features_that_overflow_name_the_image(run: Path) -> None:
    from safetensors.numpy import save_file

    state = dict(read_parameters(run / "encoders/small/model.safetensors", ENCODER).tensors)
    state["features.12.expand1x1.bias"] = state["features.12.expand1x1.bias"] + 1e6
    save_file(state, run / "loud.safetensors")
    changes = {"weights": "file", "file": str(run / "loud.safetensors")}
    configure(run, **changes)
    make_stage("prepare_encoder", run, "small")
    with pytest.raises(InputError, match=r"the features of 00\.png do not fit float16 .*extract.storage to float32"):
        extract(run, storage="float16")
    assert extract(run, storage="float32").rows == 16


def test_an_encoder_from_a_file_is_that_file(run: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        state = torchvision.models.squeezenet1_1(weights=None).state_dict()
    torch.save(state, run / "net.pth")
    before = Run(run).encoder("small")
    configure(run, weights="file", file=str(run / "net.pth"))
    make_stage("prepare_encoder", run, "small")
    after = Run(run).encoder("small")
    assert before.fingerprint != after.fingerprint
    assert set(after.tensors) == {name for name in state if name.startswith("features.")}
    assert np.array_equal(after.tensors["features.0.weight"], state["features.0.weight"].numpy())
    assert (
        after.settings["weights"]["origin"] == str(run / "net.pth") and len(after.settings["weights"]["sha256"]) == 64
    )
    assert after.details == {"name": "small", "dim": 512}


def test_preparing_again_gives_the_same_bytes(run: Path) -> None:
    files = [run / "encoders/small" / name for name in ("model.safetensors", "model.json")]
    before = [path.read_bytes() for path in files]
    for path in files:
        path.unlink()
    make_stage("prepare_encoder", run, "small")
    assert [path.read_bytes() for path in files] == before


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        (
            {"weights": "file", "file": "nowhere.pt"},
            InputError,
            "cannot read nowhere.pt .*correct its name",
        ),
        ({"weights": "file", "file": __file__, "sha256": "0" * 64}, InputError, "the sha256 of .* not 0000"),
        ({"weights": "file", "file": __file__}, InputError, "is neither a safetensors file nor a state dict"),
        ({"architecture": "squeezenet9"}, UsageError, "unknown architecture squeezenet9; did you mean squeezenet1_1"),
        ({"layer": "fc7"}, UsageError, "squeezenet1_1 has no layer fc7"),
        ({"crop": SIDE + 1}, UsageError, f"crop {SIDE + 1} is larger than resize {SIDE}"),
        ({"name": "large"}, UsageError, "has no encoder small; there are large"),
    ],
)
def test_what_cannot_be_prepared_is_said(run: Path, changes: dict, error: type, said: str) -> None:
    shutil.rmtree(run / "encoders")
    configure(run, **changes)
    with pytest.raises(error, match=said):
        make_stage("prepare_encoder", run, "small")
    assert not list(run.glob("encoders/*/*"))


@pytest.mark.parametrize("name", ["squeezenet1_0", "mobilenet_v2"])
def test_real_weights_on_real_photographs(real_data: Path, tmp_path: Path, name: str) -> None:
    notes = json.loads((real_data / "weights/weights.json").read_text())[name]
    (tmp_path / "data").mkdir()
    photographs = sorted((real_data / "flickr8k/images").iterdir())[:6]
    for path in photographs:
        shutil.copy(path, tmp_path / "data")
        (tmp_path / "data" / path.name).with_suffix(".txt").write_text("A photograph .\n")
    changes = {"architecture": name, "weights": "file", "file": str(real_data / "weights" / notes["file"])}
    changes |= {"sha256": notes["sha256"], "resize": notes["resize"], "crop": None, "precision": "auto"}
    configure(tmp_path, **changes)
    ingest(tmp_path, tmp_path / "data")
    make_stage("prepare_encoder", tmp_path, "small")
    features = extract(tmp_path, **changes)["features"]

    side = notes["resize"]
    images = [np.asarray(Image.open(path).convert("RGB").resize((side, side), Image.BILINEAR)) for path in photographs]
    pixels = (np.stack(images) / 255 - notes["mean"]) / notes["std"]
    network = torchvision.models.get_model(name, weights=None).eval()
    from safetensors.torch import load_file

    network.load_state_dict(load_file(real_data / "weights" / notes["file"]))
    with torch.inference_mode():
        plain = network.features(torch.from_numpy(pixels.transpose(0, 3, 1, 2)).float()).mean((2, 3)).numpy()
    assert features.shape == (6, notes["dim"])
    cosine = (features * plain).sum(1) / np.linalg.norm(features, axis=1) / np.linalg.norm(plain, axis=1)
    assert cosine.min() >= 0.999
