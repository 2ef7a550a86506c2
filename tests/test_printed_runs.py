"""Every command that README.md and docs/*.md print, run in the order of the pages, in a copy of the checkout.

The copy's defaults are small, so that its demo and its collections are runs of minutes. `INSTEAD` lists what cannot
run here, with its reason; the fast checks of all commands are in test_printed_commands.py.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from interrupting import heed
from made_up_downloads import keep_weights, write_coco, write_folder
from pages import PAGES, ROOT, Code, Command, blocks, code, commands, commands_of

from pipeline.config import default_path, merge, read_mapping

STEPS = [
    step
    for page in PAGES
    for one in code(page)
    for step in ([one] if (page.name, one.language) == ("scaling.md", "yaml") else commands_of(one))
]  # fmt: skip
DATA = os.environ.get("JOINTSPACE_DATA")
SMALL = {
    "demo": {"train": 90, "dev": 20, "test": 20, "weak": 30},
    "shard_size": 64,
    "finetune": {"iterations": 5, "images": 8, "held_out_images": 3, "candidates": 60},
    "fit": {"dimensions": [8, 16], "image_ridge": [0.1, 1], "text_ridge": [1], "eigenvalue_power": [0, 1]},
    "transfer": {"beta": [0.3], "auxiliary_dimensions": [8], "features": 40, "neighbours": 5},
    "kcca": {"landmarks": 60},
    "wsabie_sgd": {"learning_rate": [1], "max_norm": [10], "dimensions": 8, "epochs": 5},
    "wsabie_adagrad": {"max_norm": [10], "dimensions": 8, "epochs": 5},
    "study": {"draws": 2, "further_draws": 1, "terms": [20, 40, 60]},
    "evaluate": {"bootstrap": 50},
}
"""Defaults of the copy, over those of the checkout."""
PLACES = {"/home/me/holiday": "holiday", "/home/me/phone": "phone", "/where/coco/is": "coco", "HOST": "127.0.0.1"}
"""What stands on a page for a user's own place, and what it is here."""
COUNTS = {"train": 30, "val": 8, "restval": 5, "test": 12}


class Instead(NamedTuple):
    """The `reason` why a command is not run as it is printed, and what runs in its place, if anything does."""

    reason: str
    command: str | None = None


NETWORK, LONG, PATTERN = "installs from a package index", "takes long", "stands for any name"
OURS = "pytest -m nightly tests/test_printed_runs.py tests/test_karpathy_splits.py"
INSTEAD = {
    "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/snakemake all --cores 2": Instead(
        NETWORK, ".venv/bin/snakemake all --cores 2"
    ),
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest -n auto"
    " --dist loadfile": Instead("is what .ci/run runs, and the fast checks say so"),
    ".venv/bin/jointspace init /home/me/holiday": Instead(
        "other pages have a configuration of that name", "rm holiday.yaml && .venv/bin/jointspace init holiday"
    ),
    "jointspace COMMAND --help": Instead("the fast checks run it of every command"),
    "pytest -m nightly tests/faults": Instead(LONG, "pytest -m nightly tests/faults --collect-only"),
    OURS: Instead("is this", f"{OURS} --collect-only"),
    "snakemake all --profile profiles/slurm --configfile config/million.yaml": Instead(
        "needs SLURM and its plugin; the profile's other options are tried",
        "snakemake all -n --profile profiles/slurm --executor local --configfile config/million.yaml",
    ),
    "python benchmarks/NAME.py": Instead(PATTERN),
    "python benchmarks/dask_workers.py --rows 16384 --shards 24": Instead(
        LONG, "python benchmarks/dask_workers.py --rows 256"
    ),
    "python benchmarks/million.py": Instead(LONG, "python benchmarks/million.py --images 20000 --dim 64"),
    "python benchmarks/million.py --images 50000 --dim 1024": Instead(
        f"{LONG}; in small it runs in place of the one above"
    ),
}
"""Command as printed -> why it is not run so."""
WEIGHTS = re.compile(r"config/(?:papers/gong|flickr8k)\.yaml|boxes\.yaml")
"""Configurations that name files of weights, which are here where JOINTSPACE_DATA is set; else a dry run must do."""
EXIT_CODES = {"jointspace doctor": (0, 1), "python benchmarks/gpu.py": (0, 1)}
"""Exit codes of commands that may end with another than 0, as their page says."""


