"""finetune by hand: an encoder like any other, and what an interrupted one goes on from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_up import make_stage, run_command
from made_up_blocks import arguments, configure, copy_blocks, extract, make_blocks

from pipeline.storage.parameters import ENCODER, read_parameters
from stages.cli import cli


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blocks(tmp_path_factory.mktemp("made"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return copy_blocks(made, tmp_path / "run")


def test_finetune_makes_an_encoder_like_any_other(run: Path) -> None:
    make_stage("finetune", run, "tuned")
    made = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    losses = made.details["losses"]
    assert len(losses) == 25 and np.mean(losses[-5:]) < 0.9 * np.log(3)
    assert made.details["labels"] == ["blue", "red"]
    assert made.settings["weights"]["origin"] == "finetuned" and made.details["dim"] == 1024
    assert not (run / "encoders/tuned/checkpoints").exists()
    run_command("extract", *arguments(run, encoder="tuned"))  # which takes it unchanged, as regions do
    assert np.diff(extract(run, encoder="tuned", encoders=["tuned"], proposals="grid").offsets).max() == 6
    before = (run / "encoders/tuned/model.safetensors").read_bytes()
    assert make_stage("finetune", run, "tuned") == ""
    assert (run / "encoders/tuned/model.safetensors").read_bytes() == before


def test_interrupted_finetuning_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pipeline.images.finetune as module

    configure(run, "finetune", checkpoint_seconds=0, iterations=4)
    make_stage("finetune", run, "tuned")
    whole = read_parameters(run / "encoders/tuned/model.safetensors", ENCODER)
    shutil.rmtree(run / "encoders/tuned")
    step = module.Finetuning._step

    def interrupted(self, batch):
        if self.iteration == 2:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(module.Finetuning, "_step", interrupted)
    CliRunner().invoke(cli.get_command(None, "finetune"), ["tuned", "--run", str(run)])
    taken_up = run / "encoders/tuned"
    assert list(taken_up.glob("checkpoints/step-*.safetensors")) and not (taken_up / "model.json").exists()
    calls = []
    monkeypatch.setattr(module.Finetuning, "_step", lambda self, batch: calls.append(1) or step(self, batch))
    make_stage("finetune", run, "tuned")
    assert len(calls) == 2
    again = read_parameters(taken_up / "model.safetensors", ENCODER)
    np.testing.assert_allclose(again.details["losses"], whole.details["losses"], rtol=1e-4)
    for name, tensor in whole.tensors.items():
        np.testing.assert_allclose(again.tensors[name], tensor, rtol=1e-3, atol=1e-5)
