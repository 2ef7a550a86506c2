"""The commands `evaluate` and `summarise` on a made-up run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import make_run, make_stage, retell, write_config

from pipeline.errors import InputError, IntegrityError, UsageError
from pipeline.storage.evaluations import read_ranks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test split has images 2, 5, 8, ..., 23: every thing once."""
    return make_run(tmp_path_factory.mktemp("run"))


def evaluate(run: Path, split: str, protocol: str) -> Path:
    make_stage("evaluate", run, "ncca", split, protocol)
    return run / "evaluation" / f"ncca.{split}.{protocol}.json"


def test_an_evaluation_says_what_was_measured_and_on_what(run: Path) -> None:
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


def test_the_ranks_stand_beside_what_was_measured_from_them(tmp_path: Path) -> None:
    path = evaluate(make_run(tmp_path), "train", "all-sentences")
    ranks = read_ranks(path)
    assert ranks["owners"].tolist() == np.repeat(np.arange(16), 2).tolist()
    assert json.loads(path.read_text())["sentence_to_image"]["recall@1"] == 100 * np.mean(
        ranks["sentence_to_image"] <= 1
    )
    beside = path.with_suffix(".ranks.npz")
    beside.write_bytes(beside.read_bytes()[:-1] + b"x")
    with pytest.raises(IntegrityError, match=r"ranks.npz is changed: .*; run its stage again"):
        read_ranks(path)


def test_one_vector_an_image_needs_no_torch(run: Path) -> None:
    given = ["evaluate", "ncca", "test", "all-sentences", "--run", str(run)]
    program = (
        "import sys; from click.testing import CliRunner; from stages.cli import cli\n"
        f"result = CliRunner().invoke(cli, {given})\n"
        "print(result.exit_code, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0", "False"]


def test_equal_sentences_of_other_images_are_ties(run: Path) -> None:
    # In the train split every thing is seen twice, and the sentences of both images are the same vectors.
    value = json.loads(evaluate(run, "train", "all-sentences").read_text())
    assert (value["n_images"], value["n_sentences"]) == (16, 32)
    assert value["image_to_sentence"]["recall@1"] == 0
    assert value["image_to_sentence"]["median_rank"] == 3
    assert value["sentence_to_image"]["recall@1"] == 50


def test_the_first_sentence_protocol(run: Path) -> None:
    value = json.loads(evaluate(run, "train", "first-sentence").read_text())
    assert (value["n_images"], value["n_sentences"]) == (16, 16)
    assert value["image_to_sentence"]["median_rank"] == 2


def test_intervals_can_be_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_config(run, {"evaluate": {"bootstrap": 0}})
    value = json.loads(evaluate(run, "test", "all-sentences").read_text())
    assert set(value["image_to_sentence"]) == {"recall@1", "recall@5", "recall@10", "median_rank", "mean_rank"}


def test_an_empty_split_and_an_unknown_protocol_are_named(run: Path) -> None:
    with pytest.raises(
        InputError, match=r"the dev split of .* has no image with a sentence \(images: test 8, train 16"
    ):
        evaluate(run, "dev", "all-sentences")
    with pytest.raises(
        UsageError, match="the configuration has no protocol some; there are all-sentences, first-sentence"
    ):
        evaluate(run, "test", "some")
    assert not list((run / "evaluation").glob("*dev*"))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "embeddings/ncca" / "shard-00001.h5.json").unlink()
    with pytest.raises(IntegrityError, match="shard-00001.h5.json does not exist"):
        evaluate(run, "test", "all-sentences")


def test_what_is_made_is_kept_and_what_is_not_is_made_again(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    def judge(**values: Any) -> dict[str, int]:
        """When each evaluation was written."""
        write_config(run, {"evaluate": {"splits": ["train", "test"], "protocols": ["all-sentences"]}, **values})
        make_stage("evaluate", run, "ncca")
        return {path.name: path.stat().st_mtime_ns for path in run.glob("evaluation/*.ranks.npz")}

    before = judge()
    assert len(before) == 2 and judge() == before
    spoilt = run / "evaluation/ncca.test.all-sentences.ranks.npz"
    spoilt.write_bytes(spoilt.read_bytes() + b"x")
    after = judge()
    assert [name for name in before if before[name] != after[name]] == [spoilt.name]
    seeded = judge(seed=1)
    assert all(seeded[name] > after[name] for name in after)


def test_the_summary_is_the_list_and_a_table(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_config(run, {"evaluate": {"splits": ["train", "test"], "protocols": ["all-sentences"]}, "models": ["ncca"]})
    paths = [evaluate(run, split, "all-sentences") for split in ("train", "test")]
    make_stage("summarise", run)
    assert json.loads((run / "evaluation" / "summary.json").read_text()) == [json.loads(p.read_text()) for p in paths]
    lines = (run / "evaluation" / "summary.md").read_text().splitlines()
    assert lines[0] == "## train split, all-sentences: 16 images, 32 sentences"
    assert "| ncca | image-to-sentence | 0.0 [0.0, 0.0] | 100.0 [100.0, 100.0] |" in lines[4]
    retell(paths[1], "inputs", "manifest/manifest.json#fingerprint", value="another")
    (run / "evaluation/summary.json").unlink()
    with pytest.raises(IntegrityError, match="test.all-sentences.json is mixed"):
        make_stage("summarise", run)
    assert not (run / "evaluation/summary.json").exists()
