"""The whole path on a tiny demo: one command, then nothing to do, then exactly what a changed key asks for."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import yaml
from made_up import run_command

ROOT = Path(__file__).parents[1]
NETWORK = {"architecture": "squeezenet1_1", "weights": "untrained", "resize": 128, "crop": 128}
TINY = {
    "name": "tiny",
    "encoders": [{"name": "squeezenet-untrained", **NETWORK}],
    "shard_size": 64,
    "demo": {"train": 90, "dev": 20, "test": 20, "weak": 30},
    "fit": {"dimensions": [8, 16], "image_ridge": [0.1, 1], "text_ridge": [1], "eigenvalue_power": [0, 1]},
    "transfer": {"beta": [0.3], "auxiliary_dimensions": [8], "features": 40, "neighbours": 5},
    "kcca": {"landmarks": 60},
    "wsabie_sgd": {"learning_rate": [1], "max_norm": [10], "dimensions": 8, "epochs": 5},
    "wsabie_adagrad": {"max_norm": [10], "dimensions": 8, "epochs": 5},
    "study": {
        "draws": 2,
        "further_draws": 1,
        "terms": [20, 40, 60],
        "fit": {"dimensions": [8], "image_ridge": [1], "text_ridge": [1], "eigenvalue_power": [1]},
    },
    "evaluate": {"bootstrap": 50},
}


def snakemake(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run the Snakefile in `folder`, as a user with a configuration of their own would."""
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "2", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    if check and result.returncode:
        raise AssertionError(result.stdout[-4000:] + result.stderr[-6000:])
    return result


def planned(folder: Path, *arguments: str) -> set[str]:
    """The rules that a dry run would run."""
    output = snakemake(folder, "all", "-n", "--configfile", "tiny.yaml", *arguments).stdout
    return set(re.findall(r"^ *(?:rule|localrule|checkpoint|localcheckpoint) (\w+):", output, flags=re.M)) - {"all"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny demo has been run from nothing."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    snakemake(folder, "all", "--configfile", "tiny.yaml")
    return folder


def test_all_artefacts_are_there(run: Path) -> None:
    results = run / "results" / "tiny"
    for row in ("cca", "ncca", "sae"):
        assert json.loads((results / f"index/{row}/card.json").read_text())
        for split in ("dev", "test"):
            value = json.loads((results / f"evaluation/{row}.{split}.all-sentences.json").read_text())
            assert (value["n_images"], value["n_sentences"]) == (20, 100)
            for direction in ("image_to_sentence", "sentence_to_image"):
                low, high = value[direction]["recall@10_ci95"]
                assert 0 <= low <= value[direction]["recall@10"] <= high <= 100
    assert len(json.loads((results / "evaluation/summary.json").read_text())) == 12
    assert yaml.safe_load((results / "config.yaml").read_text())["name"] == "tiny"
    assert "<html" in (results / "report/index.html").read_text()
    assert not list(results.rglob("*.tmp.*")) and not list(results.rglob("*.parts"))


def test_it_learned_something(run: Path) -> None:
    value = json.loads((run / "results/tiny/evaluation/ncca.test.all-sentences.json").read_text())
    assert value["sentence_to_image"]["median_rank"] < 8  # chance: 10.5 of 20


def test_search_answers_both_ways(run: Path) -> None:
    def search(*arguments: str) -> list[dict]:
        command = [sys.executable, "-m", "stages.cli", "search", "--index", "results/tiny/index/ncca", "--json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = subprocess.run([*command, *arguments], cwd=run, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    images = search("--top", "3", "a dog on the grass")
    assert len(images) == 3
    scores = [item["score"] for item in images]
    assert scores == sorted(scores, reverse=True)
    sentences = search("--top", "4", "--image", "results/demo-collection/images/scene-00000.jpg")
    assert len(sentences) == 4 and all(item["text"] for item in sentences)


def test_a_second_run_does_nothing(run: Path) -> None:
    assert planned(run) == set()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("plan={sample: 9}", {"plan", "report"}),
        ("evaluate={bootstrap: 60}", {"evaluate", "summarise", "report"}),
        ("index={recall_floor: 0.9}", {"build_index", "report"}),
        (
            "fit={text_ridge: [2]}",
            {"fit", "embed", "evaluate", "summarise", "build_index", "report"},
        ),
        (
            "image_view={normalise: [l2]}",
            {"accumulate", "accumulate_auxiliary", "fit", "embed", "evaluate", "summarise", "build_index", "report"},
        ),
        ("extract={batch_size: 7}", set()),
        ("transfer={bandwidth: [2]}", {"fit", "embed", "evaluate", "summarise", "build_index", "report"}),
        ("transfer={beta: [2]}", set()),
        ("models=[ncca]", {"summarise", "report"}),
    ],
)
def test_a_changed_key_reruns_what_depends_on_it(run: Path, key: str, expected: set[str]) -> None:
    assert planned(run, "--config", key) == expected


def test_regions_and_boxes_are_described_where_asked(run: Path) -> None:
    keys = ["generators=[mrnn, mrnn-regions]", "models=[ncca, dvsa]", "mrnn_regions={snippets: dvsa}"]
    keys += ["regions={encoders: [squeezenet-untrained]}"]
    whole = planned(run, "--config", *keys)
    assert {"align", "extract_regions", "train_generator", "describe", "evaluate_descriptions"} <= whole
    assert planned(run, "--config", *keys, "describe={boxes: true}") - whole == {
        "describe_boxes", "evaluate_boxes", "parse",
    }  # fmt: skip


