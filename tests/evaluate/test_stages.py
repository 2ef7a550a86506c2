"""The commands `evaluate` and `summarise` on a synthetic run."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_run import make_run, make_stage, retell, write_config

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.storage.records import read_measured


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run of 24 images with fitted models. Each image shows one of eight things. Every third image, from image 2
    to image 23, is in the test split, so each of the eight things occurs once in the test split."""
    return make_run(tmp_path_factory.mktemp("run"))


def evaluate(run: Path, split: str, protocol: str) -> Path:
    make_stage("evaluate", run, "ncca", split, protocol)
    return run / "evaluation" / f"ncca.{split}.{protocol}.json"


def test_an_evaluation_records_its_inputs_and_its_measures(run: Path) -> None:
    value = json.loads(evaluate(run, "test", "all-sentences").read_text())
    assert (value["model"], value["split"], value["protocol"]) == ("ncca", "test", "all-sentences")
    assert (value["n_images"], value["n_sentences"]) == (8, 16)
    assert value["ties"] == "a tie counts against the model"
    assert value["bootstrap"] == {"resamples": 1000, "seed": 0}
    assert set(value["inputs"]) == {"manifest/manifest.json#fingerprint", "embeddings/ncca/shard-*.h5.json"}
    for direction in ("image_to_sentence", "sentence_to_image"):
        for name in ("recall@1", "recall@5", "recall@10", "median_rank", "mean_rank"):
            low, high = value[direction][f"{name}_ci95"]
            assert low <= value[direction][name] <= high
        assert value[direction]["recall@1"] == 100


def test_the_ranks_are_stored_next_to_their_measures(run: Path) -> None:
    path = evaluate(run, "train", "all-sentences")
    ranks = read_measured(path, "ranks")
    assert ranks["owners"].tolist() == np.repeat(np.arange(16), 2).tolist()
    recall = json.loads(path.read_text())["sentence_to_image"]["recall@1"]
    assert recall == 100 * np.mean(ranks["sentence_to_image"] <= 1)


def test_the_first_sentence_protocol(run: Path) -> None:
    value = json.loads(evaluate(run, "train", "first-sentence").read_text())
    assert (value["n_images"], value["n_sentences"]) == (16, 16)
    assert value["image_to_sentence"]["median_rank"] == 2


def test_an_empty_split_and_an_unknown_protocol_are_named(run: Path) -> None:
    with pytest.raises(InputError, match=r"The dev split of .* has no photo with a caption \(photos: test 8, train 16"):
        evaluate(run, "dev", "all-sentences")
    with pytest.raises(
        UsageError, match="the configuration has no protocol some. The known names are all-sentences, first-sentence"
    ):
        evaluate(run, "test", "some")
    assert not list((run / "evaluation").glob("*dev*"))


def test_the_summary_has_all_evaluations_and_a_table(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_config(run, {"evaluate": {"splits": ["train", "test"], "protocols": ["all-sentences"]}, "models": ["ncca"]})
    paths = [evaluate(run, split, "all-sentences") for split in ("train", "test")]
    make_stage("summarise", run)
    assert json.loads((run / "evaluation" / "summary.json").read_text()) == [json.loads(p.read_text()) for p in paths]
    lines = (run / "evaluation" / "summary.md").read_text().splitlines()
    assert lines[0] == "## train split, all-sentences: 16 photos, 32 captions"
    assert "| ncca | photo to caption | 0.0 [0.0, 0.0] | 100.0 [100.0, 100.0] |" in lines[4]
    retell(paths[1], "inputs", "manifest/manifest.json#fingerprint", value="another")
    (run / "evaluation/summary.json").unlink()
    with pytest.raises(IntegrityError, match="test.all-sentences.json is mixed"):
        make_stage("summarise", run)
    assert not (run / "evaluation/summary.json").exists()
