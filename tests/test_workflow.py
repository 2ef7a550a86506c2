"""The whole path on a tiny demo: one command, then nothing to do, then exactly what a changed key asks for."""

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from random import Random

import pytest
import yaml
from made_up import run_command

from pipeline.errors import IntegrityError
from pipeline.storage.integrity import Fault, examine
from stages.catalogue import declared

ROOT = Path(__file__).parents[1]
NETWORK = {"architecture": "squeezenet1_1", "weights": "untrained", "resize": 128, "crop": 128}
RESULTS = "it's results/tiny"
DATA = "x;touch PWNED #/demo collection"
"""Names that a shell must be given in quotes; the folder of the run has such a name, too."""
TINY = {
    "name": "tiny",
    "results_root": "it's results",
    "data_root": DATA,
    "models": ["ncca", "sae", "ncca-csls-refit"],
    "encoders": [{"name": "squeezenet-untrained", **NETWORK}],
    "shard_size": 100,
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
    "evaluate": {"bootstrap": 50, "protocols": ["all-sentences"]},
}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
KILLS = 5
MINE = ("photographs/shard-00007.tar", "photographs/shard-1abc.txt", "photographs/.poetry.lock")
"""A user's own files that lie in the run's folder, and look like what it removes at its end."""
TIMED = ("index", "report", "benchmarks", "plan.json", "study", "photographs")
"""Of a run: what holds measured times, what shows them, and what only some tests make."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), *arguments]


def snakemake(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run the Snakefile in `folder`, as a user with a configuration of their own would."""
    return run_as_printed(folder, "--cores", "2", *arguments, check=check)


