"""Fixtures for the tests of the server: synthetic indexes that are opened as a ServedGallery, and an HTTP client."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from served_run import make_client, open_gallery

from pipeline.serve.gallery import ServedGallery


@pytest.fixture
def gallery(run: Path) -> ServedGallery:
    """Open the synthetic index as a gallery. A test may change it."""
    return open_gallery(run / "bundle")


@pytest.fixture
def regions(run: Path) -> ServedGallery:
    """Open the synthetic index of a region model as a gallery."""
    return open_gallery(run / "regions")


@pytest.fixture(scope="session")
def client(run: Path) -> TestClient:
    """Return a client of an application with its own gallery. Tests must not change the gallery."""
    return make_client(open_gallery(run / "bundle"))
