"""Visitors who mean no good: floods, bombs, what never ends, and paths that lead elsewhere."""

import asyncio
import re
import struct
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from hostile import slow_image
from PIL import Image

from pipeline.config import load
from pipeline.index.search import Searcher
from pipeline.storage.bundle import Bundle
from pipeline.storage.sources import ImageSources

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("python_multipart", reason="python-multipart is not installed: pip install 'jointspace[serve]'")
from fastapi.testclient import TestClient  # noqa: E402
from visiting import LIMITS, PIXELS, make_client, see  # noqa: E402

from pipeline.images.decode import DecodingProcess, ImageLimits  # noqa: E402
from pipeline.serve.app import build_app  # noqa: E402
from pipeline.serve.gallery import ServedGallery  # noqa: E402
from pipeline.serve.guard import Limits  # noqa: E402
from stages.index.serve import _open_gallery  # noqa: E402

PART = b'--x\r\nContent-Disposition: form-data; name="photograph"; filename="a.png"\r\n\r\n'


@pytest.mark.parametrize(
    "name",
    ["24", "9" * 11, "-1", str(2**64), "..", "dog-0.png", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "0%00", "1.5"],
)
def test_photographs_are_found_by_their_ids_alone(client: TestClient, name: str) -> None:
    answer = client.get(f"/api/models/ncca/photographs/{name}")
    assert answer.status_code in (404, 422), answer.content[:100]
    assert "root:" not in answer.text


def test_a_bundle_cannot_lead_out_of_the_collection(run: Path) -> None:
    Image.new("RGB", (40, 40)).save(run / "secret.png")

    class Foul(Bundle):
        def table(self, modality: str) -> pa.Table:
            table = super().table(modality)
            if modality == "images":
                paths = pa.array(["../secret.png", str(run / "secret.png"), "gone.png", *table["path"].to_pylist()[3:]])
                table = table.set_column(table.column_names.index("path"), "path", paths)
            return table

    foul = ServedGallery(Searcher(Foul(run / "bundle")), see, ImageSources(run / "data").read, PIXELS, 32)
    client = make_client(foul)
    for image_id, word in ((0, "outside"), (1, "outside"), (2, "missing")):
        answer = client.get(f"/api/models/ncca/photographs/{image_id}")
        assert answer.status_code == 404 and word in answer.json()["error"]
    assert client.get("/api/models/ncca/photographs/3").status_code == 200


def test_an_upload_that_takes_too_long_is_refused_and_the_next_answered(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("collection: {decode_seconds: 0.5}")
    settings = load(tmp_path / "config.yaml")
    decode = DecodingProcess(ImageLimits.from_settings(settings.collection))
    gallery = _open_gallery(run / "bundle", None, decode, settings)
    client = make_client(gallery, replace(LIMITS, max_upload_bytes=1_000_000))
    for data, said in ((slow_image(), "too-slow: took longer than 0.5 s"), (b"<html>", "not-an-image")):
        answer = client.post("/api/models/ncca/sentences", files={"photograph": data})
        assert answer.status_code == 422 and answer.json()["error"].startswith(said)
    assert client.get("/api/models/ncca/photographs/3").status_code == 200


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that claims so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not-an-image"),
        (b"GIF or so", "not-an-image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not-an-image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not-an-image"),
        (bomb(30000, 30000), "too-large"),
        (bomb(4, 4), "too-small"),
        (bomb(2000, 20), "too-elongated"),
        (bomb(90, 90), "truncated"),
    ],
    ids=["empty", "words", "postscript", "svg", "bomb", "tiny", "long", "cut"],
)
def test_what_is_no_photograph_is_refused(client: TestClient, data: bytes, reason: str) -> None:
    answer = client.post("/api/models/ncca/sentences", files={"photograph": ("x.jpg", data)})
    assert answer.status_code == 422 and answer.json()["error"].startswith(reason)


def test_a_form_without_a_photograph(client: TestClient) -> None:
    for sent in (
        {"data": {"photograph": "dog"}},
        {"content": b"--x", "headers": {"Content-Type": "multipart/form-data"}},
    ):
        answer = client.post("/api/models/ncca/sentences", **sent)
        assert 400 <= answer.status_code < 500 and answer.json()["error"]


def test_uploads_are_bounded_whether_they_say_their_size_or_not(gallery: ServedGallery) -> None:
    client = make_client(gallery)

    def form(size: int):
        yield PART
        for _ in range(size):
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    for size in (11, 200, 100_000):  # thousand bytes: in the form's margin, just above it, and far above
        answer = client.post("/api/models/ncca/sentences", content=form(size), headers=kind)
        assert answer.status_code == 413 and "10000 bytes" in answer.json()["error"]
        answer = client.post("/api/models/ncca/sentences", content=b"", headers={"Content-Length": str(size * 1000)})
        assert answer.status_code == (413 if size > 75 else 422)
    answer = client.post("/api/models/ncca/sentences", content=b"", headers={**kind, "Content-Length": "9" * 4000})
    assert answer.status_code == 413


