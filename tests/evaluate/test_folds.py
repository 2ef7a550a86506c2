"""Folds of a split: their mean is that of each one evaluated alone."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_up import build_bundle, make_run, make_stage, write_config
from made_up_sets import add_fragments

from pipeline.evaluate.summary import with_folds
from pipeline.metrics.folds import divide, measure_folds
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import Bootstrap, evaluate

PLAIN = Bootstrap(0, 0)
DIRECTIONS = ("image_to_sentence", "sentence_to_image")


def vectors(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, one to four sentences near each, and whose they are."""
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n), rng.integers(1, 5, n))
    images = rng.standard_normal((n, 6)).astype(np.float32)
    sentences = images[owners] + rng.standard_normal((len(owners), 6)).astype(np.float32)
    return images, sentences, owners


@pytest.mark.parametrize(("n", "count"), [(50, 5), (53, 5), (7, 7)])
def test_folds_are_consecutive_and_of_one_size(n: int, count: int) -> None:
    _, _, owners = vectors(n)
    folds = divide(owners, count)
    sizes = [fold.images.stop - fold.images.start for fold in folds]
    assert len(folds) == count and sum(sizes) == n and max(sizes) - min(sizes) <= 1
    for before, after in pairwise(folds):
        assert before.images.stop == after.images.start and before.sentences.stop == after.sentences.start
    for fold in folds:
        assert (fold.owners + fold.images.start == owners[fold.sentences]).all() and fold.owners[0] == 0


def test_the_mean_is_that_of_each_subset_evaluated_alone() -> None:
    images, sentences, owners = vectors(53)
    folds = divide(owners, 5)
    ranks = [count_ranks(images[f.images], sentences[f.sentences], f.owners, "inner_product") for f in folds]
    found = measure_folds(folds, ranks, PLAIN)
    bounds = [0, 10, 21, 31, 42, 53]
    alone = []
    for first, last in pairwise(bounds):
        own = (owners >= first) & (owners < last)
        alone.append(
            evaluate(
                count_ranks(images[first:last], sentences[own], owners[own] - first, "inner_product"),
                owners[own] - first,
                PLAIN,
            )
        )
    for direction in DIRECTIONS:
        values = [vars(one)[direction] for one in alone]
        assert [{name: fold[direction][name] for name in values[0]} for fold in found["each_fold"]] == values
        for name in values[0]:
            mean = np.mean([value[name] for value in values])
            assert found["mean_of_folds"][direction][name] == pytest.approx(mean, rel=1e-12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(run)
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0})
    return run


@pytest.mark.parametrize("model", ["ncca", "dvsa"])
@pytest.mark.parametrize("protocol", ["all-sentences", "first-sentence"])
def test_the_command_keeps_the_split_and_adds_its_folds(run: Path, model: str, protocol: str) -> None:
    judged = {"splits": ["train"], "protocols": [protocol], "folds": 2, "bootstrap": 20}
    write_config(run, {"models": [model], "regions": {"encoders": ["colour"]}, "evaluate": judged})
    make_stage("evaluate", run, model, "train", protocol)
    value = json.loads((run / f"evaluation/{model}.train.{protocol}.json").read_text())
    assert value["folds"] == 2 and value["n_images"] == 16
    assert [fold["n_images"] for fold in value["each_fold"]] == [8, 8]
    assert sum(fold["n_sentences"] for fold in value["each_fold"]) == value["n_sentences"]
    # Images 0, 1, 3, ... of eight things: within a fold of eight images fewer are alike than in the whole split.
    for direction in DIRECTIONS:
        mean = value["mean_of_folds"][direction]
        assert mean["mean_rank"] < value[direction]["mean_rank"]
        assert mean["recall@1"] == np.mean([fold[direction]["recall@1"] for fold in value["each_fold"]])
        low, high = mean["recall@1_ci95"]
        assert low <= mean["recall@1"] <= high
    whole, folded, first = with_folds([value])
    assert whole is value and folded["n_images"] == 8 and folded["protocol"] == f"{protocol}, mean of 2 folds"
    assert first["protocol"] == f"{protocol}, the first of 2 folds" and first["n_images"] == 8
    assert all(first[direction] == value["each_fold"][0][direction] for direction in DIRECTIONS)
    make_stage("summarise", run)
    assert f"train split, {protocol}, mean of 2 folds: 8 images" in (run / "evaluation/summary.md").read_text()
