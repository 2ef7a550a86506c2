"""Tests of the messages of `jointspace run` if a run fails, is interrupted, is locked, or succeeds."""

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import forked_programs
import pytest
import yaml
from forked_programs import environment
from synthetic_colours import CONFIG, draw
from tqdm import tqdm

from pipeline.run.reading.results import closing_lines, results_of
from pipeline.storage.manifest import Manifest
from stages.cli import AboveBars
from stages.operations.run import find_snakefile

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a collection of 40 photos of four colours, with a caption each, in `photos`, and its configuration
    `mine.yaml`. Return the folder of both.
    """
    names = draw(tmp_path / "photos", 40, 0)
    captions = (f"{name}\t0\ta {name.partition('-')[0]} picture\n" for name in names)
    (tmp_path / "photos/captions.tsv").write_text("".join(captions))
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({**CONFIG, "name": "mine", "data_root": "photos", "demo": {"generate": False}, "shard_size": 40})
    )
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "stages.cli", "run", *arguments]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(*arguments), cwd=folder, env=environment(), capture_output=True, text=True)


def processes_in(folder: Path) -> list[str]:
    """Return the ids of the processes whose working directory is `folder`."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            found += [pid] if os.readlink(f"/proc/{pid}/cwd") == str(folder) else []
    return found


def test_ctrl_c_ends_all_processes_and_a_failed_stage_gives_its_reason(folder: Path) -> None:
    """A run is interrupted, and then continued with photos that cannot be read.

    The interrupt comes after the manifest is complete, because Snakemake reruns a job whose output it has not yet noted
    as complete.
    """
    process = subprocess.Popen(
        # The last word is a target of Snakemake.
        command("mine.yaml", "--cores", "1", "--", "results/mine/text/encoders/tfidf/model.json"),
        cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while not (folder / "results/mine/manifest/manifest.json").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    assert said.splitlines()[-1] == "jointspace: Interrupted. The same command continues the run."
    assert process.returncode == 130
    assert "rule ingest" in said and "rule prepare_encoder" not in said
    while processes_in(folder):  # The processes that the command has killed may need a moment to end.
        time.sleep(0.05)
    for number in range(5):
        (folder / f"photos/broken-{number}.jpg").write_text("no photograph")
    done = forked_programs.jointspace(
        folder, "run", "mine.yaml", "--cores", "1"
    )  # The interrupted Snakemake has unlocked the folder, so the run continues.
    assert done.returncode == 3 and done.stdout == ""
    (said,) = done.stderr.splitlines()
    assert said.startswith("jointspace: ingest: 5 of 45 photos are rejected, which is more than the share of")
    assert said.endswith("(details: results/mine/run.log)")
    assert "CalledProcessError" in (folder / "results/mine/run.log").read_text()


def test_an_option_that_snakemake_refuses_is_not_called_a_lock(folder: Path) -> None:
    done = forked_programs.jointspace(folder, "run", "mine.yaml", "--", "--no-such-option")
    assert done.returncode == 2 and "unrecognized arguments: --no-such-option" in done.stderr.splitlines()[-1]
    done = forked_programs.jointspace(folder, "run", "mine.yaml", "--", "--executor", "slurm")
    said = done.stderr.splitlines()[-1]
    assert "invalid choice: 'slurm'" in said
    assert re.search(r"Install it: \S*pip install 'jointspace\[slurm\]'\.$", said)
    assert "lock" not in said


def test_a_locked_folder_is_reported_with_the_command_that_unlocks_it(folder: Path) -> None:
    (folder / ".snakemake/locks").mkdir(parents=True)
    (folder / ".snakemake/locks/0.output.lock").write_text("results/mine/manifest/manifest.json\n")
    done = forked_programs.jointspace(folder, "run", "mine.yaml")
    assert done.returncode == 1
    assert re.search(r"remove the lock: \S*jointspace run mine\.yaml -- --unlock$", done.stderr.splitlines()[-1])
    assert forked_programs.jointspace(folder, "run", "mine.yaml", "--", "--unlock").returncode == 0
    assert not (folder / ".snakemake/locks").exists()


def test_lines_of_the_takedown_list_that_match_nothing_are_repeated_at_the_end(folder: Path) -> None:
    config = yaml.safe_load((folder / "mine.yaml").read_text())
    (folder / "mine.yaml").write_text(yaml.safe_dump({**config, "collection": {"takedown": "gone.txt"}}))
    (folder / "gone.txt").write_text(
        "red-00.png\ngreen-01.png\ta green picture\nlost.png\nblue-02.png\ta red picture\n"
    )
    target = "results/mine/manifest/manifest.json"
    for _ in range(2):  # The second run has nothing to do.
        done = forked_programs.jointspace(folder, "run", "mine.yaml", "--cores", "1", "--", target)
        assert done.returncode == 3
        last = done.stderr.splitlines()[-1]
        assert (
            last.startswith("jointspace: The run is complete, with 2 warnings.") and "gone.txt names 'lost.png'" in last
        )
    lost, other = results_of(folder / "results/mine")["warnings"]
    assert "photo of photos has that name" in lost and "has that name and caption" in other
    lines = closing_lines(folder / "results/mine")
    assert lines == [f"warning: {lost}", f"warning: {other}"]
    manifest = Manifest(folder / "results/mine/manifest")
    assert manifest.n_images == 39 and len(manifest.sentence_images) == 38
    for options in ((target, "-n"), (target, "-np"), ("--unlock",)):
        assert forked_programs.jointspace(folder, "run", "mine.yaml", "--cores", "1", "--", *options).returncode == 0
    (folder / "gone.txt").write_text("red-00.png\n")
    done = forked_programs.jointspace(folder, "run", "mine.yaml", "--cores", "1", "--", target)
    assert done.returncode == 0 and results_of(folder / "results/mine")["warnings"] == []


@pytest.mark.slow
def test_the_end_of_a_run_names_the_next_commands(folder: Path) -> None:
    done = run(folder, "mine.yaml", "--cores", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any(line.split()[:1] == ["ncca"] for line in lines) and "report: results/mine/report/index.html" in lines
    assert "search results/mine/index/ncca" in lines[-1]
    again = run(folder, "mine.yaml")
    assert again.returncode == 0 and again.stdout == done.stdout
    found = json.loads(run(folder, "mine.yaml", "--json").stdout)
    assert found["evaluations"][0]["model"] == "ncca" and found["report"] == "results/mine/report/index.html"


def test_the_rules_are_beside_the_snakefile_that_is_installed() -> None:
    assert find_snakefile() == ROOT / "Snakefile"
    assert "share/jointspace/profiles/default = profiles/default/config.yaml" in (ROOT / "setup.cfg").read_text()
    installed = (ROOT / "setup.cfg").read_text().partition("[options.data_files]")[2]
    for line in (ROOT / "Snakefile").read_text().splitlines():
        if line.startswith("include:"):
            folder = Path(line.split('"')[1]).parent
            assert f"share/jointspace/{folder} = {folder}/*.smk" in installed


def test_a_message_appears_above_the_progress_bar() -> None:
    stream = io.StringIO()
    with tqdm(total=2, file=stream, mininterval=0) as bar:
        bar.update()
        AboveBars(stream).emit(logging.makeLogRecord({"msg": "shard 0"}))
    assert re.search(r"\r +\rshard 0\n\r", stream.getvalue())
