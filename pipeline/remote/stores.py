"""What object stores and web servers hold, by fsspec: listed, looked at, fetched, and read by range.

A call that may succeed later is tried again a few times, beside what a store's own library tries. Only an object that
is not there is its own fault (UnopenedFile); all else raises UnreachableError, so that nobody takes a broken line for a
broken photograph.
"""

import errno
import hashlib
import importlib
import logging
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pipeline.errors import InputError, JointspaceError, UnreachableError, UsageError, brief
from pipeline.plain_files import UnopenedFile
from pipeline.remote.paths import WEB, RemotePath

log = logging.getLogger(__name__)
WAITS = (1.0, 4.0, 16.0)
"""Seconds before each further attempt: fsspec has none of its own for web servers."""
CONNECT_SECONDS, READ_SECONDS = 10, 60
"""For a connection, and between two pieces of an answer."""
LATER = (408, 425, 429)
"""Among HTTP's errors of a request those that pass."""
FINAL = (PermissionError, IsADirectoryError, NotImplementedError, TypeError, ValueError, LookupError)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
TAGS = ("ETag", "etag", "Content-MD5", "LastModified", "Last-Modified", "updated", "mtime")
QUERY = re.compile(r"\?[^\s'\")]+")
PIECE = 1 << 20
Result = TypeVar("Result")


class Version(NamedTuple):
    """What a store says of an object without sending it: its bytes, None where it does not say, and a tag that changes
    with the content, empty where there is none."""

    size: int | None
    tag: str


def look(path: RemotePath) -> Version:
    """Raises UnopenedFile where there is no such object."""
    return _version(_insist(lambda files: files.info(_address(path)), path))


def find(root: RemotePath) -> dict[str, Version]:
    """All objects below `root`, by their names relative to it, sorted. Raises UsageError for a server without lists."""
    if root.scheme in WEB:
        raise UsageError(
            f"{root}: a web server does not say what it holds; name its lists or tar shards in collection.files"
            " (train: shard-{00000..00099}.tar)"
        )
    objects = _insist(lambda files: files.find(str(root), detail=True), root)
    prefix = file_system(root.scheme)._strip_protocol(str(root)).rstrip("/") + "/"
    below = {name[len(prefix) :]: about for name, about in objects.items() if name.startswith(prefix)}
    return {name: _version(below[name]) for name in sorted(below) if name and not name.endswith("/")}


def state(path: RemotePath) -> list[Any]:
    """What changes with an object, or with those below `path`."""
    try:
        return list(look(path))
    except UnopenedFile:
        if path.scheme in WEB or not (objects := find(path)):
            raise
        return [[name, *version] for name, version in objects.items()]


def fetch(path: RemotePath, target: Path, version: Version) -> str:
    """Write an object into the file `target`; returns its sha256. Raises UnreachableError where it is not of this
    `version`, which it was before."""

    def get(files: Any) -> None:
        files.get_file(_address(path), str(target))
        size = target.stat().st_size
        if version.size not in (None, size):
            if _version(files.info(_address(path))).size == size:
                raise changed(path)
            raise OSError(f"{size} bytes came of {version.size}")

    _insist(get, path)
    with open(target, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: RemotePath, offset: int | None = None, size: int | None = None, most: int = 1 << 30) -> bytes:
    """All bytes of an object, or `size` from `offset` on. Raises InputError where a web server sends more than `most`,
    and UnopenedFile where there is none."""
    if size == 0:
        return b""

    def get(files: Any) -> bytes:
        if path.scheme in WEB:
            return _read_web(files, path, offset or 0, size, most)
        return files.cat_file(_address(path), start=offset, end=None if size is None else (offset or 0) + size)

    return _insist(get, path)


def _read_web(files: Any, path: RemotePath, offset: int, size: int | None, most: int) -> bytes:
    """Piece by piece, since a server may say anything of the size, or nothing."""
    headers = {} if size is None else {"Range": f"bytes={offset}-{offset + size - 1}"}
    data = bytearray()
    with files.open(_address(path), block_size=0, size=1, headers=headers) as answer:
        skip = offset if answer.r.status == 200 else 0  # a server that knows no ranges sends all
        while (size is None or len(data) < size) and (piece := answer.read(PIECE)):
            data += piece[skip:]
            skip = max(0, skip - len(piece))
            if size is None and len(data) > most:
                raise InputError(f"too-large: {path} has more than {most} bytes")
    return bytes(data if size is None else data[:size])


def changed(path: RemotePath) -> UnreachableError:
    return UnreachableError(
        f"{path} is not what it was when it was listed or ingested; put that back, or run ingest again"
    )


def _insist(act: Callable[[Any], Result], path: RemotePath) -> Result:
    files = file_system(path.scheme)
    for wait in (*WAITS, None):
        try:
            return act(files)
        except JointspaceError:
            raise
        except Exception as error:
            cause = error.__cause__ if hasattr(error.__cause__, "status") else error  # fsspec calls each a missing file
            said = QUERY.sub("?...", brief(cause))
            if isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410):
                raise UnopenedFile("missing", f"there is no object {path}") from None
            if getattr(cause, "errno", None) in FULL:
                raise UnreachableError(f"{path} cannot be fetched ({said}); make room, or set remote.scratch") from None
            if not _passes(cause):
                remedy = "correct its name, or the credentials in the environment"
                raise UnreachableError(f"{path} cannot be reached ({said}); {remedy}") from None
            if wait is None:
                remedy = "run the same command again when its server answers"
                raise UnreachableError(f"{path} cannot be reached ({said}); {remedy}") from None
            log.warning("%s: %s; trying again", path, said)
            time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def _passes(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status in LATER
    return not isinstance(error, FINAL)


def _version(info: dict[str, Any]) -> Version:
    size = info.get("size")
    return Version(None if size is None else int(size), next((str(info[tag]) for tag in TAGS if info.get(tag)), ""))


def _address(path: RemotePath) -> str:
    return f"{path.scheme}://{quote('/'.join(path.parts[1:]), safe='/:')}" if path.scheme in WEB else str(path)


@cache
def file_system(scheme: str) -> Any:
    """fsspec's file system of a scheme. Raises UsageError where there is none, or its library is missing."""
    try:
        fsspec = importlib.import_module("fsspec")
        options = _web_options() if scheme in WEB else {}
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)
    except ImportError as error:
        remedy = f"pip install 'jointspace[{'https' if scheme in WEB else 's3'}]'"
        raise UsageError(f"{scheme}:// needs a library ({brief(error)}); {remedy}, or what fsspec names") from error
    except ValueError as error:
        raise UsageError(f"{scheme}:// cannot be read: fsspec knows no such protocol ({brief(error)})") from error


def _web_options() -> dict[str, Any]:
    """Answers as they were stored: what a server packs nevertheless is not unpacked, whatever its size."""
    from aiohttp import ClientTimeout

    limit = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    client = {"timeout": limit, "trust_env": True, "headers": headers, "auto_decompress": False}
    return {"client_kwargs": client, "encoded": True}
