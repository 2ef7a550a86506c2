"""Servers, and no waiting between two attempts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import FaultyServer, S3Server, s3_server

from pipeline import trial
from pipeline.remote import stores
from pipeline.remote.scratch import Scratch


@pytest.fixture(scope="module")
def s3_process() -> Iterator[S3Server]:
    for module in ("moto.server", "s3fs", "boto3"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install s3fs 'moto[s3]' flask flask-cors")
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(s3_process: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in s3_process.environment.items():
        monkeypatch.setenv(name, value)
    stores.file_system.cache_clear()
    trial._worker.cache_clear()  # a process that has another environment
    return s3_process


@pytest.fixture
def web() -> Iterator[FaultyServer]:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install 'jointspace[https]'")
    server = FaultyServer()
    yield server
    server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "WAITS", (0.01, 0.01, 0.01))


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(str(tmp_path / "scratch"), 1)
