"""Tests of the whole workflow on a tiny demo: one command makes everything, a second run does nothing, a changed key
reruns only the jobs that depend on it, and kills do not change the bytes of the results.
"""

import base64
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from random import Random

import forked_programs
import pytest
import yaml
from forked_programs import environment
from workflow import (
    DATA,
    MINE,
    RESULTS,
    TINY,
    command,
    documented_recovery,
    faults_of,
    planned,
    result_files,
    run_tiny,
    snakemake,
)  # fmt: skip

from stages.models import fit

KILLS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_tiny(tmp_path_factory.mktemp("run") / "a b'c")


def test_all_artefacts_exist(run: Path) -> None:
    results = run / RESULTS
    for row in ("ncca", "sae", "ncca-csls-refit"):
        assert json.loads((results / f"index/{row}/card.json").read_text())
        for split in ("test",) if row == "ncca-csls-refit" else ("dev", "test"):
            value = json.loads((results / f"evaluation/{row}.{split}.all-sentences.json").read_text())
            assert (value["n_images"], value["n_sentences"]) == (12, 60)
            for direction in ("image_to_sentence", "sentence_to_image"):
                low, high = value[direction]["recall@10_ci95"]
                assert 0 <= low <= value[direction]["recall@10"] <= high <= 100
    assert len(json.loads((results / "evaluation/summary.json").read_text())) == 5
    assert yaml.safe_load((results / "config.yaml").read_text())["name"] == "tiny"
    assert "<html" in (results / "report/index.html").read_text()
    assert not list(results.rglob("*.tmp.*")) and not list(results.rglob("*.parts"))


def test_the_documented_commands_complete_a_killed_run(run: Path) -> None:
    """The run of the fixture was killed once, and only the commands of docs/recovery.md have run since."""
    assert documented_recovery() == [["run", "tiny.yaml", "--", "--unlock"], ["run", "tiny.yaml"]]
    assert not faults_of(run) and planned(run) == set()


def test_no_part_of_a_path_is_run_by_a_shell_and_files_of_users_stay(run: Path) -> None:
    assert (run / DATA / "demo.json").exists()
    assert {path.name for path in run.iterdir() if "PWNED" in path.name} == {DATA.partition("/")[0]}
    assert {name: (run / RESULTS / name).read_text() for name in MINE} == dict.fromkeys(MINE, "precious")


DIRECTIONS = ("image_to_sentence", "sentence_to_image")


def test_the_last_lines_of_a_run_say_what_it_found(run: Path) -> None:
    heading, *models, report, search = (run / "output").read_text().splitlines()[-6:]
    assert heading.startswith("recall@1 / 5 / 10 on the test split (12 photos, 60 captions, all-sentences)")
    assert {line.split()[0] for line in models} == {"ncca", "sae", "ncca-csls-refit"}
    assert report == f"report: {RESULTS}/report/index.html"
    words = shlex.split(search.removeprefix("search: "))
    on_dev = [json.loads(path.read_text()) for path in (run / RESULTS / "evaluation").glob("*.dev.all-sentences.json")]
    best = max(on_dev, key=lambda found: sum(found[way][f"recall@{k}"] for way in DIRECTIONS for k in (1, 5, 10)))
    assert words[words.index("search") + 1] == f"{RESULTS}/index/{best['model']}"
    pasted = ["bash", "-c", f"{search.removeprefix('search: ')} --json"]
    result = subprocess.run(pasted, cwd=run, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0 and len(json.loads(result.stdout)) == 10, result.stderr


def test_the_models_have_learned_and_search_answers_in_both_directions(run: Path) -> None:
    value = json.loads((run / RESULTS / "evaluation/ncca.test.all-sentences.json").read_text())
    assert value["sentence_to_image"]["median_rank"] < 6  # Random vectors would give 6.5, because there are 12 photos.

    def search(*arguments: str) -> list[dict]:
        result = forked_programs.jointspace(run, "search", "--index", f"{RESULTS}/index/ncca", "--json", *arguments)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    scores = [item["score"] for item in search("--top-k", "3", "--no-match-text", "a dog on the grass")]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    sentences = search("--top-k", "4", "--image", f"{DATA}/images/scene-00000.jpg")
    assert len(sentences) == 4 and all(item["text"] for item in sentences)


AFTER_FIT = {"embed", "fit_hubness", "evaluate", "summarise", "build_index", "report"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("evaluate={bootstrap: 60}", {"evaluate", "summarise", "report"}),
        ("fit={text_ridge: [2]}", {"fit"} | AFTER_FIT),
        ("extract={batch_size: 7}", set()),
        ("models=[ncca]", {"summarise", "report"}),
    ],
)
def test_a_changed_key_reruns_the_stages_that_depend_on_it(run: Path, key: str, expected: set[str]) -> None:
    assert planned(run, "--config", key) == expected


