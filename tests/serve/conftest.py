"""The made-up indexes, and a visitor of one."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served_run import make_client, open_gallery

from pipeline.serve.gallery import ServedGallery


@pytest.fixture
def gallery(run: Path) -> ServedGallery:
    return open_gallery(run / "bundle")


@pytest.fixture
def regions(run: Path) -> ServedGallery:
    """Of a model that compares regions."""
    return open_gallery(run / "regions")


@pytest.fixture(scope="session")
def client(run: Path) -> TestClient:
    """Of a gallery of its own, which nobody changes."""
    return make_client(open_gallery(run / "bundle"))
