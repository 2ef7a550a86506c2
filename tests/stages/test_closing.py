"""What a run says at its end: the models, best first, the report, and a command that can be pasted."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import build_bundle, make_run, run_command

from pipeline.errors import IntegrityError
from pipeline.evaluate.summary import compare_briefly, ranking
from pipeline.storage.json_files import publish_json
from stages.closing import closing_lines


def evaluation(model: str, recall: float, split: str = "test", protocol: str = "all-sentences") -> dict:
    """Worse by its last letter in one direction, so that only the sum of both decides."""
    scores = {"recall@1": recall, "recall@5": recall + 10, "recall@10": recall + 20, "median_rank": 3, "mean_rank": 4}
    both = {"image_to_sentence": scores, "sentence_to_image": {**scores, "recall@1": recall / 2}}
    return {"model": model, "split": split, "protocol": protocol, "n_images": 30, "n_sentences": 150, **both}


EVALUATIONS = [
    evaluation("cca", 90, "dev"), evaluation("cca", 10.04), evaluation("cca", 80, protocol="first-sentence"),
    evaluation("ncca-csls", 1, "dev"), evaluation("ncca-csls", 20),
]  # fmt: skip


def test_models_of_the_reported_split_stand_best_first() -> None:
    assert compare_briefly(ranking(EVALUATIONS)) == [
        "recall@1 / 5 / 10 on the test split (30 images, 150 sentences, all-sentences), best first:",
        "  ncca-csls  image-to-sentence 20.0 / 30.0 / 40.0   sentence-to-image 10.0 / 30.0 / 40.0",
        "  cca        image-to-sentence 10.0 / 20.0 / 30.0   sentence-to-image  5.0 / 20.0 / 30.0",
    ]
    only_dev = [one for one in EVALUATIONS if one["split"] == "dev"]
    assert [one["model"] for one in ranking(only_dev)] == ["cca", "ncca-csls"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in a folder that a shell must not read as it stands, whose best model is `ncca`."""
    made = make_run(tmp_path / "made")
    run = tmp_path / "a b'c;$HOME" / "tiny"
    (run / "index").mkdir(parents=True)
    build_bundle(made).rename(run / "index/ncca")
    publish_json(run / "evaluation/summary.json", [evaluation("cca", 1), evaluation("ncca", 2)])
    (run / "report").mkdir()
    (run / "report/index.html").touch()
    return run


def test_the_command_can_be_pasted(run: Path) -> None:
    program = Path(sys.executable).with_name("jointspace")
    *_, report, search = closing_lines(run, program)
    assert report == f"report: {run}/report/index.html"
    words = shlex.split(search.removeprefix("search: "))
    assert words[1:4] == ["search", "--index", str(run / "index/ncca")]
    shown = run_command("search", *words[2:], "--json")
    pasted = subprocess.run(
        ["bash", "-c", f"{search.removeprefix('search: ')} --json"], capture_output=True, text=True, check=True
    )
    assert json.loads(pasted.stdout) == json.loads(shown) and json.loads(shown)


def test_a_summary_leads_to_no_bundle_outside(run: Path) -> None:
    publish_json(run / "evaluation/summary.json", [evaluation("../../elsewhere", 1)])
    with pytest.raises(IntegrityError, match="summary.json names"):
        closing_lines(run, Path("p"))