@pytest.mark.slow
def test_snakemake_reports_on_a_run(run: Path) -> None:
    snakemake(run, "all", "--report", "report.zip", "--configfile", "tiny.yaml")
    with zipfile.ZipFile(run / "report.zip") as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert "ncca" in texts["summary.md"] and "What it has cost" in texts["index.html"]
    snakemake(run, "all", "--report", "report.html", "--configfile", "tiny.yaml")
    page = (run / "report.html").read_text()
    for caption in ("what the best row finds", "median and mean rank of every row"):
        assert caption in texts["report.html"] and caption in page
    embedded = [base64.b64decode(data).decode() for data in re.findall('"data_uri": "[^,]*;base64,([^"]+)"', page)]
    assert sorted(embedded) == sorted([texts["summary.md"], texts["index.html"]])
    assert not re.search(r"<(?:script|img|iframe)[^>]* src=.https?:|<link[^>]* href=.https?:", page)  # nothing to fetch


def test_every_output_of_the_report_has_its_caption() -> None:
    named = set(re.findall(r'shown\(f".+?", "(\w+)", ".+?"\)', (ROOT / "Snakefile").read_text()))
    assert named == {path.stem for path in (ROOT / "docs/captions").glob("*.rst")} and len(named) == 9


def test_the_report_lays_the_forecast_beside_what_was_taken(run: Path) -> None:
    page = (run / "results/tiny/report/index.html").read_text()
    cells = re.search(r'<th scope="row">extract</th>(.*?)</tr>', page)[1]
    forecast, took, ratio, *_ = re.findall("<td>(.*?)</td>", cells)
    assert forecast.endswith(" s") and took.endswith(" s") and float(ratio) > 0
    plan = json.loads((run / "results/tiny/plan.json").read_text())
    assert plan["rates"]["images"]["squeezenet-untrained"] > 0


def test_the_tables_of_gong_et_al(run: Path) -> None:
    """Every number of every table, in two draws; measured again only where something has changed."""
    snakemake(run, "gong", "--configfile", "tiny.yaml")
    study = run / "results/tiny/study"
    text = (study / "tables.md").read_text()
    for number in range(1, 7):
        assert f"## Table {number}." in text
    line = next(line for line in text.splitlines() if line.startswith("| SAE (nonlinear)"))
    cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
    assert len(cells) == 9 and all(0 <= float(cell.split()[0].strip("*")) <= 100 for cell in cells)
    assert cells[3:] == ["23.60", "29.80", "32.83", "23.17", "29.50", "32.40"]
    run_command("verify", run / "results/tiny")
    before = {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()}
    (study / "study.json").unlink()
    snakemake(run, "gong", "--configfile", "tiny.yaml")
    assert {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()} == before


def test_a_sweep_needs_no_features_of_training_images(run: Path) -> None:
    results, options = run / "results/tiny", ["--config", "results/tiny/config.yaml", "--output", "sweep"]
    for name in ("manifest", "features"):
        options += [f"--{name}", str(results / name)]
    options += ["--tfidf", str(results / "text/tfidf"), "--moments", str(results / "study/moments/target")]
    options += ["--auxiliary", str(results / "study/moments/auxiliary"), "--documents", str(results / "text/documents")]
    command = [sys.executable, "-m", "stages.cli", "sweep", "ncca", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads((run / "sweep/sweep.json").read_text())
    assert [cell["target_folds"] for cell in found["cells"]] == [1, 2, 3, 4, 5]
    lines = (run / "sweep/sweep.csv").read_text().splitlines()
    assert len(lines) == found["combinations"] + 1
    assert (run / "sweep/sweep.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bytes(run: Path, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    command = [
        sys.executable,
        "-m",
        "snakemake",
        "-s",
        str(ROOT / "Snakefile"),
        "--cores",
        "2",
        "all",
        "--configfile",
        "tiny.yaml",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    features = tmp_path / "results/tiny/features/squeezenet-untrained"
    deadline = time.monotonic() + 120
    while not list(features.glob("*.h5.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, "the run must be killed while it is under way"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "results/tiny/report/index.html").exists()
    snakemake(tmp_path, "--unlock", "--configfile", "tiny.yaml")
    snakemake(tmp_path, "all", "--configfile", "tiny.yaml", "--rerun-incomplete")
    for folder in ("features", "text", "moments", "models", "embeddings", "evaluation"):
        paths = sorted((tmp_path / "results/tiny" / folder).rglob("*"))
        assert paths
        for path in paths:
            if path.is_file():
                twin = run / path.relative_to(tmp_path)
                assert twin.read_bytes() == path.read_bytes(), path


def test_a_misspelt_key_is_one_sentence(run: Path) -> None:
    result = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", "imge_view=1", check=False)
    assert result.returncode != 0
    assert "unknown key imge_view; legal here: name, data_root" in result.stdout + result.stderr


def test_a_missing_collection_is_named(run: Path) -> None:
    result = snakemake(run, "all", "-n", "--config", "data_root=/nowhere", "demo={generate: false}", check=False)
    assert result.returncode != 0
    assert "/nowhere is not a folder" in result.stdout + result.stderr
