"""tune by hand: an encoder like any other, and what an interrupted one goes on from."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from made_up import ingest, make_stage
from made_up_colours import CONFIG, draw

from pipeline.storage.parameters import ENCODER, read_parameters
from stages.cli import cli

NETWORK = {"architecture": "shufflenet_v2_x0_5", "weights": "tuned", "resize": 32, "crop": None}
TUNE = {
    "start": "untrained", "unfreeze": 1, "dimensions": 8, "epochs": 12, "images": 8, "learning_rate": 0.02,
    "body_rate": 0.5, "clip": 10, "precision": "float32", "checkpoint_seconds": 0,
}  # fmt: skip


def configure(run: Path, **changes: object) -> None:
    settings = {**CONFIG, "encoders": [{"name": "tuned", **NETWORK}], "tokens": {"min_count": 1}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings | {"tune": {**TUNE, **changes}}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    names = draw(tmp_path / "data", 40, 0)
    captions = (f"{name}\t0\ta {name.partition('-')[0]} picture\n" for name in names)
    (tmp_path / "data/captions.tsv").write_text("".join(captions))
    (tmp_path / "data/splits.tsv").write_text(
        "".join(f"{n}\t{'dev' if i > 31 else 'train'}\n" for i, n in enumerate(names))
    )
    configure(tmp_path)
    ingest(tmp_path, tmp_path / "data")
    make_stage("build_token_vocabulary", tmp_path)
    return tmp_path


def test_tune_makes_an_encoder_like_any_other(run: Path) -> None:
    make_stage("tune", run, "tuned")
    made = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    losses = made.details["losses"]
    assert len(losses) == 48 and np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3])
    assert made.details["dev_recall_sum"] > 300  # two images of each of four sentences: chance is below
    assert made.settings["weights"] == {"origin": "tuned", "start": "untrained", "images": 32}
    assert not (run / "encoders/tuned/checkpoints").exists()
    make_stage("extract", run, "tuned")


def test_an_interrupted_training_goes_on_to_the_same_bytes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.images.pair_tuning as module

    configure(run, epochs=2)
    make_stage("tune", run, "tuned")
    (run / "encoders/tuned").rename(run / "whole")
    step = module.PairTuning._step

    def interrupted(self, batch):
        if self.iteration == 5:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(module.PairTuning, "_step", interrupted)
    CliRunner().invoke(cli.get_command(None, "tune"), ["tuned", "--run", str(run)])
    taken_up = run / "encoders/tuned"
    assert list(taken_up.glob("checkpoints/step-*.safetensors")) and not (taken_up / "model.json").exists()
    calls = []
    monkeypatch.setattr(module.PairTuning, "_step", lambda self, batch: calls.append(1) or step(self, batch))
    make_stage("tune", run, "tuned")
    assert len(calls) == 3
    whole, again = (read_parameters(folder / "model.safetensors", ENCODER) for folder in (run / "whole", taken_up))
    np.testing.assert_allclose(again.details["losses"], whole.details["losses"], rtol=1e-5)
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(again.tensors[name], tensor, rtol=1e-4, atol=1e-6)
