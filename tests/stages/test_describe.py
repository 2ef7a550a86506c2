"""Tests of the stages that train a generator, generate captions from stored features, and evaluate the captions."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from synthetic_generators import describe, link_run, make_described_run, train
from synthetic_run import THINGS, make_stage

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.generate.metrics import METRICS
from pipeline.run import Run
from pipeline.run.reading.generators import gather_sources, open_space_index, read_corpus, read_generator
from pipeline.storage.parameters import MODEL, read_parameters


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a synthetic run with features, tokens and an index, whose configuration names all generators, and return its
    folder.
    """
    return make_described_run(tmp_path_factory.mktemp("describe") / "run")


@pytest.mark.parametrize("name", ["nearest", "mrnn", "lbl", "mnlm", "sc-nlm", "gated"])
def test_every_generator_is_trained_and_its_captions_are_evaluated(run: Path, name: str) -> None:
    images = describe(run, name, "dev")["images"]
    assert [one["image_id"] for one in images] == list(range(2, 48, 3))
    right = [THINGS[one["image_id"] % 8] in one["sentences"][0]["text"].split() for one in images]
    assert np.mean(right) > 0.8
    for sentence in (sentence for one in images for sentence in one["sentences"]):
        assert 0 <= sentence["nearest"]["cosine"] <= 1.001 and sentence["nearest"]["text"]
        assert sentence["verbatim"] or name != "nearest"
    make_stage("evaluate_descriptions", run, name, "dev")
    value = json.loads((run / f"evaluation/descriptions/{name}.dev.json").read_text())
    assert value["n_images"] == 16 and value["meteor"] is None
    measured = find_spec("pycocoevalcap") is not None
    assert value["bleu_1"] > 50 if measured else value["bleu_1"] is None
    assert set(value["not_measured"]) == ({"meteor"} if measured else set(METRICS))
    assert (value["perplexity"] is None) == (name == "nearest")
    assert value["copied"] == 100 * np.mean([one["sentences"][0]["verbatim"] for one in images])


def test_a_variant_of_a_generator_has_its_own_cell(run: Path) -> None:
    gated, usual = (read_parameters(train(run, name) / "model.safetensors", MODEL) for name in ("gated", "mrnn"))
    assert gated.details["generator"] == usual.details["generator"] == "mrnn"
    assert (gated.settings["cell"], usual.settings["cell"]) == ("gru", "lstm")


def test_unknown_and_missing_inputs_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no subject weak. The known names are train, dev, test"):
        describe(run, "mrnn", "weak")
    with pytest.raises(InputError, match="The split test of .* has no image"):
        describe(run, "mrnn", "test")
    with pytest.raises(IntegrityError, match=r"colour/shard-.*does not exist\. Run the stage"):
        describe(link_run(run, tmp_path / "run", "features"), "mrnn", "dev")


def test_a_generator_of_another_joint_space_is_refused(run: Path) -> None:
    """The stored generator says that it was trained with another value of the key `describe.space`."""
    train(run, "lbl")
    opened = Run(run)
    stored = read_generator(opened, "lbl")
    space = open_space_index(opened, "lbl")
    earlier = replace(stored.parameters, details={**stored.parameters.details, "space": "another"})
    with pytest.raises(IntegrityError, match=r"lbl and .* do not agree \(compared: joint space\)"):
        gather_sources(opened, stored._replace(parameters=earlier), read_corpus(opened), space)