def test_a_body_that_is_too_large_is_not_read_to_its_end(gallery: ServedGallery) -> None:
    sent = asyncio.run(_call(make_client(gallery).app, [PART, *[bytes(10_000)] * 1000], {}))
    assert sent["status"] == 413 and sent["taken"] < 10


def test_a_body_that_never_ends_is_given_up(gallery: ServedGallery) -> None:
    limits = Limits(5, 20, 0, 100, 10_000, 0.1, 4, 2)
    sent = asyncio.run(_call(make_client(gallery, limits).app, [PART], {"stall": asyncio.Event()}))
    assert sent["status"] == 408


def test_slow_uploads_leave_room_for_questions(gallery: ServedGallery) -> None:
    limits = Limits(5, 20, 0, 100, 10_000, 60, 4, 2)
    app = make_client(gallery, limits).app

    async def crowd() -> tuple[httpx.Response, list[dict], int]:
        stalled = asyncio.Event()
        uploads = [asyncio.create_task(_call(app, [PART], {"stall": stalled})) for _ in range(20)]
        while sum(upload.done() for upload in uploads) < 18:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            answer = await client.get("/api/models/ncca/images?sentence=dog")
        held = sum(not upload.done() for upload in uploads)
        stalled.set()
        return answer, await asyncio.gather(*uploads), held

    answer, uploads, held = asyncio.run(crowd())
    assert answer.status_code == 200 and held == 2
    assert sorted(upload["status"] for upload in uploads) == [422] * 2 + [503] * 18


async def _call(app, chunks: list[bytes], how: dict) -> dict:
    """Post `chunks` to an application by hand: the status, and how many it took."""
    told = {"taken": 0}

    async def receive() -> dict:
        if told["taken"] < len(chunks):
            told["taken"] += 1
            return {"type": "http.request", "body": chunks[told["taken"] - 1], "more_body": True}
        if "stall" in how:
            await how["stall"].wait()
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        told.setdefault("status", message.get("status"))

    headers = [(b"host", b"testserver"), (b"content-type", b"multipart/form-data; boundary=x")]
    path = "/api/models/ncca/sentences"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("testserver", 80), "state": {},
    }  # fmt: skip
    await app(scope, receive, send)
    return told


def test_a_flood_is_refused_and_the_rest_answered(gallery: ServedGallery) -> None:
    released, usual = threading.Event(), gallery.images

    def slowly(sentence: str, top: int, where: str | None):
        released.wait(300)
        return usual(sentence, top, where)

    gallery.images = slowly
    app = build_app({"ncca": gallery}, LIMITS, 2, ["testserver"])

    async def flood() -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            asked = [asyncio.create_task(client.get("/api/models/ncca/images?sentence=dog")) for _ in range(50)]
            while sum(task.done() for task in asked) < 50 - LIMITS.max_requests:
                await asyncio.sleep(0.01)
            health = await client.get("/api/health")
            released.set()
            return await asyncio.gather(*asked), health, await client.get("/api/models/ncca/images?sentence=dog")

    answers, health, later = asyncio.run(flood())
    statuses = [answer.status_code for answer in answers]
    assert statuses.count(200) == LIMITS.max_requests and statuses.count(503) == 50 - LIMITS.max_requests
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 503)
    assert health.status_code == later.status_code == 200


def test_a_failure_of_ours_is_counted_and_tells_nothing(
    gallery: ServedGallery, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sentence: str, top: int, where: str | None):
        raise ZeroDivisionError("a secret of /home/someone")

    gallery.images = fail
    client = make_client(gallery)
    answer = client.get("/api/models/ncca/images?sentence=dog")
    assert answer.status_code == 500 and answer.json() == {"error": "this failed; the server's log says why"}
    assert "a secret" in caplog.text
    route = '{route="/api/models/{model}/images",status="500"}'
    assert f"jointspace_errors_total{route} 1" in client.get("/metrics").text


def test_every_answer_has_the_headers(client: TestClient) -> None:
    for address in (
        "/",
        "/api/models",
        "/nowhere",
        "/api/models/ncca/photographs/0",
        "/api/models/ncca/images",
        "/docs",
    ):
        headers = client.get(address).headers
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
        assert "unsafe" not in headers["Content-Security-Policy"]
    refused = client.post("/api/models/ncca/sentences", content=b"", headers={"Content-Length": "99999999"})
    assert refused.status_code == 413 and refused.headers["X-Frame-Options"] == "DENY"


def test_the_page_needs_nothing_from_elsewhere(client: TestClient) -> None:
    page = client.get("/").text.replace('"http://www.w3.org/2000/svg"', "a name, not an address")
    assert not re.search(r"https?://|src=|@import|url\(|innerHTML|\son\w+=|style=", page)


def test_another_name_for_this_machine_is_refused(client: TestClient) -> None:
    """A page elsewhere whose name leads here must not read our answers."""
    answer = client.get("/api/models", headers={"Host": "evil.example"})
    assert answer.status_code == 400 and "ncca" not in answer.text
