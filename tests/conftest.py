"""Fixtures that several rooms share."""

import gc
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.compute import runtime

if TYPE_CHECKING:
    import torch

runtime.configure(1 if "PYTEST_XDIST_WORKER" in os.environ else None)

IN_MEMORY, ROOM = Path("/dev/shm"), 4 << 30
"""Where Linux keeps files in memory, and how many bytes must be free there for the tests to write there."""

STATE: list[tempfile.TemporaryDirectory] = []
LONG = (
    "test_workflow.py", "test_extending.py", "test_run_command.py", "test_benchmarks.py", "test_mapped_stages.py",
    "test_models.py", "test_region_stages.py", "test_declared_inputs.py",
)  # fmt: skip
"""Modules that take longest: first, so that no worker of `-n auto` is left alone with one at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as cores, or as the user allows: each imports and compiles all tests once more, which takes longer than
    what a worker waits for."""
    return runtime.threads()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of a hundred processes compiles all our modules
    sys.dont_write_bytecode = False
    os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"  # which imports Dask once for all
    if "TMPDIR" not in os.environ and has_room(IN_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)
    STATE.append(tempfile.TemporaryDirectory(prefix="jointspace-state-"))
    os.environ["XDG_STATE_HOME"] = STATE[0].name  # where the code of bundles is remembered, not the user's own
    config.option.loadscopereorder = False  # else pytest-xdist puts modules of many tests first, however short


def has_room(folder: Path) -> bool:
    """Whether the tests can write to `folder`, which is in memory, and run programs there."""
    if not os.access(folder, os.W_OK):
        return False
    from pipeline.plan.machine import free_memory

    about = os.statvfs(folder)
    return min(about.f_bavail * about.f_frsize, free_memory()) >= ROOM and not about.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and their modules are made, and stay: the garbage collector need not look at them again and
    again, which took 4 of the 10 seconds of collecting them."""
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """A command that a test calls in this process leaves its level of logging behind: not for other tests."""
    yield
    for ours in ("pipeline", "stages"):
        logging.getLogger(ours).setLevel(logging.NOTSET)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The made-up run with its index, `bundle`, and `regions`, that of a model of several vectors an image. Nothing of
    it is changed; who needs another run has a fixture of that name."""
    from made_up import build_bundle, make_run
    from made_up_sets import SCORE, add_fragments

    folder = make_run(tmp_path_factory.mktemp("made-up") / "run")
    build_bundle(folder)
    add_fragments(folder, "dvsa", SCORE)
    build_bundle(folder, model="dvsa", output="regions")
    return folder


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that has learned the names of four colours, with its index `bundle`. Nothing of it is changed."""
    from made_up_colours import make_colours

    return make_colours(tmp_path_factory.mktemp("colours") / "colours")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium that playwright drives."""
    driving = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("there is no Chromium here to open pages with")
    with driving.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


OTHERS = ["pretended", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=["cpu", *OTHERS])
def device(request: pytest.FixtureRequest) -> Iterator["torch.device"]:
    """Where what numpy computes is computed by torch: on the processor, and as `other_device`."""
    yield from _offer(request.param)


@pytest.fixture(params=OTHERS)
def other_device(request: pytest.FixtureRequest) -> Iterator["torch.device"]:
    """Where what the processor computes is computed: on a device that is only pretended, whose tensors do not mix
    with the processor's, and on a GPU where there is one."""
    yield from _offer(request.param)


def _offer(name: str) -> Iterator["torch.device"]:
    import torch
    from pretended import pretending

    if name == "pretended":
        with pretending() as device:
            yield device
        return
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    yield torch.device(name)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real photographs, weights and treebanks that JOINTSPACE_DATA names."""
    folder = os.environ.get("JOINTSPACE_DATA")
    if not folder:
        pytest.skip("JOINTSPACE_DATA is not set: no real data here")
    return Path(folder)
