"""Fixtures that the tests of several packages share."""

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

IN_MEMORY = Path("/dev/shm")
"""The folder in which Linux keeps files in memory. The tests write their temporary files there if it has enough
space.
"""
MIN_FREE_BYTES = 4 << 30
"""Number of bytes that must be free in the folder IN_MEMORY before the tests write their files there."""

STATE: list[tempfile.TemporaryDirectory] = []
LONGEST_MODULES = (
    "test_workflow.py", "test_extending.py", "test_run_command.py", "test_benchmarks.py", "test_mapped_stages.py",
    "test_models.py", "test_region_stages.py", "test_declared_inputs.py",
)  # fmt: skip
"""Modules whose tests take longest. They run first, so that `-n auto` does not end with one busy worker."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers for `-n auto`: the number of cores, or the number of threads that the user allows.

    More workers would not help, because each worker imports and compiles all tests again.
    """
    return runtime.threads()


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # Otherwise a hundred processes would compile all modules.
    sys.dont_write_bytecode = False
    # A fork server imports Dask once for all workers.
    os.environ["DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD"] = "forkserver"
    if "TMPDIR" not in os.environ and has_room(IN_MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(IN_MEMORY)
    STATE.append(tempfile.TemporaryDirectory(prefix="jointspace-state-"))
    # In this folder, and not in the folder of the user, jointspace remembers which files it has checked.
    os.environ["XDG_STATE_HOME"] = STATE[0].name
    # Otherwise pytest-xdist would start with the modules that have the most tests.
    config.option.loadscopereorder = False


def has_room(folder: Path) -> bool:
    """Return whether `folder`, a folder in memory, has MIN_FREE_BYTES bytes of space, and whether the tests can write
    files and run programs there.
    """
    if not os.access(folder, os.W_OK):
        return False
    from pipeline.run.machine import free_memory

    about = os.statvfs(folder)
    return min(about.f_bavail * about.f_frsize, free_memory()) >= MIN_FREE_BYTES and not about.f_flag & os.ST_NOEXEC


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without the garbage collector.

    The thousands of tests and modules stay in memory, so collecting garbage again and again would only take time (4 of
    the 10 seconds of the collection).
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.enable()
    return found


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Reset the levels of logging of the packages pipeline and stages after each test. A command that a test calls in
    this process may have changed the levels.
    """
    yield
    for package in ("pipeline", "stages"):
        logging.getLogger(package).setLevel(logging.NOTSET)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(
        key=lambda item: (
            LONGEST_MODULES.index(item.path.name) if item.path.name in LONGEST_MODULES else len(LONGEST_MODULES)
        )
    )


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the synthetic run of 24 images with two indexes, and return its folder. The index in `bundle` belongs to the
    model `ncca`, and the index in `regions` to the multi-vector model `dvsa`.

    All tests of a session share the run, so they must not change it. A module that needs another run defines a fixture
    of the name `run`.
    """
    from synthetic_multivectors import SCORE, add_fragments
    from synthetic_run import build_bundle, make_run

    folder = make_run(tmp_path_factory.mktemp("made-up") / "run")
    build_bundle(folder)
    add_fragments(folder, "dvsa", SCORE)
    build_bundle(folder, model="dvsa", output="regions")
    return folder


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a synthetic run of 72 images with a calibrated index, and return the folder of the run. The folder `bundle`
    has the index in one shard, and the folder `several` has an index of the same images in two shards.

    For the query `a dog`, nine photos show a dog. If the search does not match the words of the query with texts, only
    the first three of these photos are likely matches. Tests must not change the run.
    """
    from synthetic_run import build_bundle, make_run

    folder = make_run(tmp_path_factory.mktemp("calibrated") / "run", images=72, held_out="dev")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run.reading.indexes.MIN_DEV_IMAGES", 24)
        build_bundle(folder)
        build_bundle(folder, {"index": {"bundles": 2}}, output="several")
    return folder


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the run of synthetic_colours.py, which has learned the names of four colours, and return its folder. The
    index is in the folder `bundle`. Tests must not change the run.
    """
    from synthetic_colours import make_colours

    return make_colours(tmp_path_factory.mktemp("colours") / "colours")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Chromium under the control of playwright, and yield the browser. Skip the tests if playwright or Chromium
    is not installed.
    """
    driving = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("Chromium is not installed")
    with driving.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


OTHERS = ["fake", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=["cpu", *OTHERS])
def device(request: pytest.FixtureRequest) -> Iterator["torch.device"]:
    """Yield a device whose results the test compares with numpy. The test runs once on the CPU and once on each device
    of the fixture `other_device`.
    """
    yield from _offer(request.param)


@pytest.fixture(params=OTHERS)
def other_device(request: pytest.FixtureRequest) -> Iterator["torch.device"]:
    """Yield a device whose results the test compares with the CPU. The test runs once on a simulated device, whose
    tensors do not mix with CPU tensors, and once on the GPU of the machine. The second test is skipped if the machine
    has no GPU.
    """
    yield from _offer(request.param)


def _offer(name: str) -> Iterator["torch.device"]:
    import torch
    from fake_devices import fake_device

    if name == "fake":
        with fake_device() as device:
            yield device
        return
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    yield torch.device(name)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real photos, weights and treebanks that the environment variable JOINTSPACE_DATA names. Skip
    the test if the variable is not set.
    """
    folder = os.environ.get("JOINTSPACE_DATA")
    if not folder:
        pytest.skip("JOINTSPACE_DATA is not set, so there is no real data")
    return Path(folder)
