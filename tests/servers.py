"""Servers of objects for tests: moto's S3 in a process of its own, and a web server that fails as it is told to."""

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


SERVE = """
import json, sys
from pathlib import Path
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client
app = DomainDispatcherApplication(create_backend_app)
for bucket, folder in json.loads(sys.argv[2]).items():
    client = Client(app)
    assert client.put(f"/{bucket}").status_code == 200
    for path in Path(folder).rglob("*"):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            assert client.put(f"/{bucket}/{name}", data=path.read_bytes()).status_code == 200
run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
"""


class S3Server:
    """A process that keeps its objects in memory: what was put there is gone when it is killed."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.environment = {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}
        self._process: subprocess.Popen | None = None

    def start(self, **buckets: Path) -> None:
        """With what is in a folder in each of `buckets` before it answers."""
        folders = {bucket: str(folder) for bucket, folder in buckets.items()}
        words = [sys.executable, "-c", SERVE, str(self.port), json.dumps(folders)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(words, **quiet, env={**os.environ, **CREDENTIALS})
        for _ in range(600):
            with suppress(OSError), urllib.request.urlopen(f"{self.environment['AWS_ENDPOINT_URL']}/moto-api/"):
                return
            time.sleep(0.1)
        raise TimeoutError("moto's server did not begin")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        import boto3

        client = boto3.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"], region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        for name, data in objects.items():
            client.put_object(Bucket=bucket, Key=name, Body=data)

    def put_folder(self, bucket: str, folder: Path) -> None:
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.put(bucket, {path.relative_to(folder).as_posix(): path.read_bytes() for path in files})

    def objects(self, bucket: str) -> dict[str, bytes]:
        import boto3

        client = boto3.client("s3", endpoint_url=self.environment["AWS_ENDPOINT_URL"], region_name="us-east-1")
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        names = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return {name: client.get_object(Bucket=bucket, Key=name)["Body"].read() for name in names}


@contextmanager
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.kill()


class FaultyServer:
    """A web server of `objects`; `faults` are used up, one a request for an object: `503`, `403`, `cut` (half of the
    body, then the end of the connection), or a function that is called before the answer."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: list[str | Callable[[], None]] = []
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.redirect = ""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(f"{self.command} {self.path}")
                fault = outer.faults.pop(0) if outer.faults else ""
                if callable(fault):
                    fault()
                data = outer.objects.get(urllib.parse.unquote(self.path.lstrip("/")))
                if outer.redirect:
                    self.send_response(HTTPStatus.FOUND)
                    self.send_header("Location", outer.redirect)
                    self.end_headers()
                elif isinstance(fault, str) and fault.isdecimal():
                    self.send_error(int(fault))
                elif data is None:
                    self.send_error(HTTPStatus.NOT_FOUND)
                else:
                    self.answer(data, cut=fault == "cut")

            def answer(self, data: bytes, cut: bool) -> None:
                whole, status = data, HTTPStatus.OK
                if span := self.headers.get("Range"):
                    first, last = span.removeprefix("bytes=").split("-")
                    data, status = whole[int(first) : int(last or len(whole)) + 1], HTTPStatus.PARTIAL_CONTENT
                self.send_response(status)
                for name, value in {"Content-Length": str(len(data)), **outer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data[: len(data) // 2] if cut else data)

            def do_HEAD(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.root = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
