"""Hostile requests: wrong host names and origins, endless uploads, huge photos, floods, and paths out of the index."""

import asyncio
import http.client
import io
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from served_run import LIMITS, make_client, photograph, see, serve

from pipeline.errors import UsageError
from pipeline.serve.gallery import ServedGallery

SENTENCES_PATH = "/api/models/ncca/sentences"
THUMBNAIL_PATH = "/api/models/ncca/photographs/3"
FORM_HEADERS = {"Content-Type": "multipart/form-data; boundary=x"}
FORM_START = b'--x\r\nContent-Disposition: form-data; name="photograph"; filename="a.png"\r\n\r\n'
"""Beginning of the body of a form, up to the bytes of the photo."""


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    """Start a server for the tests of this module, and return its port."""
    with started_server(run) as (port, _):
        yield port


@contextmanager
def started_server(run: Path) -> Iterator[tuple[int, subprocess.Popen]]:
    """Start a server with the command `serve`, and yield its port and its process."""
    command = [sys.executable, "-m", "stages.cli", "serve", str(run / "bundle"), "--lazy", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stderr.readline()
            yield int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1]), server
        finally:
            server.kill()


def request(port: int, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, bytes]:
    """Send a request with only these headers and Content-Length, and return the status and the body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


LOCAL_HOSTS = ["localhost:{}", "LocalHost", "127.0.0.1:{}", "127.0.0.1", "[::1]:{}"]
"""Values of the `Host` header that name this machine. `{}` stands for the port of the server."""
OTHER_HOSTS = [
    "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "127.0.0.1:80@evil.com", "[::1].evil.com",
    "localhost@evil.com", "10.0.0.1", "0.0.0.0", "[::2]", "*", "", "localhost/evil.com", "localhost:80:80",
]  # fmt: skip


@pytest.mark.parametrize("host", [*LOCAL_HOSTS, *OTHER_HOSTS])
def test_a_local_server_answers_only_to_names_of_this_machine(port: int, host: str) -> None:
    """A server that answered to other names could be read by a web page whose host name resolves to this machine (DNS
    rebinding)."""
    status, answer = request(port, "GET", "/api/models", {"Host": host.format(port)})
    assert (status, b"ncca" in answer) == ((200, True) if host in LOCAL_HOSTS else (400, False))


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 422), ("http://127.0.0.1:{}", 422), ("https://127.0.0.1:{}", 422),
        ("http://evil.com", 403), ("null", 403), ("", 403), ("http://127.0.0.1", 403), ("http://127.0.0.1:1", 403),
        ("http://localhost:{}", 403), ("http://127.0.0.1:{}.evil.com", 403), ("ftp://127.0.0.1:{}", 403),
    ],
)  # fmt: skip
def test_uploads_from_pages_of_other_sites_are_refused(port: int, origin: str | None, status: int) -> None:
    headers = {"Host": f"127.0.0.1:{port}"} | ({} if origin is None else {"Origin": origin.format(port)})
    answered, text = request(
        port, "POST", SENTENCES_PATH, headers | FORM_HEADERS, FORM_START + b"no image\r\n--x--\r\n"
    )
    assert (answered, b"not-an-image" in text) == (status, status == 422), text


def test_host_names_can_be_allowed(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    def statuses(app: object) -> list[int]:
        hosts = ("photos.example:8443", "PHOTOS.example", "127.0.0.1", "evil.example")
        return [TestClient(app).get("/api/health", headers={"Host": host}).status_code for host in hosts]

    assert statuses(serve(run, "--host", "0.0.0.0")) == [200] * 4 and "--allow-host NAME" in caplog.text
    caplog.clear()
    assert statuses(serve(run, "--host", "0.0.0.0", "--allow-host", "Photos.example")) == [200] * 3 + [400]
    assert "--allow-host NAME" not in caplog.text
    for name in ("https://photos.example", "photos.example:8443", "photos.*"):
        with pytest.raises(UsageError, match=re.escape(f"--allow-host {name} is not a host name")):
            serve(run, "--allow-host", name)


def test_the_longest_caption_fits_into_a_request_and_longer_headers_are_refused(port: int) -> None:
    dogs = "%F0%9F%90%95" * 1990  # Almost the maximum number of characters in a query. Each has four bytes.
    assert request(port, "GET", f"/api/models/ncca/images?sentence=dog+{dogs}", {"Host": "localhost"})[0] == 200
    with socket.create_connection(("127.0.0.1", port), timeout=30) as visitor:
        visitor.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 60_000)
        assert visitor.recv(100).startswith(b"HTTP/1.1 400")


def test_a_visitor_who_reads_no_answers_does_not_delay_the_shutdown(run: Path) -> None:
    with started_server(run) as (port, process), socket.create_connection(("127.0.0.1", port)) as visitor:
        visitor.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200)
        assert request(port, "GET", "/api/health", {"Host": "localhost"})[0] == 200
        process.send_signal(signal.SIGINT)
        # uvicorn raises SIGINT again at its end, so the exit code is 130, or 0 if the process ignores SIGINT.
        assert process.wait(30) in (0, 130)
        assert "Traceback" not in process.stderr.read()


def test_a_photo_with_too_many_pixels_is_refused_by_its_header(run: Path) -> None:
    """The upload is a PNG of 8 kB. Decoding it would take seconds and hundreds of megabytes."""
    buffer = io.BytesIO()
    Image.new("1", (8000, 8000)).save(buffer, "PNG")
    client = TestClient(serve(run), base_url="http://localhost")
    answer = client.post(SENTENCES_PATH, files={"photograph": buffer.getvalue()})
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "too-large: the photo has 8000 x 8000 pixels, but serve.max_upload_pixels allows only 50000000"
    )
    assert "not-an-image" in client.post(SENTENCES_PATH, files={"photograph": b"words"}).json()["error"]
    assert client.post(SENTENCES_PATH, files=photograph(run)).status_code == 200
    assert client.get(THUMBNAIL_PATH).status_code == 200


def test_a_slow_upload_does_not_delay_other_requests(gallery: ServedGallery, run: Path) -> None:
    begun = threading.Event()
    released = threading.Event()

    def features(data: bytes) -> object:
        begun.set()
        released.wait(20)
        return see(data)

    gallery.features = features
    app = make_client(gallery, replace(LIMITS, upload_seconds=60, max_requests=6)).app

    async def crowd() -> tuple[list[httpx.Response], list[httpx.Response]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            held = [asyncio.create_task(client.post(SENTENCES_PATH, files=photograph(run))) for _ in range(2)]
            assert await asyncio.to_thread(begun.wait, 20)
            answers = [
                await asyncio.wait_for(client.get(THUMBNAIL_PATH), 30),
                await asyncio.wait_for(client.get("/api/models/ncca/images?sentence=dog"), 30),
                await asyncio.wait_for(client.post(SENTENCES_PATH, files={"photograph": b"<html>"}), 30),
            ]
            assert not any(task.done() for task in held)
            released.set()
            return answers, await asyncio.gather(*held)

    answers, held = asyncio.run(crowd())
    assert [answer.status_code for answer in answers] == [200, 200, 422]
    assert answers[2].json()["error"].startswith("not-an-image")
    assert [answer.status_code for answer in held] == [200, 200]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not-an-image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not-an-image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", "not-an-image"),
        ((1200, 1200), "too-large"), ((4, 4), "too-small"), ((2000, 20), "too-elongated"),
    ],
)  # fmt: skip
def test_an_upload_that_is_not_a_photo_is_refused(
    client: TestClient, data: bytes | tuple[int, int], reason: str
) -> None:
    if isinstance(data, tuple):
        buffer = io.BytesIO()
        Image.new("RGB", data).save(buffer, "PNG")
        data = buffer.getvalue()
    answer = client.post(SENTENCES_PATH, files={"photograph": ("x.jpg", data)})
    assert answer.status_code == 422 and answer.json()["error"].startswith(reason)


# The sizes in kilobytes are above max_upload_bytes but within the margin for the form, above both, and far above both.
@pytest.mark.parametrize("size", [11, 200, 100_000])
def test_too_large_uploads_are_refused_with_or_without_a_declared_size(client: TestClient, size: int) -> None:
    sent = []

    def form() -> Iterator[bytes]:
        yield FORM_START
        for number in range(size):
            sent.append(number)
            yield bytes(1000)
        yield b"\r\n--x--\r\n"

    answer = client.post(SENTENCES_PATH, content=form(), headers=FORM_HEADERS)
    assert answer.status_code == 413 and "10000 bytes" in answer.json()["error"]
    lengths = [str(size * 1000), "9" * 4000] if size > 75 else []
    for length in lengths:
        assert (
            client.post(SENTENCES_PATH, content=b"", headers=FORM_HEADERS | {"Content-Length": length}).status_code
            == 413
        )


def test_endless_uploads_time_out_and_do_not_block_queries(gallery: ServedGallery) -> None:
    app = make_client(gallery, replace(LIMITS, upload_seconds=1.5)).app

    async def endless() -> Iterator[bytes]:
        yield FORM_START
        await asyncio.sleep(60)

    async def crowd() -> tuple[httpx.Response, list[int]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            posts = (client.post(SENTENCES_PATH, content=endless(), headers=FORM_HEADERS) for _ in range(20))
            uploads = [asyncio.create_task(post) for post in posts]
            while sum(upload.done() for upload in uploads) < 18:
                await asyncio.sleep(0.01)
            answer = await client.get("/api/models/ncca/images?sentence=dog")
            return answer, sorted(upload.status_code for upload in await asyncio.gather(*uploads))

    answer, statuses = asyncio.run(crowd())
    assert answer.status_code == 200 and statuses == [408] * 2 + [503] * 18


def test_too_many_requests_are_refused_and_the_others_answered(gallery: ServedGallery) -> None:
    released = threading.Event()
    search = gallery.images

    def slowly(sentence: str, top: int, where: str | None, **more: object) -> list:
        released.wait(60)
        return search(sentence, top, where, **more)

    gallery.images = slowly
    app = make_client(gallery).app

    async def flood() -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://testserver") as client:
            asked = [asyncio.create_task(client.get("/api/models/ncca/images?sentence=dog")) for _ in range(50)]
            while sum(task.done() for task in asked) < 50 - LIMITS.max_requests:
                await asyncio.sleep(0.01)
            health = await client.get("/api/health")
            released.set()
            return await asyncio.gather(*asked), health, await client.get("/api/models/ncca/images?sentence=dog")

    answers, health, later = asyncio.run(flood())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(refused) == 50 - LIMITS.max_requests and all(answer.headers["Retry-After"] == "1" for answer in refused)
    assert [answer.status_code for answer in answers].count(200) == LIMITS.max_requests
    assert health.status_code == later.status_code == 200


def test_an_internal_error_is_counted_and_its_details_are_not_sent(
    gallery: ServedGallery, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sentence: str, top: int, where: str | None, **more: object) -> None:
        raise ZeroDivisionError("a secret of /home/someone")

    gallery.images = fail
    client = make_client(gallery)
    answer = client.get("/api/models/ncca/images?sentence=dog")
    assert answer.status_code == 500 and answer.json() == {
        "error": "The server could not answer this request because of an internal error. Look for the reason in the log"
        " of the server."
    }
    assert "a secret" in caplog.text
    route = '{route="/api/models/{model}/images",status="500"}'
    assert f"jointspace_errors_total{route} 1.0" in client.get("/metrics").text


def test_every_answer_has_the_security_headers(client: TestClient) -> None:
    answers = [client.get(path) for path in ("/", "/api/models", "/nowhere", THUMBNAIL_PATH, "/api/models/ncca/images")]
    answers.append(client.get("/", headers={"Host": "evil.example"}))
    answers.append(client.post(SENTENCES_PATH, content=b"", headers={"Content-Length": "99999999"}))
    assert [answer.status_code for answer in answers] == [200, 200, 404, 200, 422, 400, 413]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["X-Frame-Options"] == "DENY"
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy


@pytest.mark.parametrize("name", ["24", "9" * 11, "-1", str(2**64), "..", "dog-0.png", "..%2f..%2fetc%2fpasswd", "1.5"])
def test_photos_are_addressed_only_by_valid_ids(client: TestClient, name: str) -> None:
    answer = client.get(f"/api/models/ncca/photographs/{name}")
    assert answer.status_code in (404, 422) and "root:" not in answer.text
