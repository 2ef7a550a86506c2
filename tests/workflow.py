"""Functions that run a tiny demo through the Snakefile and inspect its results."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked_programs
import yaml
from forked_programs import ROOT, environment

from pipeline.errors import IntegrityError
from pipeline.storage.verify import FaultyFile, examine

NETWORK = {"architecture": "squeezenet1_1", "weights": "untrained", "resize": 128, "crop": 128}
RESULTS = "it's results/tiny"
DATA = "x;touch PWNED #/demo collection"
"""The path of the collection, which must be quoted in a shell. The folder of the run has such a name too."""
TINY = {
    "name": "tiny",
    "results_root": "it's results",
    "data_root": DATA,
    "models": ["ncca", "sae", "ncca-csls-refit"],
    "variants": {"ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True}},
    "encoders": [{"name": "squeezenet-untrained", **NETWORK}],
    "shard_size": 64,
    "demo": {"train": 90, "dev": 12, "test": 12, "weak": 12},
    "fit": {"dimensions": [8, 16], "image_ridge": [0.1, 1], "text_ridge": [1], "eigenvalue_power": [0, 1]},
    "transfer": {"beta": [0.3], "auxiliary_dimensions": [8], "features": 40, "neighbours": 5},
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
MINE = ("photographs/shard-00007.tar", "photographs/shard-1abc.txt", "photographs/.poetry.lock")
"""Files of a user in the folder of the run. Their names are similar to the names of files that a run removes at its
end.
"""
TIMED = ("run.log", "index", "report", "benchmarks", "logs", "study", "photographs")
"""Files and folders of a run whose bytes differ between runs, because they contain or show measured times, or because
only some tests make them.
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), *arguments]


def snakemake(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    """Run the Snakefile in `folder` with two cores and with `arguments`. Return the exit code, the output and the
    errors as text.

    With `check`, an exit code other than 0 raises AssertionError.
    """
    return run_as_printed(folder, "--cores", "2", *arguments, check=check)


def run_as_printed(folder: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
    result = forked_programs.snakemake(folder, "-s", ROOT / "Snakefile", *arguments)
    if check and result.returncode:
        raise AssertionError(result.stdout[-4000:] + result.stderr[-6000:])
    return result


def planned(folder: Path, *arguments: str) -> set[str]:
    """Return the names of the rules that a dry run for `tiny.yaml` in `folder` lists, except `all`."""
    return rules_of(snakemake(folder, "all", "-n", "--configfile", "tiny.yaml", *arguments))


def rules_of(dry_run: subprocess.CompletedProcess) -> set[str]:
    """Return the names of the rules in the output of a dry run, except `all`. A dry run that has failed raises
    AssertionError.
    """
    assert dry_run.returncode == 0, dry_run.stdout[-4000:] + dry_run.stderr[-4000:]
    pattern = r"^ *(?:rule|localrule) (\w+):"
    return set(re.findall(pattern, dry_run.stdout, flags=re.M)) - {"all"}


def documented_recovery() -> list[list[str]]:
    """Return the words after `jointspace` in each of the two commands that, by docs/recovery.md, complete a killed run.
    The configuration in the commands becomes `tiny.yaml`.
    """
    lines = (ROOT / "docs/recovery.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.endswith("-- --unlock"))
    words = [shlex.split(line.replace("holiday.yaml", "tiny.yaml")) for line in lines[first : first + 2]]
    assert [program for program, *_ in words] == ["jointspace"] * 2
    return [arguments for _, *arguments in words]


def run_tiny(folder: Path) -> Path:
    """Run the tiny demo in the new folder `folder`, kill the run once, complete it as docs/recovery.md says, and return
    `folder`.

    The file `output` has the last output of the run, and the file `count` the number of its result files.
    """
    folder.mkdir()
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    for name in MINE:
        (folder / RESULTS / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS / name).write_text("precious")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = command("all", "--cores", "2", "--configfile", "tiny.yaml")
    process = subprocess.Popen(started, cwd=folder, env=environment(), start_new_session=True, **quiet)
    wait_for(folder / RESULTS / "manifest/manifest.json", process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for run, config, *options in documented_recovery():
        # The bytes of results depend on the number of threads, and forks of the tests' process use one thread.
        call = [sys.executable, "-m", "stages.cli", run, config, "--cores", "2", *options]
        done = subprocess.run(call, cwd=folder, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (folder / "output").write_text(done.stdout)
    (folder / "count").write_text(str(len(result_files(folder))))
    return folder


def wait_for(path: Path, process: subprocess.Popen) -> None:
    """Wait until `process` has made the file `path`. The test fails if the process ends before, or if this takes more
    than 1,500 seconds.
    """
    deadline = time.monotonic() + 1500
    while not path.exists():
        assert process.poll() is None and time.monotonic() < deadline, f"nobody makes {path}"
        time.sleep(0.05)


def faults_of(folder: Path) -> list[FaultyFile]:
    """Return the faults that `verify` would find in the run in `folder`. The list is empty if the run has no artefact
    yet.
    """
    try:
        return examine(folder / RESULTS).faults
    except IntegrityError:
        return []


def result_files(folder: Path) -> dict[str, Path]:
    """Return the files of the run in `folder`, by their path in the run, except the files and folders of TIMED."""
    results = folder / RESULTS
    files = {path.relative_to(results).as_posix(): path for path in results.rglob("*") if path.is_file()}
    return {name: path for name, path in files.items() if name.split("/")[0] not in TIMED}
