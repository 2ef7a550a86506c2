"""A made-up bundle, and a visitor of it."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from made_up import build_bundle, make_run
from visiting import PIXELS, make_client, see

from pipeline.index.search import Searcher
from pipeline.serve.gallery import ServedGallery
from pipeline.storage.bundle import Bundle
from pipeline.storage.sources import ImageSources


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder)
    return folder


@pytest.fixture
def gallery(run: Path) -> ServedGallery:
    return ServedGallery(Searcher(Bundle(run / "bundle")), see, ImageSources([run / "data"]).read, PIXELS, 32)


@pytest.fixture
def client(gallery: ServedGallery) -> TestClient:
    return make_client(gallery)
