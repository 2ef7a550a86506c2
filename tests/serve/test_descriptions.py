"""Photographs described by generators that learned from the made-up run, as `serve` starts it."""

import asyncio
import threading
from pathlib import Path

import httpx
import pytest
import yaml
from made_up import THINGS, by_hand, run_command
from made_up_generators import beside, describe, find_few_words, make_described_run, train

from pipeline.errors import IntegrityError, UsageError
from pipeline.storage.manifest import Manifest
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("python_multipart", reason="python-multipart is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("prometheus_client", reason="pip install 'jointspace[serve]'")
from fastapi import FastAPI  # noqa: E402
from fastapi.testclient import TestClient  # noqa: E402
from visiting import photograph, serve_generators  # noqa: E402

from pipeline.serve.service import Describer  # noqa: E402

HERE = "http://127.0.0.1"
DESCRIPTIONS = "/api/generators/{}/descriptions"
PLACES = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A described run, its generators mrnn and nearest, and another nearest that stands on the joint space."""
    run = make_described_run(tmp_path_factory.mktemp("served") / "run")
    settings = yaml.safe_load((run / "config.yaml").read_text()) | {"serve": {"max_descriptions": PLACES}}
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


def test_what_describes(client: TestClient) -> None:
    told = client.get("/api/models").json()["generators"]
    assert [(one["generator"], one["registered"]) for one in told] == [
        ("mrnn", "mrnn"), ("nearest", "nearest"), ("joint", "nearest"),
    ]  # fmt: skip
    assert all(one["encoders"] == ["colour"] and one["top"] == 2 for one in told)


def test_a_photograph_is_described_as_the_command_describes_it(client: TestClient, run: Path) -> None:
    for image in describe(run, "mrnn", "dev")["images"][:8]:
        answer = client.post(DESCRIPTIONS.format("mrnn"), files=photograph(run, image["image"])).json()
        assert answer["generator"] == "mrnn" and answer["seconds"] > 0
        assert [one.pop("rank") for one in answer["results"]] == [1, 2]
        for told, written in zip(answer["results"], image["sentences"], strict=True):
            assert told.pop("score") == pytest.approx(written.pop("score"), abs=1e-4)
            assert told.pop("nearest") == pytest.approx(written.pop("nearest"), abs=1e-6)
            assert told == written


@pytest.mark.parametrize("generator", ["nearest", "joint"])
def test_what_was_copied_is_marked(client: TestClient, run: Path, generator: str) -> None:
    manifest = Manifest(run / "manifest")
    for thing in ("horse", "car"):
        file = photograph(run, f"{thing}-{THINGS.index(thing)}.png")
        answer = client.post(DESCRIPTIONS.format(generator), params={"top": 3}, files=file).json()
        assert len(answer["results"]) == 3 and answer["generator"] == generator
        assert thing in answer["results"][0]["text"]
        for one in answer["results"]:
            assert one["verbatim"] and one["nearest"]["cosine"] == 1
            assert one["nearest"]["text"] in set(manifest.training_texts())


@pytest.mark.parametrize(
    ("name", "query", "data", "status", "error"),
    [
        ("lbl", "", None, 404, "there is no generator 'lbl'; there are mrnn, nearest, joint"),
        ("mrnn", "?top=0", None, 422, "from 1 to 200"),
        ("mrnn", "?top=201", None, 422, "from 1 to 200"),
        ("mrnn", "", b"GIF or so", 422, "not-an-image"),
        ("mrnn", "", bytes(20_000_001), 413, "20000000 bytes"),
    ],
)
def test_what_cannot_be_described_is_said_in_a_sentence(
    client: TestClient, run: Path, name: str, query: str, data: bytes | None, status: int, error: str
) -> None:
    file = photograph(run) if data is None else {"photograph": ("x.jpg", data)}
    answer = client.post(DESCRIPTIONS.format(name) + query, files=file)
    assert answer.status_code == status and error in answer.json()["error"]


def test_without_a_photograph_and_without_generators(client: TestClient, run: Path) -> None:
    assert client.post(DESCRIPTIONS.format("mrnn"), data={"photograph": "dog"}).status_code == 422
    bare = TestClient(serve_generators(run), base_url=HERE)
    assert bare.get("/api/models").json()["generators"] == []
    answer = bare.post(DESCRIPTIONS.format("mrnn"), files=photograph(run))
    assert answer.status_code == 404 and "there are none" in answer.json()["error"]


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
            files = [photograph(run, f"{THINGS[i]}-{i}.png") for i in range(8)]
            described = [asyncio.create_task(client.post(DESCRIPTIONS.format("mrnn"), files=file)) for file in files]
            while sum(task.done() for task in described) < len(files) - PLACES:
                await asyncio.sleep(0.01)
            asked = [client.get(f"/api/models/ncca/images?top=1&sentence={thing}") for thing in THINGS * 4]
            asked += [client.post("/api/models/ncca/sentences?top=1", files=file) for file in files]
            found = await asyncio.gather(*asked)
            assert sum(task.done() for task in described) == len(files) - PLACES
            released.set()
            return found, await asyncio.gather(*described)

    found, described = asyncio.run(crowd())
    assert [answer.json()["results"][0]["image_id"] for answer in found[:8]] == list(range(8))
    assert {answer.status_code for answer in found} == {200}
    assert [answer.status_code for answer in described] == [200] * PLACES + [503] * (8 - PLACES)
    assert all(answer.headers["Retry-After"] == "1" for answer in described[PLACES:])
    texts = [answer.json()["results"][0]["text"] for answer in described[:PLACES]]
    assert all(thing in text for thing, text in zip(THINGS, texts, strict=False))


def test_the_command_says_what_a_generator_lacks(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="generators belong to a run; give --run too"):
        run_command("serve", run / "bundle", "--generator", "mrnn")
    other = beside(run, tmp_path / "run", "text")
    (other / "text").mkdir()
    (other / "text/tokens").symlink_to(run / "text/tokens")
    (tmp_path / "few").mkdir()
    (other / "text/tokens.json").symlink_to(find_few_words(run, tmp_path / "few"))
    with pytest.raises(IntegrityError, match="vocabulary of .* differ"):
        serve_generators(other, "mrnn")
    changed = beside(run, tmp_path / "changed", "generators")
    _change(run, changed, "mrnn", encoders=["nose", "colour"])
    with pytest.raises(UsageError, match="needs the encoders nose and colour, which no served index has; serve"):
        serve_generators(changed, "mrnn")
    _change(run, changed, "joint", space="of another run")
    with pytest.raises(UsageError, match="uses a joint space that no served index has; serve the index"):
        serve_generators(changed, "joint")


def _change(run: Path, changed: Path, name: str, encoders: list[str] | None = None, space: str | None = None) -> None:
    """A generator of `run` as `changed` has it: it takes other encoders, or stands on another space."""
    stored = read_parameters(run / "generators" / name / "model.safetensors", MODEL)
    settings = {**stored.settings, **({"encoders": encoders} if encoders else {})}
    details = {**stored.details, **({"space": space} if space else {})}
    write_parameters(
        changed / "generators" / name / "model.safetensors", MODEL, stored.tensors, settings=settings,
        provenance=by_hand(changed), details=details,
    )  # fmt: skip