def test_a_raised_version_reruns_the_stages_that_depend_on_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "fit", replace(fit.fit, version=99))
    assert planned(run) == {"fit"} | AFTER_FIT


def test_a_variants_own_key_reruns_only_the_variant_and_its_dependents(run: Path) -> None:
    words = ["--configfile", "tiny.yaml", "--config", "variants={sae: {seed: 7}}"]
    output = snakemake(run, "all", "-n", *words).stdout
    rows = set(re.findall(r"^ +wildcards: .*\b(?:row|model)=([a-z-]+)", output, flags=re.M))
    rules = set(re.findall(r"^ *(?:rule|localrule) (\w+):", output, flags=re.M)) - {"all"}
    assert rows == {"sae"} and rules == {"fit", "embed", "evaluate", "summarise", "build_index", "report"}


def test_a_deleted_artefact_is_made_again(run: Path) -> None:
    artefact = run / RESULTS / "index/ncca"
    aside = run / "aside"
    artefact.rename(aside)
    assert planned(run) == {"build_index", "report"}
    aside.rename(artefact)


@pytest.mark.slow
def test_snakemake_reports_on_a_run(run: Path) -> None:
    snakemake(run, "all", "--report", "report.zip", "--configfile", "tiny.yaml")
    with zipfile.ZipFile(run / "report.zip") as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert "ncca" in texts["summary.md"] and "<h2>Cost</h2>" in texts["index.html"]
    snakemake(run, "all", "--report", "report.html", "--configfile", "tiny.yaml")
    page = (run / "report.html").read_text()
    for caption in ("example searches", "mean rank of each model"):
        assert caption in texts["report.html"] and caption in page
    embedded = [base64.b64decode(data).decode() for data in re.findall('"data_uri": "[^,]*;base64,([^"]+)"', page)]
    assert sorted(embedded) == sorted([texts["summary.md"], texts["index.html"]])
    # The page loads no other file.
    assert not re.search(r"<(?:script|img|iframe)[^>]* src=.https?:|<link[^>]* href=.https?:", page)


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """The run is killed three times, each time after it has made a random number of files. The first and the third
    time, its jobs are killed too. The second time, only Snakemake is killed, and its jobs continue.
    """
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    rng = Random(6)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    count = int((run / "count").read_text())
    for number, files in enumerate(sorted(rng.sample(range(int(0.9 * count)), KILLS))):
        whole = command("all", "--cores", "2", "--configfile", "tiny.yaml")
        process = subprocess.Popen(whole, cwd=tmp_path, env=environment(), start_new_session=True, **quiet)
        while len(result_files(tmp_path)) < files and process.poll() is None:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 2))
        assert process.poll() is None, "the run must be killed while it is under way"
        os.kill(process.pid, signal.SIGKILL)
        if number % 2 == 0:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_orphans(process.pid)
        snakemake(tmp_path, "--unlock", "--configfile", "tiny.yaml")
        assert {fault.reason.split(":")[0] for fault in faults_of(tmp_path)} <= {"uncommitted", "missing", "mixed"}
    subprocess.run(
        command("all", "--cores", "2", "--configfile", "tiny.yaml"),
        cwd=tmp_path,
        env=environment(),
        check=True,
        **quiet,
    )
    assert not faults_of(tmp_path)
    ours, theirs = (result_files(folder) for folder in (tmp_path, run))
    assert len(ours) == count
    different = [name for name, path in ours.items() if path.read_bytes() != theirs[name].read_bytes()]
    assert different == ["manifest/manifest.json"]  # The manifest names its own folder.


def wait_for_orphans(group: int) -> None:
    """Wait until no process of the process group `group` is left. The test fails if this takes more than 120
    seconds.
    """
    deadline = time.monotonic() + 120
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        pytest.fail("the jobs of the killed snakemake have not ended")
