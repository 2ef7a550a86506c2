"""`report` of a run that has a row of fragments: its figures are shown, its answers are another row's."""

from pathlib import Path

import pytest
from made_up import build_bundle, make_run, make_stage, run_command, write_config
from made_up_sets import add_fragments

from pipeline.run.layout import Layout
from pipeline.storage.atomic import CHECK, publish_json, read_json
from pipeline.storage.evaluations import read_evaluations, write_summary
from pipeline.storage.integrity import examine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(run)
    add_fragments(run, "dvsa", {"sum": "words", "global_weight": 0})
    inverted = {"exact_limit": 10, "recall_floor": 1.0, "shortlist": {"nearest": 30, "shortlist": 100}}
    build_bundle(run, {"index": inverted}, model="dvsa", output="sets")
    chosen = {"splits": ["test"], "protocols": ["all-sentences"]}
    write_config(run, {"models": ["ncca", "dvsa"], "regions": {"encoders": ["colour"]}, "evaluate": chosen})
    for model in ("ncca", "dvsa"):
        make_stage("evaluate", run, model, "test", "all-sentences")
    worse = {name: value for name, value in read_json(evaluation(run, "ncca")).items() if name != CHECK}
    worse["sentence_to_image"] |= {"recall@1": 0.0, "recall@5": 0.0, "recall@10": 0.0}
    publish_json(evaluation(run, "ncca"), worse)  # so that the row of fragments is the best
    make_stage("summarise", run)
    return run


def evaluation(run: Path, model: str) -> Path:
    return Layout(run).evaluation(model, "test", "all-sentences").path


def report(run: Path, *bundles: Path) -> str:
    given = ("--manifest", run / "manifest", "--embeddings", run / "embeddings", "--summary", Layout(run).summary.path)
    run_command("report", *bundles, *given, "--output", run / "index.html")
    return (run / "index.html").read_text()


def test_the_best_row_of_one_vector_an_image_is_shown(run: Path) -> None:
    html = report(run, run / "sets", run / "bundle")
    assert "What ncca finds" in html
    assert f"--index {run / 'bundle'}" in html and f"--index {run / 'sets'}" not in html
    assert '<th scope="row">dvsa</th><td class="text">regions</td>' in html
    assert '<th scope="row">ncca</th><td class="text">images</td>' in html
    assert "shortlist recall@10 1.000" in html


def test_a_run_of_nothing_but_fragments_has_a_report_with_what_they_find(run: Path, tmp_path: Path) -> None:
    write_summary(tmp_path / "summary.json", read_evaluations([evaluation(run, "dvsa")]), "")
    given = ("--manifest", run / "manifest", "--embeddings", run / "embeddings", "--summary", tmp_path / "summary.json")
    run_command("report", run / "sets", *given, "--output", tmp_path / "index.html")
    html = " ".join((tmp_path / "index.html").read_text().split())
    assert f"--index {run / 'sets'}" in html and "What dvsa finds" in html and "A map of the images" not in html
    # Each image has all that its sentences name, so that every query is answered at once.
    assert read_json(evaluation(run, "dvsa"))["sentence_to_image"]["recall@1"] == 100
    assert html.count("its image comes first") == 8 and "comes at rank" not in html


def test_evaluations_and_bundles_of_fragments_are_of_their_embeddings(run: Path) -> None:
    mixed = {fault.path for fault in examine(run).faults if fault.reason.startswith("mixed")}
    assert not mixed & {evaluation(run, "dvsa"), evaluation(run, "ncca"), run / "sets" / "card.json"}
