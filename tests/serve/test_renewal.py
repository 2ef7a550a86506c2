"""A server shows what its bundle and its photographs are now, not what they were when it started."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from made_up import build_bundle, make_run, run_command
from visiting import serve

PATIENT = 30
"""Seconds within which a bundle must have been looked at again."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = make_run(tmp_path / "run")
    build_bundle(folder)
    return folder


@pytest.fixture
def client(run: Path) -> TestClient:
    """A visitor of what `serve` starts."""
    return TestClient(serve(run), base_url="http://localhost")


def found(client: TestClient) -> list[int]:
    answer = client.get("/api/models/ncca/images?sentence=dog&top=3").json()
    return [result["image_id"] for result in answer["results"]]


def comes(done: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENT
    while not done() and time.monotonic() < end:
        time.sleep(0.1)
    return done()


def test_what_was_removed_is_no_longer_shown(run: Path, client: TestClient) -> None:
    assert found(client) == [0, 8, 16] and client.get("/api/models/ncca/photographs/0").status_code == 200
    run_command("remove", run / "bundle", 0)
    assert comes(lambda: 0 not in found(client)) and found(client)[:2] == [8, 16]
    answer = client.get("/api/models/ncca/photographs/0")
    assert answer.status_code == 404 and "image 0 was removed" in answer.json()["error"]
    assert client.get("/api/models").json()["models"][0]["images"] == 23
