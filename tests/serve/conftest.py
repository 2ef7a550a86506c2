"""A made-up bundle, and a visitor of it. FastAPI is an extra, so it is imported where it is there."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_up import build_bundle, make_run

from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from pipeline.storage.sources import ImageSources

if TYPE_CHECKING:
    from fastapi.testclient import TestClient

    from pipeline.serve.gallery import ServedGallery


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_run(tmp_path_factory.mktemp("run"))
    build_bundle(folder)
    return folder


@pytest.fixture
def gallery(run: Path) -> "ServedGallery":
    from visiting import PIXELS, see

    from pipeline.serve.gallery import ServedGallery

    return ServedGallery(Searcher(Bundle(run / "bundle")), see, ImageSources([run / "data"]).read, PIXELS, 32)


@pytest.fixture
def client(gallery: "ServedGallery") -> "TestClient":
    from visiting import make_client

    return make_client(gallery)
