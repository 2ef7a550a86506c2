"""Tests of the report of a run with a region model and a model with one vector per image, and of the search that a run
suggests.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from synthetic_multivectors import SCORE, add_fragments, write_regions
from synthetic_run import by_hand, make_run, make_stage, open_run, retell, write_config

from pipeline.run.layout import Layout
from pipeline.run.reading.results import results_of
from pipeline.run.runner import run_stage
from pipeline.storage.commit import read_record
from pipeline.storage.json_files import CHECK, publish_json, read_json
from pipeline.storage.records import write_summary
from stages.results import report as stage

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an evaluated run with the model `ncca` and the region model `dvsa`, and return its folder. The stored
    recalls of `dvsa` are better than the recalls of `ncca`.
    """
    run = make_run(tmp_path_factory.mktemp("run"))
    coverage = {"sentences": 4567, "without": 1234, "words": 9, "unknown": 1}
    retell(run / "text/encoders/tfidf/model.json", "details", "coverage", value=coverage)
    make_stage("build_index", run, "ncca")
    add_fragments(run, "dvsa", SCORE)
    inverted = {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 100}}
    chosen = {"splits": ["test"], "protocols": ["all-sentences"]}
    shown = {"regions": {"encoders": ["colour"]}, "align": {"splits": ["test"]}}
    write_config(run, {"models": ["ncca", "dvsa"], "evaluate": chosen, "index": inverted, **shown})
    make_stage("build_index", run, "dvsa")
    write_regions(run)
    for model in ("ncca", "dvsa"):
        make_stage("evaluate", run, model, "test", "all-sentences")
    worse = {name: value for name, value in read_json(evaluation(run, "ncca")).items() if name != CHECK}
    worse["sentence_to_image"] |= {"recall@1": 0.0, "recall@5": 0.0, "recall@10": 0.0}
    publish_json(evaluation(run, "ncca"), worse)  # Now the region model is the best one.
    make_stage("summarise", run)
    return run


def evaluation(run: Path, model: str) -> Path:
    return Layout(run).evaluation(model, "test", "all-sentences").path


def report(run: Path, *settings: dict) -> str:
    """Make the report of the run, with `settings` merged into its configuration, and return the HTML of the report."""
    run_stage(open_run(run, *settings), stage.report)
    return Layout(run).report.path.read_text()


def test_the_best_model_with_one_vector_per_image_is_shown(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.run.reading.pictures.MIN_WORD_COUNT", 2)
    html = report(run)
    assert "What ncca finds" in html
    assert f"search {run / 'index/ncca'}" in html and f"search {run / 'index/dvsa'}" not in html
    assert '<th scope="row">dvsa</th><td class="text">regions</td>' in html
    assert '<th scope="row">ncca</th><td class="text">images</td>' in html
    assert "shortlist recall@10 1.000" in html
    for name in ("colour: the best regions", "dvsa, test: words at their best", "dvsa, test: the regions with"):
        assert html.count(f"<figcaption>{name}") == 1
    assert '<th scope="row">dvsa</th><td>test</td>\n<td>' in html and "2.00 <small>(2)</small>" in html
    assert "1,234 of 4,567 dev sentences have no known word; 11.1 % of their words are unknown" in html


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_the_page_names_the_commit_of_the_checkout(run: Path) -> None:
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], text=True).strip()
    assert f"commit {commit}" in report(run)


def test_the_suggested_search_uses_a_model_that_has_an_index(run: Path, tmp_path: Path) -> None:
    """The best model of the run is a generator that ranks captions by perplexity, which has no index."""
    ranker = read_json(evaluation(run, "dvsa")) | {"model": "mrnn-perplexity"}
    del ranker[CHECK]
    copy = shutil.copytree(run, tmp_path / "run")
    write_summary(Layout(copy).summary.path, [ranker, read_record(evaluation(copy, "ncca"))], "", by_hand(copy))
    results = results_of(copy)
    assert [evaluation["model"] for evaluation in results["evaluations"]] == ["mrnn-perplexity", "ncca"]
    assert str(copy / "index/ncca") in results["search"]


def test_the_report_of_a_run_with_only_a_region_model_shows_its_results(run: Path, tmp_path: Path) -> None:
    own = shutil.copytree(run, tmp_path / "run")
    write_summary(Layout(own).summary.path, [read_record(evaluation(own, "dvsa"))], "", by_hand(own))
    html = " ".join(report(own, {"models": ["dvsa"]}).split())
    assert f"search {own / 'index/dvsa'}" in html and "What dvsa finds" in html and "A map of the images" not in html
    assert "How the index of regions was chosen" in html and '<th scope="row">IVF' in html
    # Each image shows everything that its sentences name, so each query ranks its own image first.
    assert read_json(evaluation(run, "dvsa"))["sentence_to_image"]["recall@1"] == 100
    assert html.count("its photo is ranked first") == 5 and "is at rank" not in html
