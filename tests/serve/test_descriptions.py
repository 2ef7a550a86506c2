"""Photographs described by generators that learned from the made-up run, as `serve` starts it."""

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

HERE = "http://127.0.0.1"
DESCRIPTIONS = "/api/generators/{}/descriptions"
PLACES = 16
"""Photographs that are described or wait for it (Limits)."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A described run, its generators mrnn and nearest, and another nearest that stands on the joint space."""
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
    return serve_generators(run, "mrnn", "nearest", "joint")


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, base_url=HERE)


def test_a_photograph_is_described_as_the_command_describes_it(client: TestClient, run: Path) -> None:
    for image in describe(run, "mrnn", "dev")["images"][:8]:
        answer = client.post(DESCRIPTIONS.format("mrnn"), files=photograph(run, image["image"])).json()
        assert answer["generator"] == "mrnn" and answer["seconds"] > 0
        assert [one.pop("rank") for one in answer["results"]] == [1, 2]
        for told, written in zip(answer["results"], image["sentences"], strict=True):
            assert told.pop("score") == pytest.approx(written.pop("score"), abs=1e-4)
            assert told.pop("nearest") == pytest.approx(written.pop("nearest"), abs=1e-6)
            assert told == written


def test_a_description_keeps_no_search_waiting_and_few_wait_for_it(
    app: FastAPI, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, usual = threading.Event(), Describer.describe

    def slowly(describer: Describer, *arguments: object):
        released.wait(300)
        return usual(describer, *arguments)

    monkeypatch.setattr(Describer, "describe", slowly)

    async def crowd() -> tuple[list[httpx.Response], list[httpx.Response]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as client:
            files = [photograph(run, f"{THINGS[i % len(THINGS)]}-{i}.png") for i in range(PLACES + 5)]
            described = [asyncio.create_task(client.post(DESCRIPTIONS.format("mrnn"), files=file)) for file in files]
            while sum(task.done() for task in described) < len(files) - PLACES:
                await asyncio.sleep(0.01)
            asked = [client.get(f"/api/models/ncca/images?top=1&sentence={thing}") for thing in THINGS * 4]
            asked += [client.post("/api/models/ncca/sentences?top=1", files=file) for file in files[:8]]
            found = await asyncio.gather(*asked)
            assert sum(task.done() for task in described) == len(files) - PLACES
            released.set()
            return found, await asyncio.gather(*described)

    found, described = asyncio.run(crowd())
    assert [answer.json()["results"][0]["image_id"] for answer in found[:8]] == list(range(8))
    assert {answer.status_code for answer in found} == {200}
    assert [answer.status_code for answer in described] == [200] * PLACES + [503] * 5
    assert all(answer.headers["Retry-After"] == "1" for answer in described[PLACES:])
    texts = [answer.json()["results"][0]["text"] for answer in described[:PLACES]]
    assert all(thing in text for thing, text in zip(THINGS, texts, strict=False))
