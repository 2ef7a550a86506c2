"""Visitors who keep a served bundle waiting: they ask nothing, by halves, slowly, or read no answer.

Each server is a process of its own, as a user starts it, with limits of seconds.
"""

import contextlib
import http.client
import json
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'jointspace[serve]'")

HEAD_SECONDS, ANSWER_SECONDS, CONNECTIONS = 2, 3, 200
PATIENT = 150
"""Seconds within which all must have happened, on a busy machine too."""
PAGE = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SEARCH = "/api/models/ncca/images?sentence=dog&top=3"


@contextlib.contextmanager
def serving(run: Path, files: int | None = None, **limits: float) -> Iterator[int]:
    """The port of a server of the made-up bundle, which may have no more than so many files open."""
    given = {"head_seconds": HEAD_SECONDS, "answer_seconds": ANSWER_SECONDS, "max_connections": CONNECTIONS, **limits}
    (run / "serve.yaml").write_text(json.dumps({"serve": given}))
    command = [sys.executable, "-m", "stages.cli", "serve", run / "bundle", "--config", run / "serve.yaml", "--port", 0]
    bound = files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    with (
        open(run / "stderr", "w+") as told,  # not a pipe, which would hold up whoever writes much into it
        subprocess.Popen(list(map(str, command)), stderr=told, preexec_fn=bound) as server,
    ):
        try:
            yield int(await_this(lambda: re.search(r"http://127\.0\.0\.1:(\d+)", (run / "stderr").read_text()))[1])
            assert server.poll() is None
        finally:
            server.terminate()
            try:
                server.wait(PATIENT)
            except subprocess.TimeoutExpired:
                server.kill()
                raise


@pytest.fixture(scope="module")
def port(run: Path) -> Iterator[int]:
    with serving(run) as port:
        yield port


def await_this(done: Callable[[], object]) -> object:
    """What `done` returns once that is true."""
    end = time.monotonic() + PATIENT
    while not (result := done()):
        assert time.monotonic() < end, (Path(__file__).name, done)
        time.sleep(0.05)
    return result


def ask(port: int) -> int:
    """The status of a search; 0 where there is no answer within seconds."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", SEARCH)
        answer = connection.getresponse()
        if answer.status == 200:
            assert [one["image_id"] for one in json.load(answer)["results"]] == [0, 8, 16]
        return answer.status
    except OSError:
        return 0
    finally:
        connection.close()


def connect(port: int, sent: bytes = b"", patience: float = PATIENT) -> socket.socket:
    """A connection that takes in little, on which as much of `sent` was sent as is taken at once."""
    visitor = socket.socket()
    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    visitor.settimeout(patience)
    visitor.connect(("127.0.0.1", port))
    visitor.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        visitor.send(sent)
    return visitor


def is_closed(visitor: socket.socket) -> bool:
    """Whether the server has ended the connection; reads what there is."""
    try:
        while visitor.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def is_gone(visitor: socket.socket) -> bool:
    """The same, without reading: by a probe of what can be sent."""
    try:
        visitor.send(b"\r\n")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def test_answers_that_nobody_reads_keep_no_one_waiting(port: int) -> None:
    visitors = [connect(port, PAGE * 100) for _ in range(150)]  # three megabytes for each
    try:
        end = time.monotonic() + 2 * ANSWER_SECONDS
        statuses = [ask(port)]
        while time.monotonic() < end:
            time.sleep(0.3)
            statuses.append(ask(port))
        assert statuses[-1] == 200 and statuses.count(200) > len(statuses) / 2, statuses
        await_this(lambda: all([is_gone(visitor) for visitor in visitors]))
        assert ask(port) == 200
    finally:
        for visitor in visitors:
            visitor.close()


def test_who_does_not_go_on_is_left(port: int) -> None:
    no_body = b"POST /api/health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    visitors = [connect(port, sent) for sent in (b"", b"GET ", PAGE[:-2], PAGE, PAGE + b"G", no_body)]
    await_this(lambda: all([is_closed(visitor) for visitor in visitors]))
    for visitor in visitors:
        visitor.close()


def test_a_head_that_drips_in_has_no_longer(port: int) -> None:
    with connect(port) as visitor:
        start = time.monotonic()
        with pytest.raises(OSError):
            for _ in range(10 * PATIENT):
                visitor.send(b"G")
                time.sleep(0.1)
        assert time.monotonic() - start > HEAD_SECONDS * 0.9


def test_a_slow_visitor_is_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENT) as visitor:
        for _ in range(3):  # each request has its own time
            for part in (PAGE[:20], PAGE[20:]):
                visitor.send(part)
                time.sleep(HEAD_SECONDS / 8)
            head, _, body = visitor.recv(1).partition(b"\r\n\r\n")
            time.sleep(ANSWER_SECONDS / 8)
            while b"\r\n\r\n" not in head:
                head += visitor.recv(1)
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            while len(body) < length:
                body += visitor.recv(length - len(body))
            assert head.startswith(b"HTTP/1.1 200") and body.rstrip().endswith(b"</html>")


def test_a_long_sentence_of_four_bytes_a_letter_fits_into_a_head(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENT)
    connection.request("GET", f"/api/models/ncca/images?sentence=dog+{'%F0%9F%90%95' * 1990}")
    assert connection.getresponse().status == 200
    connection.close()
    with connect(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000) as visitor:
        await_this(lambda: is_closed(visitor))


@pytest.mark.parametrize(("files", "connections"), [(None, 20), (100, 10_000)], ids=["connections", "files"])
def test_more_visitors_than_there_may_be_push_out_the_idle_ones(run: Path, files: int, connections: int) -> None:
    with serving(run, files, head_seconds=600, max_connections=connections) as port:
        visitors = []
        try:
            for number in range(120):
                with contextlib.suppress(TimeoutError):  # they come faster than they are let in
                    visitors.append(connect(port, PAGE[: number % 30], patience=1))
            await_this(lambda: [ask(port) for _ in range(3)] == [200] * 3)
            closed = [is_closed(visitor) for visitor in visitors]
            assert 60 <= sum(closed) < len(visitors) and closed == sorted(closed, reverse=True)  # the oldest first
        finally:
            for visitor in visitors:
                visitor.close()
        assert ask(port) == 200


def test_a_server_ends_whatever_its_visitors_do(run: Path) -> None:
    with serving(run, head_seconds=600, answer_seconds=600) as port:
        visitors = [connect(port, PAGE * 100) for _ in range(10)] + [connect(port, PAGE[:9]) for _ in range(10)]
        assert ask(port) == 200
    assert len((run / "stderr").read_text().splitlines()) == 1  # its address, and no traceback
    for visitor in visitors:
        visitor.close()
