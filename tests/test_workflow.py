"""The whole path on a tiny demo: one command, then nothing to do, then exactly what a changed key asks for."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import warm
import yaml
from warm import environment
from workflow import (
    DATA,
    MINE,
    RESULTS,
    ROOT,
    faults_of,
    planned,
    planned_by,
    printed_after_a_hard_kill,
    run_tiny,
    snakemake,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_tiny(tmp_path_factory.mktemp("run") / "a b'c")


def test_all_artefacts_are_there(run: Path) -> None:
    results = run / RESULTS
    for row in ("ncca", "sae", "ncca-csls-refit"):
        assert json.loads((results / f"index/{row}/card.json").read_text())
        for split in ("test",) if row == "ncca-csls-refit" else ("dev", "test"):
            value = json.loads((results / f"evaluation/{row}.{split}.all-sentences.json").read_text())
            assert (value["n_images"], value["n_sentences"]) == (20, 100)
            for direction in ("image_to_sentence", "sentence_to_image"):
                low, high = value[direction]["recall@10_ci95"]
                assert 0 <= low <= value[direction]["recall@10"] <= high <= 100
    assert len(json.loads((results / "evaluation/summary.json").read_text())) == 5
    assert yaml.safe_load((results / "config.yaml").read_text())["name"] == "tiny"
    assert "<html" in (results / "report/index.html").read_text()
    assert not list(results.rglob("*.tmp.*")) and not list(results.rglob("*.parts"))


def test_what_readme_prints_completes_a_killed_run(run: Path) -> None:
    """The fixture was killed and has run nothing else."""
    unlock, again = printed_after_a_hard_kill()
    assert "--unlock" in unlock and "--unlock" not in again
    assert not faults_of(run) and planned(run) == set()
    *_, last = unlock[unlock.index("--configfile") :]
    assert last == again[again.index("--configfile") + 1] == "tiny.yaml"


def test_no_part_of_a_path_was_run_by_a_shell(run: Path) -> None:
    assert (run / DATA / "demo.json").exists()
    assert {path.name for path in run.iterdir() if "PWNED" in path.name} == {DATA.partition("/")[0]}


def test_a_successful_run_removes_nothing_of_a_users(run: Path) -> None:
    assert {name: (run / RESULTS / name).read_text() for name in MINE} == dict.fromkeys(MINE, "precious")


def test_the_last_lines_of_a_run_say_what_it_found(run: Path) -> None:
    heading, *models, report, search = (run / "output").read_text().splitlines()[-6:]
    assert heading.startswith("recall@1 / 5 / 10 on the test split (20 images, 100 sentences, all-sentences)")
    assert {line.split()[0] for line in models} == {"ncca", "sae", "ncca-csls-refit"}
    assert report == f"report: {RESULTS}/report/index.html"
    words = shlex.split(search.removeprefix("search: "))
    assert words[words.index("--index") + 1] == f"{RESULTS}/index/{models[0].split()[0]}"
    pasted = ["bash", "-c", f"{search.removeprefix('search: ')} --json"]
    result = subprocess.run(pasted, cwd=run, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0 and len(json.loads(result.stdout)) == 10, result.stderr


def test_it_learned_something(run: Path) -> None:
    value = json.loads((run / RESULTS / "evaluation/ncca.test.all-sentences.json").read_text())
    assert value["sentence_to_image"]["median_rank"] < 8  # chance: 10.5 of 20


def test_search_answers_both_ways(run: Path) -> None:
    def search(*arguments: str) -> list[dict]:
        result = warm.jointspace(run, "search", "--index", f"{RESULTS}/index/ncca", "--json", *arguments)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    images = search("--top", "3", "a dog on the grass")
    assert len(images) == 3
    scores = [item["score"] for item in images]
    assert scores == sorted(scores, reverse=True)
    sentences = search("--top", "4", "--image", f"{DATA}/images/scene-00000.jpg")
    assert len(sentences) == 4 and all(item["text"] for item in sentences)


def test_a_second_run_does_nothing(run: Path) -> None:
    assert planned(run) == set()


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            ["evaluate={bootstrap: 60}", "index={recall_floor: 0.9}"],
            {"evaluate", "summarise", "build_index", "report"},
        ),
        (
            ["fit={text_ridge: [2]}"],
            {"fit", "fit_csls", "embed", "evaluate", "summarise", "build_index", "report"},
        ),
        (
            ["image_view={normalise: [l2]}"],
            {
                "accumulate",
                "fit",
                "fit_csls",
                "embed",
                "evaluate",
                "summarise",
                "build_index",
                "report",
            },
        ),
        (["extract={batch_size: 7}", "transfer={beta: [2]}"], set()),
        (["csls={bank: 30}"], {"fit_csls", "embed", "evaluate", "summarise", "build_index", "report"}),
        (["models=[ncca]"], {"summarise", "report"}),
    ],
)
def test_a_changed_key_reruns_what_depends_on_it(run: Path, keys: list[str], expected: set[str]) -> None:
    assert planned(run, "--config", *keys) == expected


def copy_of_the_checkout(folder: Path) -> Path:
    """What Snakemake and the commands need of it."""
    for name in ("pipeline", "stages", "config", "docs/captions"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def test_a_changed_version_reruns_its_stage_and_what_depends_on_it(run: Path, tmp_path: Path) -> None:
    copy = copy_of_the_checkout(tmp_path / "copy")
    assert planned_by(copy, run) == set()
    stage = copy / "stages/models/embed.py"
    text, count = re.subn(r"version=(\d+)", lambda found: f"version={int(found[1]) + 1}", stage.read_text())
    assert count == 1
    stage.write_text(text)
    assert planned_by(copy, run) == {"embed", "fit_csls", "evaluate", "summarise", "build_index", "report"}


@pytest.mark.parametrize("key", ["fit: {dimensions: [8]}", "seed: 7"])
def test_a_variants_own_key_reruns_exactly_it_and_what_depends_on_it(run: Path, key: str) -> None:
    output = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", f"variants={{sae: {{{key}}}}}").stdout
    rows = set(re.findall(r"^ +wildcards: .*\b(?:row|model)=([a-z-]+)", output, flags=re.M))
    rules = set(re.findall(r"^ *(?:rule|localrule) (\w+):", output, flags=re.M)) - {"all"}
    assert rows == {"sae"} and rules == {"fit", "embed", "evaluate", "summarise", "build_index", "report"}


def test_an_ensemble_of_scaled_rows_is_refitted_from_its_members_own_rows(run: Path) -> None:
    members = "[ncca-refined-csls, ncca-recurrent, bow-csls]"
    keys = [
        "models=[best-refit]",
        "variants={ncca-refined-csls: {model: ncca-refined, csls: true}, bow-csls: {model: bow, csls: true}}",
        f"ensembles={{best: {{members: {members}}}, best-refit: {{members: {members}, refit: true}}}}",
    ]
    output = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", *keys).stdout
    made = set(re.findall(rf"^ +output: {RESULTS}/models/([a-z-]+)/model.json", output, flags=re.M))
    members = {"ncca-refined-csls", "ncca-recurrent", "bow-csls"}
    plain = {"ncca-refined", "bow", *members, "best"}
    assert made == plain | {f"{row}-refit" for row in plain}  # but for ncca and its refit, which the run has
