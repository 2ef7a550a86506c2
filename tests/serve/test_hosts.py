"""By which names a server may be asked: a page elsewhere whose name leads here must not read our answers."""

import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'jointspace[serve]'")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'jointspace[serve]'")
from fastapi.testclient import TestClient  # noqa: E402
from visiting import serve  # noqa: E402

LOOPBACK = [
    "localhost",
    "LocalHost:8000",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.8.9.10:80",
    "[::1]",
    "[::1]:99",
]
ELSEWHERE = [
    "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "a.localhost.example:80",
    "[::1].evil.example", "[::1", "[::2]", "::2", "10.0.0.1", "8.8.8.8:53", "0.0.0.0", "*", "", ":8000", "a@localhost",
]  # fmt: skip


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")


class Started:
    """What `serve` would have run, and what it said."""

    def __init__(self, run: Path, caplog: pytest.LogCaptureFixture, *more: object) -> None:
        with caplog.at_level("INFO"):
            self._client = TestClient(serve(run, *more))
        self.told = caplog.text

    def status(self, host: str) -> int:
        answer = self._client.get("/api/models", headers={"Host": host})
        assert ("ncca" in answer.text) == (answer.status_code == 200)
        return answer.status_code


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("localhost", "http://localhost:"),
        ("127.0.0.2", "http://127.0.0.2:"),
        pytest.param("::1", "http://[::1]:", marks=IPV6),
    ],
)
def test_a_server_for_this_machine_answers_to_its_names_alone(
    run: Path, caplog: pytest.LogCaptureFixture, host: str, address: str
) -> None:
    started = Started(run, caplog, "--host", host)
    assert f"ncca at {address}" in started.told and "any name" not in started.told
    assert {name: started.status(name) for name in LOOPBACK} == dict.fromkeys(LOOPBACK, 200)
    assert {name: started.status(name) for name in ELSEWHERE} == dict.fromkeys(ELSEWHERE, 400)
    behind = Started(run, caplog, "--host", host, "--allow-host", "Photos.example")  # a proxy that goes by that name
    assert [behind.status(name) for name in ("photos.example", "localhost:8000", "evil.example")] == [200, 200, 400]


@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=IPV6)])
def test_a_server_for_all_says_so_and_can_be_bound_to_names(
    run: Path, caplog: pytest.LogCaptureFixture, host: str
) -> None:
    started = Started(run, caplog, "--host", host)
    assert "under any name; --allow-host NAME" in started.told and started.status("evil.example") == 200
    caplog.clear()
    named = Started(run, caplog, "--host", host, "--allow-host", "Photos.example")
    assert "any name" not in named.told
    assert [named.status(name) for name in ("photos.example:80", "PHOTOS.example", "127.0.0.1")] == [200] * 3
    assert [named.status(name) for name in ("evil.example", "10.0.0.1", "")] == [400] * 3