def test_the_table_lists_only_what_is_printed() -> None:
    assert INSTEAD.keys() <= {command.text for command in commands()}


def test_ci_runs_the_second_command() -> None:
    assert [text for text in INSTEAD if ".[test]" in text][0] in (ROOT / ".ci/run").read_text()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with small defaults, and the collections that the pages name."""
    above = tmp_path_factory.mktemp("printed")
    place, left_out = above / "checkout", {".git", ".venv", "results", ".snakemake"}
    shutil.copytree(ROOT, place, ignore=lambda folder, _: left_out if Path(folder) == ROOT else {"__pycache__"})
    (place / ".venv").symlink_to(sys.prefix)
    defaults = merge(read_mapping(default_path()), SMALL)
    (place / "config/default.yaml").write_text(yaml.safe_dump(defaults, sort_keys=False))
    write_folder(place / "holiday", ["beach.jpg", *(f"day-{number}.jpg" for number in range(1, 20))])
    write_folder(place / "phone", [f"IMG_{number}.jpg" for number in range(7)])
    for path in (place / "phone").glob("*.tsv"):
        path.unlink()
    write_coco(place / "coco", COUNTS)
    (place / "million").mkdir()
    names = [f"{1000268201 + 7 * number}_{number:010x}.jpg" for number in range(340)]
    write_folder(above / "shared/data/flickr8k", names, {"train": 300, "dev": 20, "test": 20})
    for name in ("weights", "text", "treebanks") if DATA else ():
        (above / "shared/data" / name).symlink_to(Path(DATA) / name)
    if DATA:
        (place / "squeezenet1_0.safetensors").symlink_to(Path(DATA) / "weights/squeezenet1_0.safetensors")
    keep_weights("resnet50", above / "torch")
    for block in reversed(blocks("yaml")):  # of two that have one name, the first one is kept
        values = yaml.safe_load(here(block.text))
        if "name" in values:
            (place / f"{values['name']}.yaml").write_text(yaml.safe_dump(values))
    return place


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    path = f"{place / '.venv/bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(place), "TORCH_HOME": str(place.parent / "torch")}


@pytest.fixture(scope="module")
def background(place: Path, environment: dict[str, str]) -> Iterator[list[subprocess.Popen]]:
    """What was started with `&`, until the last page has been run."""
    started: list[subprocess.Popen] = []
    yield started
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


@pytest.mark.nightly
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_pages_run_as_printed(
    place: Path, environment: dict[str, str], background: list[subprocess.Popen], step: Code
) -> None:
    text = here(step.text)
    if not isinstance(step, Command):
        lay_over(place / "holiday.yaml", text)
        return
    if step.is_mention:
        return
    instead = INSTEAD.get(step.text)
    if instead is None and "pip install" in text:  # which would change the environment of these tests, too
        pytest.skip(NETWORK)
    if instead is not None and instead.command is None:
        pytest.skip(instead.reason)
    if not DATA and WEIGHTS.search(text):
        text += " -n"
    run = ["bash", "-c", text if instead is None else instead.command]
    given = {"cwd": place, "env": environment, "text": True}
    if text.endswith(" &"):
        run[2] = f"exec {text.removesuffix(' &')}"
        background.append(subprocess.Popen(run, start_new_session=True, **given))
    elif " serve " in text:
        answer_until_stopped(run, given)
    else:
        result = subprocess.run(run, capture_output=True, timeout=3600, **given)
        assert result.returncode in EXIT_CODES.get(step.text, (0,)), result.stdout[-3000:] + result.stderr[-5000:]


def here(text: str) -> str:
    """A command or a configuration with the places of this copy."""
    for printed, place in PLACES.items():
        text = text.replace(printed, place)
    return text


def lay_over(path: Path, text: str) -> None:
    """Change a configuration as docs/scaling.md says, for the commands that follow there."""
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(merge(values, yaml.safe_load(text))))
    (path.parent / "takedown.txt").write_text("day-1.jpg\n")


def answer_until_stopped(run: list[str], given: dict) -> None:
    """A server answers, at a port of its choice, and ends as docs/faults.md says when it is interrupted."""
    from urllib.request import urlopen

    command = ["bash", "-c", f"exec {run[2]} --port 0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, preexec_fn=heed, **given) as process:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        try:
            assert b"<html" in urlopen(address, timeout=30).read()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
