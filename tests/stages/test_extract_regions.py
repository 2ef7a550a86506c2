"""extract-regions, finetune and show-regions by hand: what they leave, take up again and refuse."""

import colorsys
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_up import ingest, make_stage, retell, run_command
from PIL import Image, ImageDraw

from pipeline.errors import InputError, IntegrityError, RejectLimitError, UsageError
from pipeline.storage.atomic import publish_json, read_json
from pipeline.storage.gather import shard_path
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import ENCODER, read_parameters
from pipeline.storage.regions import CLASSIFIER, RegionShard, open_regions
from pipeline.storage.shards import FEATURES, Shard
from stages.cli import cli

COUNT, SIDE = 20, 32
COLOURS = {"red": (220, 40, 40), "blue": (40, 60, 220)}
SETTINGS = {
    "collection": {"format": "folder", "reject_limit": 0.2},
    "shard_size": 12,
    "shards_per_job": 1,
    "encoders": [
        {"name": "plain", "architecture": "squeezenet1_1", "weights": "untrained", "resize": SIDE, "crop": None},
        {"name": "tuned", "architecture": "shufflenet_v2_x0_5", "weights": "finetuned", "resize": SIDE, "crop": None},
    ],
    "extract": {"batch_size": 7, "decode_workers": 0, "precision": "float32", "storage": "float32"},
    "regions": {"encoders": ["plain"], "count": 5, "context": 4, "map_side": 64, "checkpoint_images": 4},
    "finetune": {
        "side": SIDE,
        "context": 4,
        "iterations": 25,
        "learning_rate": 0.05,
        "images": 6,
        "precision": "float32",
        "held_out_images": 4,
        "candidates": 60,
    },
}