def run_as_printed(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    result = subprocess.run(
        command(*arguments), cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=900
    )
    if check and result.returncode:
        raise AssertionError(result.stdout[-4000:] + result.stderr[-6000:])
    return result


def planned(folder: Path, *arguments: str, root: Path = ROOT) -> set[str]:
    """The rules that a dry run would run, by the checkout `root`."""
    program = [sys.executable, "-m", "snakemake", "-s", root / "Snakefile", "--cores", "2"]
    given = [*program, "all", "-n", "--configfile", "tiny.yaml", *arguments]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(root)}
    result = subprocess.run(given, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    output = result.stdout
    assert result.returncode == 0, output[-4000:] + result.stderr[-4000:]
    return set(re.findall(r"^ *(?:rule|localrule|checkpoint|localcheckpoint) (\w+):", output, flags=re.M)) - {"all"}


def printed_after_a_hard_kill() -> list[list[str]]:
    """The two commands of README that complete a run then: their arguments, with our configuration and two cores."""
    lines = (ROOT / "README.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if " --unlock" in line)
    words = [shlex.split(line) for line in lines[first : first + 2]]
    assert [program for program, *_ in words] == [".venv/bin/snakemake"] * 2
    ours = {"holiday.yaml": "tiny.yaml", "8": "2"}
    return [[ours.get(word, word) for word in arguments] for _, *arguments in words]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the tiny demo has been run from nothing: killed once, and completed as README says."""
    folder = tmp_path_factory.mktemp("run") / "a b'c"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    for name in MINE:
        (folder / RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS / name).write_text("precious")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = command("all", "--cores", "2", "--configfile", "tiny.yaml")
    process = subprocess.Popen(started, cwd=folder, env=ENVIRONMENT, start_new_session=True, **quiet)
    wait_for(folder / RESULTS / "manifest/manifest.json", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for printed in printed_after_a_hard_kill():
        (folder / "output").write_text(run_as_printed(folder, *printed).stdout)
    (folder / "count").write_text(str(len(result_files(folder))))
    return folder


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Until `path` is there, which `process` makes."""
    deadline = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"nobody makes {path}"
        time.sleep(0.05)


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
    assert "--unlock" in unlock and "--rerun-incomplete" in again
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
    result = subprocess.run(pasted, cwd=run, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0 and len(json.loads(result.stdout)) == 10, result.stderr


def test_it_learned_something(run: Path) -> None:
    value = json.loads((run / RESULTS / "evaluation/ncca.test.all-sentences.json").read_text())
    assert value["sentence_to_image"]["median_rank"] < 8  # chance: 10.5 of 20


def test_search_answers_both_ways(run: Path) -> None:
    def search(*arguments: str) -> list[dict]:
        program = [sys.executable, "-m", "stages.cli", "search", "--index", f"{RESULTS}/index/ncca", "--json"]
        result = subprocess.run([*program, *arguments], cwd=run, env=ENVIRONMENT, capture_output=True, text=True)
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
            ["plan={sample: 9}", "evaluate={bootstrap: 60}", "index={recall_floor: 0.9}"],
            {"plan", "evaluate", "summarise", "build_index", "report"},
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
        (["transfer={bandwidth: [2]}"], {"fit", "embed", "evaluate", "summarise", "build_index", "report"}),
        (["csls={bank: 30}"], {"fit_csls", "embed", "evaluate", "summarise", "build_index", "report"}),
        (["models=[ncca]"], {"summarise", "report"}),
    ],
)
def test_a_changed_key_reruns_what_depends_on_it(run: Path, keys: list[str], expected: set[str]) -> None:
    assert planned(run, "--config", *keys) == expected


def copy_of_the_checkout(folder: Path) -> Path:
    """What Snakemake and the commands need of it."""
    for name in ("pipeline", "stages", "config", "benchmarks/papers", "examples", "docs/captions"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "benchmarks/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_a_changed_version_reruns_its_stage_and_what_depends_on_it(run: Path, tmp_path: Path) -> None:
    copy = copy_of_the_checkout(tmp_path / "copy")
    assert planned(run, root=copy) == set()
    stage = copy / "stages/models/embed.py"
    text, count = re.subn(r"version=(\d+)", lambda found: f"version={int(found[1]) + 1}", stage.read_text())
    assert count == 1
    stage.write_text(text)
    assert planned(run, root=copy) == {"embed", "fit_csls", "evaluate", "summarise", "build_index", "report"}


@pytest.mark.parametrize("key", ["fit: {dimensions: [8]}", "transfer: {bandwidth: [2]}", "seed: 7"])
def test_a_variants_own_key_reruns_exactly_it_and_what_depends_on_it(run: Path, key: str) -> None:
    output = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", f"variants={{sae: {{{key}}}}}").stdout
    rows = set(re.findall(r"^ +wildcards: .*\b(?:row|model)=([a-z-]+)", output, flags=re.M))
    rules = set(re.findall(r"^ *(?:rule|localrule) (\w+):", output, flags=re.M)) - {"all"}
    assert rows == {"sae"} and rules == {"fit", "embed", "evaluate", "summarise", "build_index", "report"}


def test_regions_and_boxes_are_described_where_asked(run: Path) -> None:
    keys = ["generators=[mrnn, mrnn-regions]", "models=[ncca, dvsa]", "mrnn_regions={snippets: dvsa}"]
    keys += ["regions={encoders: [squeezenet-untrained]}"]
    whole = planned(run, "--config", *keys)
    assert {"align", "extract_regions", "train_generator", "describe", "evaluate_descriptions"} <= whole
    keys += ["describe={boxes: true}"]
    assert planned(run, "--config", *keys) - whole == {"parse"}
    output = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", *keys).stdout
    asked = re.findall(r"wildcards: generator=mrnn-regions, subject=([\w.]+)", output)
    assert sorted(asked) == 2 * ["test"] + 2 * ["test.boxes"]


def test_an_ensemble_of_scaled_rows_is_refitted_from_its_members_own_rows(run: Path) -> None:
    keys = ["models=[best-refit]", "ensembles={best: {members: [ncca-refined-csls, ncca-recurrent, bow-csls]}}"]
    output = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", *keys).stdout
    made = set(re.findall(rf"^ +output: {RESULTS}/models/([a-z-]+)/model.json", output, flags=re.M))
    members = {"ncca-refined-csls", "ncca-recurrent", "bow-csls"}
    plain = {"ncca-refined", "bow", *members, "best"}
    assert made == plain | {f"{row}-refit" for row in plain}  # but for ncca and its refit, which the run has


@pytest.mark.slow
def test_snakemake_reports_on_a_run(run: Path) -> None:
    snakemake(run, "all", "--report", "report.zip", "--configfile", "tiny.yaml")
    with zipfile.ZipFile(run / "report.zip") as archive:
        texts = {Path(name).name: archive.read(name).decode() for name in archive.namelist()}
    assert "ncca" in texts["summary.md"] and "What it has cost" in texts["index.html"]
    snakemake(run, "all", "--report", "report.html", "--configfile", "tiny.yaml")
    page = (run / "report.html").read_text()
    for caption in ("what the best model finds", "median and mean rank of every model"):
        assert caption in texts["report.html"] and caption in page
    embedded = [base64.b64decode(data).decode() for data in re.findall('"data_uri": "[^,]*;base64,([^"]+)"', page)]
    assert sorted(embedded) == sorted([texts["summary.md"], texts["index.html"]])
    assert not re.search(r"<(?:script|img|iframe)[^>]* src=.https?:|<link[^>]* href=.https?:", page)  # nothing to fetch


def test_every_output_of_the_report_has_its_caption() -> None:
    named = {caption for stage in declared().values() for caption in stage.shown}
    assert named == {path.stem for path in (ROOT / "docs/captions").glob("*.rst")} and len(named) == 8


def test_the_report_lays_the_forecast_beside_what_was_taken(run: Path) -> None:
    page = (run / RESULTS / "report/index.html").read_text()
    cells = re.search(r'<th scope="row">extract</th>(.*?)</tr>', page)[1]
    jobs, forecast, took, ratio, *_ = re.findall("<td>(.*?)</td>", cells)
    assert forecast.endswith(" s") and took.endswith(" s") and float(ratio) > 0
    plan = json.loads((run / RESULTS / "plan.json").read_text())
    assert plan["rates"]["images"]["squeezenet-untrained"] > 0


@pytest.mark.slow  # faults/test_studies.py runs the same commands
def test_the_tables_of_gong_et_al(run: Path) -> None:
    """Every number of every table, in two draws; measured again only where something has changed."""
    assert "recall@1" not in snakemake(run, "gong", "--configfile", "tiny.yaml").stdout
    study = run / RESULTS / "study"
    text = (study / "tables.md").read_text()
    for number in range(1, 7):
        assert f"## Table {number}." in text
    line = next(line for line in text.splitlines() if line.startswith("| SAE (nonlinear)"))
    cells = [cell.strip(" *") for cell in line.split("|")[2:-1]]
    assert len(cells) == 9 and all(0 <= float(cell.split()[0].strip("*")) <= 100 for cell in cells)
    assert cells[3:] == ["23.60", "29.80", "32.83", "23.17", "29.50", "32.40"]
    run_command("verify", run / RESULTS)
    before = {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()}
    (study / "study.json").unlink()
    snakemake(run, "gong", "--configfile", "tiny.yaml")
    assert {path: path.stat().st_mtime_ns for path in (study / "cells").iterdir()} == before


@pytest.mark.slow  # which takes the moments of the tables
def test_a_sweep_needs_no_features_of_training_images(run: Path) -> None:
    run_command("sweep", "ncca", "--run", run / RESULTS)
    swept = run / RESULTS / "sweeps/ncca"
    found = json.loads((swept / "sweep.json").read_text())
    assert [cell["target_folds"] for cell in found["cells"]] == [1, 2, 3, 4, 5]
    lines = (swept / "sweep.csv").read_text().splitlines()
    assert len(lines) == found["combinations"] + 1
    assert (swept / "sweep.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """Its lives end at random shares of its files; every second time its jobs live on when snakemake is killed."""
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    rng, quiet = Random(6), {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    count = int((run / "count").read_text())
    for number, files in enumerate(sorted(rng.sample(range(int(0.9 * count)), KILLS))):
        whole = command("all", "--cores", "2", "--configfile", "tiny.yaml", "--rerun-incomplete")
        process = subprocess.Popen(whole, cwd=tmp_path, env=ENVIRONMENT, start_new_session=True, **quiet)
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
    snakemake(tmp_path, "all", "--configfile", "tiny.yaml", "--rerun-incomplete")
    assert not faults_of(tmp_path)
    ours, theirs = (result_files(folder) for folder in (tmp_path, run))
    assert len(ours) == count
    different = [name for name, path in ours.items() if path.read_bytes() != theirs[name].read_bytes()]
    assert different == ["manifest/manifest.json"]  # which names the folder that it lies in


def wait_for_orphans(group: int) -> None:
    """Until no process of a process group is left."""
    deadline = time.monotonic() + 120
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        pytest.fail("the jobs of a killed snakemake do not end")


def faults_of(folder: Path) -> list[Fault]:
    """What `verify` would find; nothing where no artefact is there yet."""
    try:
        return examine(folder / RESULTS).faults
    except IntegrityError:
        return []


def result_files(folder: Path) -> dict[str, Path]:
    """What a run has made, but what measured times go into."""
    results = folder / RESULTS
    files = {path.relative_to(results).as_posix(): path for path in results.rglob("*") if path.is_file()}
    return {name: path for name, path in files.items() if name.split("/")[0] not in TIMED}


def test_a_misspelt_key_is_one_sentence(run: Path) -> None:
    result = snakemake(run, "all", "-n", "--configfile", "tiny.yaml", "--config", "imge_view=1", check=False)
    assert result.returncode != 0
    assert "unknown key imge_view; did you mean image_view?" in result.stdout + result.stderr


def test_a_key_that_is_given_twice_is_one_sentence(run: Path) -> None:
    (run / "twice.yaml").write_text("seed: 1\nseed: 2\n")
    result = snakemake(run, "all", "-n", "--configfile", "twice.yaml", check=False)
    assert result.returncode != 0
    assert "line 2: the key seed is in line 1 already" in result.stdout + result.stderr


def test_a_missing_collection_is_named(run: Path) -> None:
    result = snakemake(run, "all", "-n", "--config", "data_root=/nowhere", "demo={generate: false}", check=False)
    assert result.returncode != 0
    assert "/nowhere is not a folder" in result.stdout + result.stderr


def test_the_checkout_too_may_lie_in_a_folder_of_any_name(tmp_path: Path) -> None:
    """Its Snakefile, and the environment whose programs the rules call."""
    (tmp_path / "a b'c {x}").mkdir()
    checkout, environment = tmp_path / "a b'c {x}/checkout", tmp_path / "a b'c {x}/venv"
    checkout.symlink_to(ROOT)
    environment.symlink_to(sys.prefix)
    values = TINY | {"demo": {"train": 2, "dev": 1, "test": 1, "weak": 0}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(values))
    python = environment / Path(sys.executable).relative_to(sys.prefix)
    program = [python, "-m", "snakemake", "--configfile", "tiny.yaml", "-s", checkout / "Snakefile", "--cores", "2"]
    for target in (["all", "-n"], [f"{RESULTS}/manifest/manifest.json"]):
        result = subprocess.run([*program, *target], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert json.loads((tmp_path / RESULTS / "manifest/manifest.json").read_text())["counts"]["images"]["kept"] == 4
    assert not (tmp_path / "PWNED").exists()
