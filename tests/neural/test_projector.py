"""Tests of the regulariser STRUCTURE, and of the model `projector` with one and two layers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from synthetic_tasks import make_task_of

from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.neural.refinement import Projector, cosines_of, structure
from pipeline.models.neural.task import train


def test_structure_is_the_divergence_of_the_neighbourhoods() -> None:
    """`structure` compares the neighbourhoods of the same items before and after a projection.

    A neighbourhood is the softmax of the products of centred unit vectors. The expected value is the mean squared
    Jensen-Shannon distance of the neighbourhoods by SciPy. Equal neighbourhoods give 0."""
    rng = np.random.default_rng(0)
    before = rng.standard_normal((9, 5))
    after = rng.standard_normal((9, 3))
    neighbourhoods = []
    for rows in (before, after):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        unit = unit - unit.mean(axis=0)
        neighbourhoods.append(softmax(unit @ unit.T / 0.3, axis=1))
    expected = np.mean([jensenshannon(p, q) ** 2 for p, q in zip(*neighbourhoods, strict=True)])
    found = structure(cosines_of(before), cosines_of(after), 0.3)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert structure(cosines_of(before), cosines_of(2 * before), 0.3).item() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("layers", [1, 2])
def test_stored_layers_embed_like_the_trained_network(layers: int) -> None:
    task = make_task_of("projector", layers=layers)
    training = Projector.trainer(task)
    training.run(lambda _: None)
    model = training.finish()
    ranks = count_ranks(
        model.embed_images(task.dev.features), model.embed_sentences(task.dev.sentences), task.dev.owners, model.metric
    )
    best = training.progress.history[training.progress.best_epoch]["dev"]
    assert recall_sum(ranks) == pytest.approx(best, abs=2)
    assert len(model.heads) == (4 if layers == 2 else 0)


def test_structure_keeps_the_neighbours_of_images() -> None:
    """Training changes the neighbourhoods of dev's images. With the regulariser the divergence is less than nine tenths
    of the divergence without it."""
    kept = []
    for weight in (0.0, 100.0):
        task = make_task_of("projector", layers=1, structure=weight)
        task = replace(task, settings=task.settings.model_copy(update={"dropout": 0.0, "epochs": 8, "patience": 8}))
        embedded = train(Projector, task, None, lambda _: None).model.embed_images(task.dev.features)
        before = cosines_of(task.view.stack(task.dev.features))
        kept.append(structure(before, torch.from_numpy(embedded @ embedded.T), 0.1).item())
    assert kept[1] < 0.9 * kept[0]