def configure(folder: Path, section: str = "regions", **changes: object) -> Path:
    settings = {**json.loads(json.dumps(SETTINGS)), "data_root": str(folder / "data")}
    settings.setdefault(section, {}).update(changes)
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one red or blue block each, with its box; the last of them have none."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "data/images").mkdir(parents=True)
    rng, boxes, captions, splits = np.random.default_rng(0), ["file\tx1\ty1\tx2\ty2\tscore\tlabel"], [], []
    for i in range(COUNT):
        name, colour = f"{i:02d}.png", list(COLOURS)[i % 2]
        image = Image.new("RGB", (80 + i, 60), (128, 128, 128))
        x, y = rng.integers(0, 30, 2).tolist()
        ImageDraw.Draw(image).rectangle((x, y, x + 35, y + 25), COLOURS[colour])
        image.save(folder / "data/images" / name)
        captions.append(f"{name}\t0\tA {colour} block .")
        splits.append(f"{name}\t{'dev' if i % 4 == 3 else 'train'}")
        if i < COUNT - 2:
            boxes += [f"{name}\t{x}\t{y}\t{x + 36}\t{y + 26}\t0.9\t{colour}", f"{name}\t-9\t0\t300\t50\t0.3\t{colour}"]
    for name, lines in (("boxes", boxes), ("captions", captions), ("splits", splits)):
        (folder / f"data/{name}.tsv").write_text("\n".join(lines) + "\n")
    configure(folder)
    ingest(folder, folder / "data")
    make_stage("prepare_encoder", folder, "plain")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil; the manifest's root is the copy's."""
    shutil.copytree(made, tmp_path / "run")
    summary = tmp_path / "run/manifest/manifest.json"
    publish_json(summary, {**json.loads(summary.read_text()), "root": str(tmp_path / "run/data")})
    return tmp_path / "run"


def arguments(run: Path, part: int = 0, encoder: str = "plain") -> list[str]:
    return [encoder, "--run", str(run), "--part", str(part)]


def extract(
    run: Path, part: int = 0, encoder: str = "plain", section: str = "regions", again: bool = False, **changes: object
) -> RegionShard:
    """One shard, which is a part."""
    configure(run, section, **changes)
    run_command("extract_regions", *arguments(run, part, encoder), *["--again"] * again)
    return RegionShard(shard_path(run / "regions" / encoder, part))


def relative(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    return np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize("features", ["crops", "roi-align"])
def test_shards_hold_regions_of_every_image(run: Path, features: str) -> None:
    for shard in range(2):
        extract(run, shard, features=features)
    first, last = (open_regions(Manifest(run / "manifest"), run / "regions/plain", n, "plain") for n in range(2))
    assert first.image_id.tolist() == list(range(12)) and np.diff(first.offsets).tolist() == [6] * 12
    boxes = first["boxes"][first.offsets[:-1]]
    assert boxes.tolist() == [[0, 0, 80 + i, 60] for i in range(12)]  # region 0 is the whole image
    assert first["scores"][:3].tolist() == [1, np.float32(0.9), np.float32(0.3)]
    assert first["boxes"][2].tolist() == [0, 0, 80, 50]  # clipped
    assert first.details["counts"]["filled"] == 36 and first["features"].shape == (72, 512)
    assert first.details["encoder"]["name"] == "plain" and not first.details["rejects"]
    assert (last["scores"][last.offsets[6] + 1 : last.offsets[7]] == 0).all()  # no box: windows alone
    # Crops of the whole image are what `extract` makes of it.
    if features == "crops":
        run_command("extract", *arguments(run))
        whole = first["features"][first.offsets[:-1]]
        assert relative(whole, Shard(run / "features/plain/shard-00000.h5", FEATURES)["features"]).max() < 1e-4


@pytest.mark.parametrize("features", ["crops", "roi-align"])
def test_batches_and_workers_change_nothing(run: Path, features: str) -> None:
    plain = extract(run, features=features)
    settings = json.loads((run / "config.yaml").read_text())
    settings["extract"] |= {"batch_size": 1, "decode_workers": 2}
    settings["regions"] |= {"checkpoint_images": 100}
    (run / "config.yaml").write_text(json.dumps(settings))
    boxes, features = plain["boxes"][:], plain["features"][:]
    run_command("extract_regions", *arguments(run), "--again")
    alone = RegionShard(plain.path)
    assert alone.fingerprint == plain.fingerprint and np.array_equal(alone["boxes"], boxes)
    assert relative(features, alone["features"]).max() < 1e-3


def pool(run: Path, pooling: str, **changes: object) -> Shard:
    """The regions of shard 0, which are extracted first, as features of its images."""
    extract(run, **changes)
    add_pooled(run, pooling)
    run_command("pool_regions", *arguments(run, encoder=pooling))
    return Shard(run / f"features/{pooling}/shard-00000.h5", FEATURES)


def add_pooled(run: Path, pooling: str) -> None:
    """The encoder `pooling` of the regions of `plain`."""
    settings = json.loads((run / "config.yaml").read_text())
    settings["encoders"].append({"name": pooling, "architecture": "pooled", "of": "plain", "pooling": pooling})
    (run / "config.yaml").write_text(json.dumps(settings))
    make_stage("prepare_encoder", run, pooling)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooled_regions_are_features_of_images(run: Path, pooling: str) -> None:
    pooled = pool(run, pooling)
    regions = RegionShard(run / "regions/plain/shard-00000.h5")
    each = np.split(regions["features"], regions.offsets[1:-1])
    np.testing.assert_allclose(pooled["features"], [getattr(part, pooling)(axis=0) for part in each], rtol=1e-6)
    assert pooled["image_id"].tolist() == list(range(12))
    assert pooled.details["inputs"]["regions"] == regions.fingerprint


def test_search_pools_the_same_regions(run: Path) -> None:
    from pipeline.images.decode import ImageLimits, decode
    from pipeline.index.query import image_features

    pooled = pool(run, "mean", proposals="grid")  # of which all is known of a photograph alone
    encoders = {"mean": read_parameters(run / "encoders/mean/model.safetensors", ENCODER)}
    image = decode((run / "data/images/04.png").read_bytes(), ImageLimits(10**6, 1, 99))
    features = image_features(image, encoders)["mean"]
    np.testing.assert_allclose(features, pooled["features"][4:5], rtol=1e-3, atol=1e-4)


def test_regions_of_another_encoder_are_not_pooled(run: Path) -> None:
    pool(run, "mean")
    settings = json.loads((run / "config.yaml").read_text())
    settings["encoders"][0]["architecture"] = "shufflenet_v2_x0_5"
    (run / "config.yaml").write_text(json.dumps(settings))
    make_stage("prepare_encoder", run, "plain")
    add_pooled(run, "max")
    with pytest.raises(IntegrityError, match="encoder of .*regions/plain/shard-00000.h5 and of .*encoders/max differ"):
        run_command("pool_regions", *arguments(run, encoder="max"))
    with pytest.raises(UsageError, match="pool-regions: the configuration has no encoder plain; there are mean, max"):
        run_command("pool_regions", *arguments(run))


def test_regions_in_fewer_dimensions(run: Path) -> None:
    for shard in range(2):
        extract(run, shard)
    with pytest.raises(UsageError, match="reduce-regions: the configuration has no encoder to make"):
        make_stage("reduce_regions", run)
    make_stage("learn_components", run, "plain", "--config", configure(run, dimensions=8))
    make_stage("reduce_regions", run, "plain")
    manifest = Manifest(run / "manifest")
    places = (run / "regions/plain", run / "reduced/plain")
    whole, reduced = ([open_regions(manifest, folder, shard) for shard in range(2)] for folder in places)
    assert [shard["features"].shape[1] for shard in reduced] == [8, 8]
    assert reduced[0].fingerprint != whole[0].fingerprint
    for name in ("boxes", "scores", "offsets", "image_id"):
        assert np.array_equal(reduced[1][name], whole[1][name])
    rows = np.repeat(manifest.splits == "train", 6)
    features = [np.concatenate([shard["features"] for shard in part])[rows] for part in (whole, reduced)]
    assert np.abs(features[1].mean(0)).max() < 1e-3  # centred on the train split's regions
    values = np.linalg.svd(features[0] - features[0].mean(0), compute_uv=False)[:8]
    np.testing.assert_allclose(np.linalg.norm(features[1], axis=0), values, rtol=1e-2)


def test_a_killed_run_is_taken_up(run: Path) -> None:
    whole = extract(run)
    expected = {name: whole[name][:] for name in ("features", "boxes", "scores", "offsets", "image_id")}
    shutil.rmtree(run / "regions")
    code = (
        "import sys, time, pipeline.images.preparation as r; opened = r.open_photograph\n"
        "def slowly(read, limits, photograph):\n"
        "    time.sleep(60 if photograph.name.endswith('06.png') else 0)\n"
        "    return opened(read, limits, photograph)\n"
        "r.open_photograph = slowly\n"
        "from stages.cli import cli; cli.get_command(None, 'extract_regions')(sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", code, *arguments(run)])
    part = Path(f"{whole.path}.parts/0000000.h5")
    for _ in range(600):
        time.sleep(0.1)
        if part.with_name(part.name + ".json").exists():
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not whole.path.exists()
    written = part.stat().st_mtime_ns
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.storage.regions.remove_own", lambda folder, names: seen.append(folder))
        patch.setattr("pipeline.storage.features.remove_unfinished", lambda path: None)  # when the part is committed
        assert extract(run).fingerprint == whole.fingerprint
    assert seen == [part.parent] and part.stat().st_mtime_ns == written
    found = RegionShard(whole.path)
    np.testing.assert_allclose(found["features"], expected.pop("features"), rtol=2e-3, atol=1e-5)  # threads round
    assert all(np.array_equal(found[name], values) for name, values in expected.items())


def test_a_bad_image_has_no_regions_and_a_reason(run: Path) -> None:
    whole = extract(run)["features"][:]
    (run / "data/images/02.png").write_bytes(b"nothing")
    shard = extract(run, again=True)
    assert np.diff(shard.offsets).tolist() == [6, 6, 0] + [6] * 9
    (reject,) = shard.details["rejects"]
    assert (reject["image_id"], reject["name"]) == (2, "images/02.png") and reject["reason"].startswith("changed")
    assert relative(shard["features"], np.delete(whole, np.s_[12:18], 0)).max() < 1e-3
    with pytest.raises(RejectLimitError, match="1 of 12 images have no regions"):
        extract(run, again=True, section="collection", reject_limit=0.01)
    assert RegionShard(shard.path).rows == 12


def test_images_that_take_too_long_have_no_regions(run: Path) -> None:
    with pytest.raises(RejectLimitError, match="12 of 12 images have no regions"):
        extract(run, section="collection", decode_seconds=1e-6)
    rejects = RegionShard(run / "regions/plain/shard-00000.h5").details["rejects"]
    reasons = {reject["reason"].partition(" ")[0] for reject in rejects}
    assert reasons == {"too-slow:"}


def test_boxes_of_a_file_take_the_place_of_the_manifests(run: Path) -> None:
    own = extract(run).fingerprint
    (run / "data/other.json").write_text(
        json.dumps([{"image_id": "images/01.png", "bbox": [5, 6, 20, 10], "score": 0.7}])
    )
    shard = extract(run, boxes="other.json", fill=False)
    assert np.diff(shard.offsets).tolist() == [1, 2] + [1] * 10
    assert shard["boxes"][2].tolist() == [5, 6, 25, 16] and shard.fingerprint != own
    with pytest.raises(InputError, match="cannot read .*data/none.json .*correct its name in the configuration"):
        extract(run, boxes="none.json")


@pytest.mark.parametrize("proposals", ["grid", "selective-search"])
def test_proposals_without_boxes(run: Path, proposals: str) -> None:
    if proposals == "selective-search":
        pytest.importorskip("cv2.ximgproc", reason="OpenCV's contributed modules are not installed")
    shard = extract(run, proposals=proposals, min_side=10)
    assert np.diff(shard.offsets).tolist() == [6] * 12
    if proposals == "selective-search":
        block = np.array([int(v) for v in (run / "data/boxes.tsv").read_text().split("\n")[1].split("\t")[1:5]])
        near = np.abs(shard["boxes"][1:6] - block).max(axis=1)
        assert near.min() <= 3  # the block itself is among the proposals


def test_a_detector_from_a_file(run: Path) -> None:
    import torch
    from torchvision.models import get_model

    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = get_model(name, weights=None, weights_backbone=None, num_classes=4).state_dict()
    torch.save(state, run / "detector.pt")
    detector = {"architecture": name, "weights": "file", "file": str(run / "detector.pt"), "stage": "rpn"}
    shard = extract(run, proposals="faster-rcnn", detector=detector)
    assert np.diff(shard.offsets).tolist() == [6] * 12 and len(shard.details["inputs"]["detector"]) == 64
    state["roi_heads.box_predictor.bbox_pred.weight"] = torch.zeros(12, 1024)
    torch.save(state, run / "detector.pt")
    with pytest.raises(InputError, match=r"detector\.pt: its head scores 4 classes but places boxes for 3"):
        extract(run, proposals="faster-rcnn", detector=detector)


def test_finetune_makes_an_encoder_like_any_other(run: Path) -> None:
    make_stage("finetune", run, "tuned")
    made = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    losses = made.details["losses"]
    assert len(losses) == 25 and np.mean(losses[-5:]) < 0.9 * np.log(3)
    assert made.details["labels"] == ["blue", "red"] and 0 <= made.details["mean_average_precision"] <= 1
    assert made.settings["weights"]["origin"] == "finetuned" and made.details["dim"] == 1024
    assert not (run / "encoders/tuned/checkpoints").exists()
    classifier = read_parameters(run / "encoders/tuned/classifier.safetensors", CLASSIFIER)
    assert classifier.tensors["weight"].shape == (3, 1024) and classifier.settings["labels"] == ["blue", "red"]
    # `extract` takes it unchanged, and so do regions, which its classifier may then choose.
    run_command("extract", *arguments(run, encoder="tuned"))
    shard = extract(run, encoder="tuned", encoders=["tuned"], score="classifier", proposals="grid", candidates=12)
    assert np.diff(shard.offsets).max() == 6
    scores = shard["scores"][shard.offsets[0] + 1 : shard.offsets[1]]
    assert (np.diff(scores) <= 0).all() and 0 < scores[-1] < scores[0] < 1
    before = (run / "encoders/tuned/model.safetensors").read_bytes()
    retell(run / "encoders/tuned/model.json", "fingerprint", value="another")
    with pytest.raises(IntegrityError, match="encoder of .*tuned and of .*classifier.safetensors differ"):
        run_command("extract_regions", *arguments(run, encoder="tuned"))
    assert make_stage("finetune", run, "tuned") == ""
    assert (run / "encoders/tuned/model.safetensors").read_bytes() == before


def test_interrupted_finetuning_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.images.finetune as module

    configure(run, "finetune", checkpoint_seconds=0, iterations=8)
    make_stage("finetune", run, "tuned")
    (run / "encoders/tuned").rename(run / "whole")
    step = module.Finetuning._step

    def interrupted(self, batch):
        if self.iteration == 5:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(module.Finetuning, "_step", interrupted)
    CliRunner().invoke(cli.get_command(None, "finetune"), ["tuned", "--run", str(run)])
    taken_up = run / "encoders/tuned"
    assert list(taken_up.glob("checkpoints/step-*.safetensors")) and not (taken_up / "model.json").exists()
    calls = []
    monkeypatch.setattr(module.Finetuning, "_step", lambda self, batch: calls.append(1) or step(self, batch))
    make_stage("finetune", run, "tuned")
    assert len(calls) == 3
    whole, again = (read_parameters(folder / "model.safetensors", ENCODER) for folder in (run / "whole", taken_up))
    np.testing.assert_allclose(again.details["losses"], whole.details["losses"], rtol=1e-4)
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(again.tensors[name], tensor, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_done_is_said(run: Path) -> None:
    with pytest.raises(UsageError, match="finetune: the configuration has no encoder plain; there are tuned"):
        make_stage("finetune", run, "plain")
    configure(run, "finetune", splits=["weak"])
    with pytest.raises(UsageError, match="no image of the splits weak has a labelled box"):
        make_stage("finetune", run, "tuned")
    with pytest.raises(UsageError, match="finetune makes the classifier; set weights of plain to finetuned"):
        extract(run, score="classifier")
    with pytest.raises(IntegrityError, match=r"encoders/tuned/model\.json does not exist; run its stage first"):
        extract(run, encoder="tuned", encoders=["tuned"], score="classifier")
    with pytest.raises(UsageError, match="regions.detector: give `file` exactly when"):
        extract(run, detector={"weights": "file"})
    with pytest.raises(UsageError, match="unknown encoder nobody; there are plain, tuned"):
        extract(run, encoders=["nobody"])


def test_an_encoder_of_whole_images_is_refused_by_name(run: Path) -> None:
    stored = run / "encoders/plain/model.json"
    value = read_json(stored)
    value["details"]["settings"]["architecture"] = "standard"
    publish_json(stored, value)
    with pytest.raises(UsageError, match="plain describes whole images only"):
        extract(run)


def test_a_sheet_shows_boxes_and_what_is_missing(run: Path) -> None:
    for part in range(2):
        extract(run, part)
    (run / "data/images/11.png").unlink()
    make_stage("show_regions", run, "plain", "--images", 12, "--columns", 4, "--top", 2)
    sheet = Image.open(run / "regions/plain/sheet.png")
    assert sheet.size == (4 * 256, 3 * 270)
    pixels = np.asarray(sheet)
    assert (pixels[540:796, 768:] == (24, 24, 28)).all()  # the twelfth image is gone
    first = tuple(round(255 * part) for part in colorsys.hsv_to_rgb(0, 0.7, 1))  # of the best region
    assert all((pixels[r : r + 256, c : c + 256] == first).all(2).any() for r in (0, 270) for c in (0, 256, 512, 768))
    manifest = run / "manifest/images.parquet.json"
    publish_json(manifest, {**read_json(manifest), "rows": 21})
    with pytest.raises(IntegrityError, match="images.parquet has 20 rows"):
        make_stage("show_regions", run, "plain")
