"""Captions that the server generates for uploaded photos, with generators that are trained on the synthetic run."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
import yaml
from fastapi import FastAPI
from fastapi.testclient import TestClient
from served_run import photograph, serve_generators
from synthetic_generators import describe, make_described_run, train
from synthetic_run import THINGS

from pipeline.serve.gallery import Describer

BASE_URL = "http://127.0.0.1"
DESCRIPTIONS_PATH = "/api/generators/{}/descriptions"
MAX_WAITING = 16
"""Largest number of photos that are being captioned or wait to be captioned at the same time."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a run with the trained generators mrnn, nearest and joint. `joint` is the generator `nearest` with
    neighbours in the joint space."""
    run = make_described_run(tmp_path_factory.mktemp("served") / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["generators"] = [*settings["generators"], "joint"]
    settings["generator_variants"] |= {"joint": {"generator": "nearest", "by": "joint-image"}}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    for name in ("mrnn", "nearest", "joint"):
        train(run, name)
    return run


@pytest.fixture
def app(run: Path) -> FastAPI:
    """Return the application that `serve` would serve with the generators mrnn, nearest and joint of the run."""
    return serve_generators(run, "mrnn", "nearest", "joint")


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, base_url=BASE_URL)


def test_the_server_generates_the_same_captions_as_the_command(client: TestClient, run: Path) -> None:
    for image in describe(run, "mrnn", "dev")["images"][:8]:
        answer = client.post(DESCRIPTIONS_PATH.format("mrnn"), files=photograph(run, image["image"])).json()
        assert answer["generator"] == "mrnn" and answer["seconds"] > 0
        assert [one.pop("rank") for one in answer["results"]] == [1, 2]
        for told, written in zip(answer["results"], image["sentences"], strict=True):
            assert told.pop("score") == pytest.approx(written.pop("score"), abs=1e-4)
            assert told.pop("nearest") == pytest.approx(written.pop("nearest"), abs=1e-6)
            assert told == written


def test_generating_captions_does_not_delay_searches_and_its_queue_is_limited(
    app: FastAPI, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    usual = Describer.generate_captions

    def slowly(describer: Describer, *arguments: object):
        released.wait(300)
        return usual(describer, *arguments)

    monkeypatch.setattr(Describer, "generate_captions", slowly)

    async def crowd() -> tuple[list[httpx.Response], list[httpx.Response]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=BASE_URL) as client:
            files = [photograph(run, f"{THINGS[i % len(THINGS)]}-{i}.png") for i in range(MAX_WAITING + 5)]
            described = [
                asyncio.create_task(client.post(DESCRIPTIONS_PATH.format("mrnn"), files=file)) for file in files
            ]
            while sum(task.done() for task in described) < len(files) - MAX_WAITING:
                await asyncio.sleep(0.01)
            asked = [client.get(f"/api/models/ncca/images?top=1&sentence={thing}") for thing in THINGS * 4]
            asked += [client.post("/api/models/ncca/sentences?top=1", files=file) for file in files[:8]]
            found = await asyncio.gather(*asked)
            assert sum(task.done() for task in described) == len(files) - MAX_WAITING
            released.set()
            return found, await asyncio.gather(*described)

    found, described = asyncio.run(crowd())
    assert [answer.json()["results"][0]["image_id"] for answer in found[:8]] == list(range(8))
    assert {answer.status_code for answer in found} == {200}
    assert [answer.status_code for answer in described] == [200] * MAX_WAITING + [503] * 5
    assert all(answer.headers["Retry-After"] == "1" for answer in described[MAX_WAITING:])
    texts = [answer.json()["results"][0]["text"] for answer in described[:MAX_WAITING]]
    assert all(thing in text for thing, text in zip(THINGS, texts, strict=False))
