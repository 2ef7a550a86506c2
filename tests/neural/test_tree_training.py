"""Training as in Socher et al. 2014: the reset of AdaGrad, the penalty, and the squared loss that trains one side at a
time."""

from dataclasses import replace

import torch
from synthetic_tasks import make_task_of

from pipeline.config.registry import model_spec
from pipeline.models.neural.task import train
from pipeline.models.neural.training import ADAGRAD_RESET, Training


def test_sums_of_adagrad_are_reset_to_one() -> None:
    sums = []

    def after_step(training: Training) -> None:
        if training.progress.step in (1, training.steps):
            state = training.optimiser.state[training.module.image_map]["sum"]
            sums.append(float(state.max()) - 1)

    task = make_task_of(
        "dtrnn", train=64, dev=16, epochs=ADAGRAD_RESET + 1, patience=ADAGRAD_RESET, optimiser="adagrad"
    )
    train(model_spec("dtrnn").load(), task, None, after_step)
    first = sums[::2]
    last = sums[1::2]
    assert sums[:-2] == sorted(sums[:-2]) and first[ADAGRAD_RESET] < last[ADAGRAD_RESET - 1] / 4


def test_the_squared_loss_trains_one_side_at_a_time_and_neither_side_collapses() -> None:
    task = make_task_of("dtrnn", epochs=6, loss="squared", learning_rate=0.02, encoder_dropout=0.0)
    trainer = model_spec("dtrnn").load().trainer(task)
    before = {name: p.detach().clone() for name, p in trainer.trained.items()}
    moved = []

    def after_step(training: Training) -> None:
        if training.progress.step == training.steps:
            moved.append({name for name, p in training.trained.items() if not torch.equal(p, before[name])})
            before.update({name: p.detach().clone() for name, p in training.trained.items()})

    trainer.run(after_step)
    assert moved[0] == moved[2] == {"image_map"} and "image_map" not in moved[3] and moved[3] == moved[5]
    model = trainer.finish()
    images = model.embed_images(task.dev.features)
    sentences = model.embed_sentences(task.dev.sentences)
    assert images.std(axis=0).max() > 0.03 and sentences.std(axis=0).max() > 0.03
    # `dev` is the negative mean rank. By chance it would be -30.
    assert max(entry["dev"] for entry in trainer.progress.history) > -5


def test_each_side_is_trained_with_any_patience_and_weights_decay_only_on_the_trained_side() -> None:
    task = make_task_of(
        "dtrnn", train=64, dev=16, epochs=8, patience=1, loss="squared", weight_decay=0.5, learning_rate=0.02
    )
    trainer = model_spec("dtrnn").load().trainer(task)
    before = {name: p.detach().clone() for name, p in trainer.trained.items()}
    moved = []
    trainer.judge = lambda: -len(trainer.progress.history)  # The first epoch remains the best.

    def after_step(training: Training) -> None:
        if training.progress.step == training.steps:
            moved.append({name for name, p in training.trained.items() if not torch.equal(p, before[name])})

    trainer.run(after_step)
    assert moved[3] == {"image_map"} and moved[4] == trainer.trained.keys() and len(moved) == 5


def test_a_step_of_adagrad_follows_the_objective_of_the_paper() -> None:
    """The expected first step is computed with the gradients of J + lambda (|theta|^2 + |W_I|) of Socher et al. 2014,
    section 5. The sums of squared gradients start at 1."""
    rate = 0.5
    penalty = 0.3
    settings = {"loss": "ranking", "score": "product", "negatives": "distinct", "reduction": "sum", "margin": 3.0}
    settings |= {"optimiser": "adagrad", "learning_rate": rate, "decay": 1.0, "penalty": penalty, "clip": 1e12}
    task = make_task_of(
        "dtrnn", train=40, dev=12, dropout=0.0, encoder_dropout=0.0, batch_size=80, epochs=1, **settings
    )
    training = model_spec("dtrnn").load().trainer(replace(task, train_words=False))
    assert training.steps == 1 and "sentences.words" not in training.trained
    before = {name: p.detach().clone() for name, p in training.trained.items()}
    rows = training._batches()[0]
    images, trees = training.draw(rows)
    v = training.module.embed_images(images)
    y = training.module.embed_sentences(trees)
    owners = torch.tensor(task.train.owners[rows])
    loss = 0
    for j, i in enumerate(owners.tolist()):
        others = torch.tensor([c for c in range(len(y)) if owners[c] != i])
        loss = loss + (3 - v[j] @ y[j] + y[others] @ v[j]).clamp(min=0).sum()
        image = {int(owners[c]): int(c) for c in others}
        loss = loss + (3 - v[j] @ y[j] + v[list(image.values())] @ y[j]).clamp(min=0).sum()
    squares = sum((p**2).sum() for name, p in training.trained.items() if name != "image_map")
    length = (training.trained["image_map"] ** 2).sum().sqrt()
    gradients = torch.autograd.grad(loss + penalty * (squares + length), list(training.trained.values()))
    training.run(lambda _: None)
    for (name, start), g in zip(before.items(), gradients, strict=True):
        torch.testing.assert_close(
            training.trained[name].detach(), start - rate * g / (1 + g**2).sqrt(), rtol=1e-3, atol=2e-3
        )
