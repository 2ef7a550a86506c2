"""Tests of the training loop: resuming after a kill, early stopping, and losses that are NaN."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic_tasks import make_task, make_task_of, through_a_file

from pipeline.config.registry import model_spec
from pipeline.errors import JointspaceError
from pipeline.models.neural.task import train
from pipeline.models.neural.training import Checkpoint, Training, seeded


class Killed(Exception):
    """An error that simulates the end of the process."""


def tensors_of(model: str, task, checkpoint: Checkpoint | None = None) -> dict[str, np.ndarray]:
    return train(model_spec(model).load(), task, checkpoint, lambda training: None).model.tensors()


WEIGHT_DECAY_SETTINGS = {"weight_decay": 0.1, "negatives": "sampled"}
ADAGRAD_SETTINGS = {"optimiser": "adagrad"}
MULTI_VECTOR_SETTINGS = {"loss": "ranking", "margin": 1.0, "optimiser": "momentum"}


@pytest.mark.parametrize(
    ("model", "own"),
    [
        ("lstm", WEIGHT_DECAY_SETTINGS),
        ("ncca-refined", WEIGHT_DECAY_SETTINGS),
        ("sdtrnn", ADAGRAD_SETTINGS),
        ("hmlstm", ADAGRAD_SETTINGS),
        ("dvsa", MULTI_VECTOR_SETTINGS),
    ],
)
def test_a_killed_training_resumes_and_ends_with_the_same_model(model: str, own: dict, tmp_path: Path) -> None:
    """The models have different kinds of state: words, vectors, trees, correspondences, and sets of regions and
    words."""
    task = make_task_of(model, train=64, dev=16, epochs=3, averaging=0.9, **own)
    kept: list[Checkpoint] = []

    def kill(training: Training) -> None:
        if training.steps_done == 9:  # This step is within the third epoch.
            raise Killed
        kept.append(training.checkpoint())

    with pytest.raises(Killed):
        train(model_spec(model).load(), task, None, kill)
    resumed = tensors_of(model, task, through_a_file(kept[-1], tmp_path))
    for name, tensor in tensors_of(model, task).items():
        np.testing.assert_array_equal(resumed[name], tensor)


def test_new_contrasts_are_drawn_for_each_batch() -> None:
    """The contrasts of Kiros et al. 2014, equation 6, are pairs of the whole training set. They are the last rows of a
    batch, after its training pairs. No two batches of an epoch have the same contrasts, and the contrasts of a pair
    differ between epochs."""
    trainer = model_spec("bow").load().trainer(make_task("tokens", negatives="sampled", contrastive=8))
    of_pair: list[dict[int, tuple]] = []
    for epoch in range(2):
        trainer.progress.epoch = epoch
        batches = [(batch[:-8].tolist(), tuple(batch[-8:].tolist())) for batch in trainer._batches()]
        assert len({contrasts for _, contrasts in batches}) == len(batches)
        of_pair.append({pair: contrasts for pairs, contrasts in batches for pair in pairs})
    assert of_pair[0].keys() == of_pair[1].keys() == set(range(600))
    assert all(of_pair[0][pair] != of_pair[1][pair] for pair in range(600))
    assert max(map(max, of_pair[0].values())) > 550 and min(map(min, of_pair[0].values())) < 50


def test_training_does_not_change_the_global_random_generator() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    tensors_of("gru", make_task("tokens", train=64, epochs=1))
    assert torch.equal(torch.rand(3), expected)
    with seeded(1, 2):
        first = torch.rand(3)
    with seeded(1, 2):
        assert torch.equal(torch.rand(3), first)


def test_training_stops_when_dev_no_longer_improves_and_keeps_the_best_epoch() -> None:
    task = make_task("tokens", epochs=50, patience=2)
    trainer = model_spec("bow").load().trainer(task)
    scores = iter([1.0, 5.0, 4.0, 5.0, 9.0])
    trainer.judge = lambda: next(scores)
    seen: list[np.ndarray] = []

    def after_step(training: Training) -> None:
        if training.progress.step == training.steps:
            seen.append(training.trained["image_map"].detach().numpy().copy())

    history = trainer.run(after_step)
    assert [entry["dev"] for entry in history] == [1.0, 5.0, 4.0, 5.0]
    np.testing.assert_array_equal(trainer.finish().tensors()["image_map"], seen[1])


@pytest.mark.parametrize("model", ["hmlstm", "lstm"])
def test_the_whole_state_of_the_best_epoch_is_kept(model: str) -> None:
    """The statistics and correspondences of hmlstm change in each epoch, although they are not parameters."""
    trainer = model_spec(model).load().trainer(make_task_of(model, train=64, dev=16, epochs=9, patience=2))
    scores = iter([1.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.4, 0.3])
    trainer.judge = lambda: next(scores)
    seen: list[dict[str, np.ndarray]] = []

    def after_step(training: Training) -> None:
        if training.progress.step == training.steps:
            state = {**training.trained, **training.extra_state}
            seen.append({name: tensor.detach().numpy().copy() for name, tensor in state.items()})

    trainer.run(after_step)
    assert trainer.progress.best_epoch == 1 < len(seen) - 1
    for name, tensor in trainer.state.items():
        np.testing.assert_array_equal(tensor.detach().numpy(), seen[1][name], err_msg=name)
    changed = [name for name in trainer.extra_state if not np.array_equal(seen[1][name], seen[-1][name])]
    assert changed or model != "hmlstm"


def test_without_patience_dev_is_not_evaluated_and_the_last_epoch_is_kept() -> None:
    task = make_task("tokens", epochs=3)
    # A refit on train and dev is trained with a patience of 0.
    task = replace(task, settings=task.settings.model_copy(update={"patience": 0}))
    trainer = model_spec("bow").load().trainer(task)
    trainer.judge = lambda: pytest.fail("the model was evaluated on dev")
    history = trainer.run(lambda training: None)
    assert [set(entry) for entry in history] == [{"epoch", "loss", "learning_rate"}] * 3
    last = trainer.average["image_map"].numpy()
    np.testing.assert_array_equal(trainer.finish().tensors()["image_map"], last)


def test_error_for_a_loss_of_nan_names_the_batch_and_the_model_is_not_changed() -> None:
    task = make_task_of("lstm", epochs=1)
    trainer = model_spec("lstm").load().trainer(task)
    trainer.draw = poison_from(4, trainer.draw)
    kept: list[Checkpoint] = []
    with pytest.raises(
        JointspaceError, match=r"the loss is nan in epoch 0, batch 4 \(sentences \d+, .*The last checkpoint before"
    ):
        trainer.run(lambda training: kept.append(training.checkpoint()))
    for name, tensor in trainer.checkpoint().tensors.items():
        np.testing.assert_array_equal(tensor, kept[-1].tensors[name])
        assert np.isfinite(tensor).all()


def test_no_checkpoint_of_another_device_contains_the_results_of_a_loss_of_nan(other_device) -> None:
    trainer = model_spec("lstm").load().trainer(replace(make_task_of("lstm", epochs=1), device=other_device))
    trainer.draw = poison_from(4, trainer.draw)
    kept: list[Checkpoint] = []
    with pytest.raises(JointspaceError, match="the loss is nan in epoch 0, batch 4"):
        trainer.run(lambda training: kept.append(training.checkpoint()))
    assert [each.progress["step"] for each in kept] == [1, 2, 3, 4] and kept[3].progress["losses"] > 0
    assert all(np.isfinite(tensor).all() for each in kept for tensor in each.tensors.values())


def poison_from(batch: int, draw):
    """Wrap the function `draw`, so that the features that it returns are NaN from the call with the number `batch`
    on."""
    calls = iter(range(10**6))

    def drawn(rows: np.ndarray):
        x, packed = draw(rows)
        return (x * float("nan") if next(calls) >= batch else x), packed

    return drawn
