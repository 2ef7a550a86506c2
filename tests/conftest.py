"""Fixtures that several rooms share."""

import os
from pathlib import Path

import pytest

from pipeline import runtime

runtime.configure()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real photographs, weights and treebanks that JOINTSPACE_DATA names."""
    folder = os.environ.get("JOINTSPACE_DATA")
    if not folder:
        pytest.skip("JOINTSPACE_DATA is not set: no real data here")
    return Path(folder)
