"""Objects of an S3 server and of a web server, with the faults that such servers have."""

import gzip
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from servers import FaultyServer, S3Server

from pipeline.errors import InputError, UnreachableError
from pipeline.plain_files import UnopenedFile
from pipeline.remote import stores
from pipeline.remote.paths import RemotePath, check_url, place
from pipeline.remote.scratch import Scratch
from pipeline.remote.stores import Version
from pipeline.storage.sources import ImageSource
from pipeline.workers import isolated_map

BODY = bytes(range(256)) * 40
ROOT = Path(__file__).parents[2]


def copy_of(scratch: Scratch, path: RemotePath, *known: object) -> bytes:
    with os.fdopen(scratch.open(path, *known), "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    "text",
    [
        "file:///etc/passwd",
        "memory://x",
        "s3://",
        "s3://bucket/../x",
        "https://me:secret@host/x",
        "https://host/x?sig=1",
        "s3:///x",
    ],
)
def test_urls_that_cannot_be_used_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name|must"):
        check_url(text)


def test_a_store_lists_what_it_holds_and_gives_it_whole_or_by_range(s3: S3Server, scratch: Scratch) -> None:
    s3.put("whole", {"a/x.tar": BODY, "a/y.txt": b"y", "b.txt": b"b"})
    found = stores.find(place("s3://whole"))
    assert {name: version.size for name, version in found.items()} == {"a/x.tar": len(BODY), "a/y.txt": 1, "b.txt": 1}
    assert list(stores.find(place("s3://whole/a"))) == ["x.tar", "y.txt"]
    path = place("s3://whole/a/x.tar")
    assert stores.look(path) == found["a/x.tar"]
    assert stores.read(path) == BODY and stores.read(path, 7, 9) == BODY[7:16]
    assert copy_of(scratch, path) == BODY
    assert scratch.fetched == {str(path): (len(BODY), hashlib.sha256(BODY).hexdigest())}
    with pytest.raises(UnopenedFile, match="missing"):
        stores.look(place("s3://whole/none"))


def test_a_changed_object_is_refused_by_name(s3: S3Server, scratch: Scratch, tmp_path: Path) -> None:
    s3.put("changing", {"x.tar": BODY})
    path, digest = place("s3://changing/x.tar"), hashlib.sha256(BODY).hexdigest()
    for other in (BODY[:-1] + b"?", BODY + b"?"):
        s3.put("changing", {"x.tar": other})
        fresh = Scratch(str(tmp_path), 1)
        source = ImageSource(place("s3://changing"), scratch=fresh, objects={"x.tar": (len(BODY), digest)})
        with pytest.raises(UnreachableError, match=r"s3://changing/x\.tar is not what it was .* run ingest again"):
            source.read("x.tar", 0, 10)
        with pytest.raises(UnreachableError, match="is not what it was"):
            list(isolated_map(ReadLocation(source), [("x.tar", 0, 10)], 0))
    s3.put("changing", {"x.tar": BODY})
    assert copy_of(scratch, path, Version(len(BODY), ""), digest) == BODY


class ReadLocation:
    def __init__(self, source: ImageSource) -> None:
        self.source = source

    def __call__(self, location: tuple) -> bytes:
        return self.source.read(*location)


@pytest.mark.usefixtures("impatient")
def test_a_web_server_that_fails_for_a_while_costs_time_and_no_more(web: FaultyServer, scratch: Scratch) -> None:
    web.objects = {"x.tar": BODY, "a b.jpg": b"jpeg"}
    path = place(f"{web.root}/x.tar")
    web.faults = ["503", "cut", "429"]
    assert copy_of(scratch, path, Version(len(BODY), "")) == BODY
    assert not web.faults
    web.faults = ["500", "cut"]
    assert stores.read(path, 100, 50) == BODY[100:150]
    assert stores.read(place(f"{web.root}/a b.jpg")) == b"jpeg"


@pytest.mark.usefixtures("impatient")
def test_what_does_not_pass_is_told_at_once_and_by_name(web: FaultyServer) -> None:
    web.objects = {"x.tar": BODY}
    path = place(f"{web.root}/x.tar")
    web.faults = ["403", "403"]
    with pytest.raises(UnreachableError, match=r"x\.tar cannot be reached .* credentials"):
        stores.read(path)
    web.faults = []
    with pytest.raises(UnopenedFile, match="missing"):
        stores.read(place(f"{web.root}/none"))
    web.faults = ["503"] * 1000
    with pytest.raises(UnreachableError, match=r"x\.tar cannot be reached"):
        stores.look(path)


def test_scratch_is_bounded_and_ends_with_its_job(web: FaultyServer, tmp_path: Path) -> None:
    web.objects = {f"{i}.tar": bytes([i]) * 1000 for i in range(10)}
    scratch = Scratch(str(tmp_path), 3.5e-6)
    for i in (*range(10), 9, 8, 0):
        assert copy_of(scratch, place(f"{web.root}/{i}.tar")) == bytes([i]) * 1000
        copies = [path for path in scratch.parent.rglob("*") if path.is_file() and not path.suffix]
        assert len(copies) <= 3
    web.objects["large"] = bytes(5000)
    with pytest.raises(UnreachableError, match=r"large has 5,000 bytes.*remote\.scratch_gb"):
        scratch.open(place(f"{web.root}/large"))
    parent = scratch.parent
    del scratch
    assert list(parent.iterdir()) == []


def test_what_a_killed_job_left_is_removed_by_the_next_and_nothing_else_is(web: FaultyServer, tmp_path: Path) -> None:
    web.objects = {"x": BODY}
    code = (
        "import sys, time; from pipeline.remote.scratch import Scratch; from pipeline.remote.paths import place\n"
        f"s = Scratch({str(tmp_path)!r}, 1); s.open(place({web.root + '/x'!r})); print('ready', flush=True)\n"
        "time.sleep(600)"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT) for _ in range(2)]
    try:
        for job in jobs:
            assert job.stdout.readline() == b"ready\n"
        jobs[0].send_signal(signal.SIGKILL)
        jobs[0].wait()
        scratch = Scratch(str(tmp_path), 1)
        assert copy_of(scratch, place(f"{web.root}/x")) == BODY
        left = [path for path in scratch.parent.iterdir() if path.is_dir()]
        assert len(left) == 2 and any(path.name.startswith(f"{jobs[1].pid}-") for path in left)
    finally:
        for job in jobs:
            job.kill()
            job.wait()
            job.stdout.close()


def test_what_a_web_server_packs_or_sends_without_end_stays_small(web: FaultyServer) -> None:
    """A gzip file that is 3 MB once it is unpacked comes as it is; more bytes than a photograph has are refused."""
    packed = gzip.compress(bytes(3_000_000))
    web.objects = {"packed.jpg": packed, "long.jpg": bytes(3_000_000)}
    web.headers = {"Content-Encoding": "gzip"}
    assert stores.read(place(f"{web.root}/packed.jpg"), most=1_000_000) == packed
    with pytest.raises(InputError, match=r"too-large.*long\.jpg"):
        stores.read(place(f"{web.root}/long.jpg"), most=1_000_000)
    assert stores.read(place(f"{web.root}/long.jpg"), 5, 10, most=1_000_000) == bytes(10)


def test_a_redirect_to_a_file_of_this_machine_is_not_followed(web: FaultyServer, impatient: None) -> None:
    web.objects = {"x.jpg": b"x"}
    web.redirect = "file:///etc/passwd"
    with pytest.raises(UnreachableError, match=r"x\.jpg"):
        stores.read(place(f"{web.root}/x.jpg"))
