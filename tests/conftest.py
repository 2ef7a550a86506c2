"""Fixtures that several rooms share."""

import os
from pathlib import Path

import pytest

from pipeline import runtime

runtime.configure()

LONG = ("test_workflow.py", "test_growing.py", "test_cluster.py", "test_kills.py")
"""Modules that take minutes: first, so that no worker of `-n auto` is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # else pytest-xdist puts modules of many tests first, however short


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real photographs, weights and treebanks that JOINTSPACE_DATA names."""
    folder = os.environ.get("JOINTSPACE_DATA")
    if not folder:
        pytest.skip("JOINTSPACE_DATA is not set: no real data here")
    return Path(folder)
