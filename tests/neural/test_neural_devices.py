"""Training, embeddings and multi-vector scores on another device equal the results on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_tasks import make_task_of

from pipeline.compute.multivectors import SUMS, MultiVectors, ScoreRule
from pipeline.config.registry import made_by, model_spec
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.neural.task import Trained, TrainingTask, train
from pipeline.models.neural.training import Checkpoint

OWN = {
    "dvsa": {"loss": "ranking", "margin": 1.0, "element_clip": 5.0},
    # Adam would amplify rounding errors of gradients near zero.
    "deptree": {"loss": "ranking", "margin": 1.0, "optimiser": "momentum"},
    "defrag": {"loss": "ranking", "margin": 1.0},
    "fragments": {"sum": "mean-words", "global_weight": 1.0},
}
FAMILIES = ("lstm", "ncca-refined", "projector", "sdtrnn", "hmlstm", "dvsa")
"""One model for each kind of computation, which the fake device trains. A real GPU trains all models."""
SMALL = {"train": 48, "dev": 16, "epochs": 2, "dropout": 0.0, "averaging": 0.5, "weight_decay": 0.1}


def make_task(name: str) -> TrainingTask:
    """Make a small task for the model `name`, without dropout, because each device draws other random numbers for
    dropout."""
    return make_task_of(name, **SMALL, **OWN.get(name, {}))


def run(
    name: str, task: TrainingTask, checkpoint: Checkpoint | None = None, after_step=lambda training: None
) -> Trained:
    return train(model_spec(name).load(), task, checkpoint, after_step)


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], tolerance: float = 1e-3) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert type(found[name]) is np.ndarray and found[name].dtype == value.dtype, name
        np.testing.assert_allclose(found[name], value, atol=tolerance, err_msg=name)


def embed(model, pairs) -> dict[str, np.ndarray]:
    """Embed the `images` and `sentences` of `pairs` with a model of any kind. If the model has one vector per image and
    can embed noun phrases, the result also has the `phrases` of the sentences and the `regions` of the images."""
    features = {name: pairs.features[name] for name in model.encoders}
    if model.multi_vector:
        sides = model.embed_images(features, pairs.regions), model.embed_sentences(pairs.sentences)
        return dict(zip(("images", "sentences"), (side.vectors for side in sides), strict=True))
    made = {"images": model.embed_images(features), "sentences": model.embed_sentences(pairs.sentences)}
    if hasattr(model, "embed_phrases"):
        made["phrases"] = model.embed_phrases(pairs.sentences)
        made["regions"] = model.embed_regions(pairs.regions.packed(np.arange(pairs.n_images)))
    return made


@pytest.mark.parametrize(
    "name",
    [pytest.param(spec.name, marks=[pytest.mark.gpu] * (spec.name not in FAMILIES)) for spec in made_by("train")],
)
def test_training_and_embedding_equal_those_on_the_cpu(name: str, other_device: torch.device) -> None:
    task = make_task(name)
    expected = run(name, task)
    seen: list[torch.device] = []
    found = run(name, replace(task, device=other_device), None, lambda training: seen.append(training.device))
    assert {one.type for one in seen} == {other_device.type}
    assert_close(found.model.tensors(), expected.model.tensors())
    assert found.log["chosen"]["recall_sum"] == pytest.approx(expected.log["chosen"]["recall_sum"], abs=10)
    here = embed(expected.model, task.dev)
    assert expected.model.to(other_device) is expected.model
    assert_close(embed(expected.model, task.dev), here, 1e-4)


@pytest.mark.parametrize("rule", SUMS)
def test_fragment_scores_equal_those_on_the_cpu(rule: str, other_device) -> None:
    rng = np.random.default_rng(0)
    gradients = []
    parts = [rng.standard_normal((n, 5)).astype(np.float32) for n in (4, 9)]
    offsets = np.array([0, 3, 4, 4]), np.array([0, 2, 2, 9])
    wholes = [rng.standard_normal((3, 4)).astype(np.float32) for _ in range(2)]
    scores = []
    for device in (torch.device("cpu"), other_device):
        sets = [MultiVectors(*each).on(device) for each in zip(parts, offsets, wholes, strict=True)]
        for side in sets:
            side.vectors.requires_grad_()
        made = multivector_scores(*sets, ScoreRule(rule, 0.5))
        made.square().sum().backward()
        scores.append(made.detach().cpu().numpy())
        gradients.append([side.vectors.grad.cpu().numpy() for side in sets])
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
