"""Tests of the stages `extract-regions`, `finetune` and `pool-regions`: their outputs, restarts and errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_blocks import arguments, configure, copy_blocks, extract, make_blocks
from synthetic_run import make_stage, run_command

from pipeline.encoders.finetune import Finetuning
from pipeline.encoders.image_encoder import ImageEncoder
from pipeline.encoders.restore import restore_encoder
from pipeline.errors import InputError, IntegrityError, RejectLimitError, UsageError
from pipeline.images.decode import decode
from pipeline.images.opening import ImageLimits
from pipeline.storage.parameters import ENCODER, read_parameters
from pipeline.storage.regions import RegionShard
from pipeline.storage.shards import FEATURES, Shard, shard_path
from stages.cli import cli


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of images that show a red or blue block, most of them with the labelled box of the block, and return
    its folder.
    """
    return make_blocks(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """Copy the run, so that a test may change it, and return the folder of the copy."""
    return copy_blocks(made, tmp_path / "run")


def relative_errors(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the relative error (n,) of each row of `found` (n, d): the distance from the row of `expected`, divided by
    the length of this row.
    """
    return np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize("features", ["crops", "roi-align"])
def test_shards_hold_regions_of_every_image(run: Path, features: str) -> None:
    for shard in range(2):
        extract(run, shard, features=features)
    first, last = (RegionShard(shard_path(run / "regions/plain", n)) for n in range(2))
    assert first.image_id.tolist() == list(range(12)) and np.diff(first.offsets).tolist() == [6] * 12
    boxes = first["boxes"][first.offsets[:-1]]
    assert boxes.tolist() == [[0, 0, 80 + i, 60] for i in range(12)]  # Region 0 is the whole image.
    assert first["scores"][:3].tolist() == [1, np.float32(0.9), np.float32(0.3)]
    assert first["boxes"][2].tolist() == [0, 0, 80, 50]  # The box is clipped to the image.
    assert first.details["counts"]["filled"] == 36 and first["features"].shape == (72, 512)
    assert first.details["encoder"]["name"] == "plain" and not first.details["rejects"]
    assert (
        last["scores"][last.offsets[6] + 1 : last.offsets[7]] == 0
    ).all()  # This image has no boxes, so its regions are windows.
    # A crop of the whole image has the same features as the image itself.
    if features == "crops":
        run_command("extract", *arguments(run))
        whole = first["features"][first.offsets[:-1]]
        assert relative_errors(whole, Shard(run / "features/plain/shard-00000.h5", FEATURES)["features"]).max() < 1e-4


def test_batches_and_workers_change_nothing(run: Path) -> None:
    plain = extract(run, features="roi-align")
    settings = json.loads((run / "config.yaml").read_text())
    settings["extract"] |= {"batch_size": 1, "decode_workers": 1}
    settings["regions"] |= {"checkpoint_images": 100}
    (run / "config.yaml").write_text(json.dumps(settings))
    boxes = plain["boxes"][:]
    features = plain["features"][:]
    run_command("extract_regions", *arguments(run), "--force")
    alone = RegionShard(plain.path)
    assert alone.commit.made_by == plain.commit.made_by and np.array_equal(alone["boxes"], boxes)
    assert relative_errors(features, alone["features"]).max() < 1e-3


def test_bad_and_slow_images_have_no_regions_and_a_reason(run: Path) -> None:
    whole = extract(run)["features"][:]
    (run / "data/images/02.png").write_bytes(b"nothing")
    shard = extract(run, again=True)
    assert np.diff(shard.offsets).tolist() == [6, 6, 0] + [6] * 9
    (reject,) = shard.details["rejects"]
    assert (reject["image_id"], reject["name"]) == (2, "images/02.png") and reject["reason"].startswith("changed")
    assert relative_errors(shard["features"], np.delete(whole, np.s_[12:18], 0)).max() < 1e-3
    with pytest.raises(RejectLimitError, match="1 of 12 images have no regions"):
        extract(run, again=True, section="collection", reject_limit=0)
    assert RegionShard(shard.path).rows == 12
    with pytest.raises(RejectLimitError, match="12 of 12 images have no regions"):
        extract(run, again=True, section="collection", decode_seconds=1e-6)
    rejects = RegionShard(shard.path).details["rejects"]
    assert {reject["reason"].partition(" ")[0] for reject in rejects} == {"too-slow:", "changed:"}


def test_boxes_from_a_file_replace_the_boxes_of_the_manifest(run: Path) -> None:
    own = extract(run).commit.made_by
    (run / "data/other.json").write_text(
        json.dumps([{"image_id": "images/01.png", "bbox": [5, 6, 20, 10], "score": 0.7}])
    )
    shard = extract(run, boxes="other.json", fill=False)
    assert np.diff(shard.offsets).tolist() == [1, 2] + [1] * 10
    assert shard["boxes"][2].tolist() == [5, 6, 25, 16] and shard.commit.made_by != own
    with pytest.raises(InputError, match="cannot read .*data/none.json .*Correct the name of the file in the config"):
        extract(run, boxes="none.json")


def test_a_detector_is_read_from_a_file(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is a CPU, which must not compute in TF32. The test removes the function `tf32` from the module of the
    detectors, so that a call of the function would fail.
    """
    import torch
    from torchvision.models import get_model

    monkeypatch.delattr("pipeline.encoders.detectors.tf32")
    name = "fasterrcnn_mobilenet_v3_large_320_fpn"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = get_model(name, weights=None, weights_backbone=None, num_classes=4).state_dict()
    torch.save(state, run / "detector.pt")
    detector = {"architecture": name, "weights": "file", "file": str(run / "detector.pt"), "stage": "rpn"}
    shard = extract(run, 1, proposals="faster-rcnn", detector=detector)
    assert np.diff(shard.offsets).tolist() == [6] * 8
    assert len(shard.commit.made_by["keys"]["brought"]["detector"]) == 64
    state["roi_heads.box_predictor.bbox_pred.weight"] = torch.zeros(12, 1024)
    torch.save(state, run / "detector.pt")
    with pytest.raises(InputError, match=r"detector\.pt has scores for 4 classes, but boxes for 3"):
        extract(run, proposals="faster-rcnn", detector=detector)


# --- finetune


def test_a_finetuned_encoder_extracts_features_and_its_classifier_scores_regions(run: Path) -> None:
    make_stage("finetune", run, "tuned")
    made = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    losses = made.details["losses"]
    assert len(losses) == 12 and np.mean(losses[-3:]) < 0.98 * np.log(3)
    assert made.details["labels"] == ["blue", "red"]
    assert made.settings["weights"]["origin"] == "finetuned" and made.details["dim"] == 1024
    assert not (run / "encoders/tuned/checkpoints").exists()
    run_command("extract", *arguments(run, encoder="tuned"))
    shard = extract(run, encoder="tuned", encoders=["tuned"], proposals="grid", score="classifier", count=3)
    assert (np.diff(shard.offsets) <= 4).all() and (shard["scores"][shard.offsets[:-1]] == 1).all()
    before = (run / "encoders/tuned/model.safetensors").read_bytes()
    assert make_stage("finetune", run, "tuned") == ""
    assert (run / "encoders/tuned/model.safetensors").read_bytes() == before
    with pytest.raises(UsageError, match="only a finetuned encoder has a classifier. Set weights of plain"):
        extract(run, score="classifier")


def test_interrupted_finetuning_continues_from_its_checkpoint(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(run, "finetune", checkpoint_seconds=0, iterations=4)
    make_stage("finetune", run, "tuned")
    whole = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    shutil.rmtree(run / "encoders/tuned")
    step = Finetuning._step

    def interrupted(self, batch):
        if self.iteration == 2:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(Finetuning, "_step", interrupted)
    CliRunner().invoke(cli.get_command(None, "finetune"), ["tuned", "--run", str(run)])
    resumed = run / "encoders/tuned"
    assert list(resumed.glob("checkpoints/step-*.safetensors")) and not (resumed / "model.json").exists()
    calls = []
    monkeypatch.setattr(Finetuning, "_step", lambda self, batch: calls.append(1) or step(self, batch))
    make_stage("finetune", run, "tuned")
    assert len(calls) == 2
    again = read_parameters(resumed / "model.safetensors", ENCODER)
    np.testing.assert_allclose(again.details["losses"], whole.details["losses"], rtol=1e-4)
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(again.tensors[name], tensor, rtol=1e-3, atol=1e-5)


# --- pool-regions


def pool(run: Path, pooling: str, **changes: object) -> Shard:
    """Extract the regions of shard 0 by the encoder `plain`, pool the regions of each image, and return the features of
    the images. `changes` are keys of the section `regions`.
    """
    extract(run, **changes)
    add_pooled(run, pooling)
    run_command("pool_regions", *arguments(run, encoder=pooling))
    return Shard(run / f"features/{pooling}/shard-00000.h5", FEATURES)


def add_pooled(run: Path, pooling: str) -> None:
    """Add an encoder to the configuration of the run, and prepare it. The new encoder pools the regions of the encoder
    `plain`. `pooling` is the name of the new encoder and its method: `mean` or `max`.
    """
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
    assert regions.commit.digest in pooled.commit.inputs.values()


def test_search_pools_the_same_regions(run: Path) -> None:
    pooled = pool(run, "mean", proposals="grid")  # Grid regions need only the image, so a query can have them, too.
    stored = read_parameters(run / "encoders/mean/model.safetensors", ENCODER)
    image = decode((run / "data/images/04.png").read_bytes(), ImageLimits(10**6, 1, 99))
    features = restore_encoder(ImageEncoder, stored).encode([image])
    np.testing.assert_allclose(features, pooled["features"][4:5], rtol=1e-3, atol=1e-4)


def test_regions_of_another_configuration_are_not_pooled(run: Path) -> None:
    """The regions were proposed with other settings than the encoder for queries would use, so the features of queries
    would not agree with the pooled features.
    """
    extract(run, proposals="grid")
    configure(run, "regions", proposals="boxes")
    add_pooled(run, "mean")
    with pytest.raises(IntegrityError, match=r"shard-00000.h5 and .*mean do not agree \(compared: the regions\)"):
        run_command("pool_regions", *arguments(run, encoder="mean"))
