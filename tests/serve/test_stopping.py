"""A server that is told to stop while it computes an answer, for a visitor who does not read."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'jointspace[serve]'")

from pipeline.serve import connections  # noqa: E402
from pipeline.serve.guard import CONNECTION  # noqa: E402

LONG = 600
BODY = b"x" * 50_000_000  # more than the system keeps for a visitor


class Slow:
    """An application whose answers are ready when `released` is set."""

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        import asyncio

        connection = scope["state"][CONNECTION]
        connection.begin()
        self.asked.set()
        while not self.released.is_set():
            await asyncio.sleep(0.01)
        connection.answer()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"50000000")]})
        await send({"type": "http.response.body", "body": BODY})


@pytest.fixture
def visitor() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.settimeout(300)
        yield one


def test_an_answer_that_is_ready_after_the_stop_is_not_waited_for_longer_than_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, visitor: socket.socket
) -> None:
    monkeypatch.setattr(connections, "LAST_SECONDS", 3)
    slow, patience = Slow(), connections.Patience(head_seconds=LONG, answer_seconds=LONG, max_connections=10)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = connections.make_config(slow, patience, 100)
        config.lifespan = "off"
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        with caplog.at_level(logging.ERROR, "uvicorn.error"):
            monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
            thread.start()
            visitor.connect(listener.getsockname())
            visitor.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow.asked.wait(300)
            server.should_exit = True
            time.sleep(0.3)
            slow.released.set()
            thread.join(300)
    assert not thread.is_alive() and not caplog.messages
