"""Fixtures for the tests of the server: galleries of synthetic indexes, and an HTTP client."""

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
    """Gallery of the synthetic index of a region model."""
    return open_gallery(run / "regions")


@pytest.fixture(scope="session")
def client(run: Path) -> TestClient:
    """Client of an application with its own gallery, which no test changes."""
    return make_client(open_gallery(run / "bundle"))
