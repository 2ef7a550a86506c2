"""What object stores and web servers hold: listed, looked at, fetched, read by range, and sent.

Every call is tried again, after longer and longer waits, until `patience` seconds have passed: a server that is busy or
gone for a while costs time and no more. Only an object that is not there is its own fault (UnopenedFile); all else
raises UnreachableError, so that nobody takes a broken line for a broken photograph.
"""

import errno
import hashlib
import importlib
import logging
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pipeline.errors import JointspaceError, UnreachableError, UsageError, brief
from pipeline.plain_files import UnopenedFile
from pipeline.remote.paths import LISTED, SCHEMES, RemotePath

log = logging.getLogger(__name__)
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
CONNECT_SECONDS, READ_SECONDS = 10, 60
"""For a connection, and between two pieces of an answer."""
LATER = (408, 425, 429)
"""Among HTTP's errors of a request those that pass."""
FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, TypeError, ValueError, LookupError)
PASSING = {"ClientError", "HTTPClientError", "ConnectionError", "ResponseParserError", "HttpError", "RequestError"}
"""Names of the libraries' own errors, of aiohttp, botocore and gcsfs, that may pass."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
TAGS = ("ETag", "etag", "Content-MD5", "LastModified", "Last-Modified", "updated", "mtime")
QUERY = re.compile(r"\?[^\s'\")]+")
Result = TypeVar("Result")


class Version(NamedTuple):
    """What a store says of an object without sending it: its bytes, None where it does not say, and a tag that changes
    with the content, empty where there is none."""

    size: int | None
    tag: str


def look(path: RemotePath, patience: float) -> Version:
    """Raises UnopenedFile where there is no such object."""
    return _version(_insist(lambda files: files.info(_address(path)), path, patience))


def find(root: RemotePath, patience: float) -> dict[str, Version]:
    """All objects below `root`, by their names relative to it, sorted. Raises UsageError for a server without lists."""
    if root.scheme not in LISTED:
        raise UsageError(
            f"{root}: a web server does not say what it holds; name its lists or tar shards in collection.files"
            " (train: shard-{00000..00099}.tar)"
        )
    found = _insist(lambda files: files.find(str(root), detail=True), root, patience)
    prefix = str(root).partition("://")[2].rstrip("/") + "/"
    below = {name[len(prefix) :]: one for name, one in found.items() if name.startswith(prefix)}
    return {name: _version(below[name]) for name in sorted(below) if name and not name.endswith("/")}


def state(path: RemotePath, patience: float) -> list[Any]:
    """What changes with an object, or with those below `path`."""
    try:
        return list(look(path, patience))
    except UnopenedFile:
        if path.scheme not in LISTED or not (found := find(path, patience)):
            raise
        return [[name, *version] for name, version in found.items()]


def fetch(path: RemotePath, target: Path, patience: float, version: Version | None = None) -> str:
    """Write an object into the file `target`; returns its sha256. Raises UnreachableError where it is not of this
    `version`, which it was before."""

    def get(files: Any) -> None:
        files.get_file(_address(path), str(target))
        _require_size(path, target.stat().st_size, version, files)

    _insist(get, path, patience)
    with open(target, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: RemotePath, patience: float, offset: int | None = None, size: int | None = None) -> bytes:
    """All bytes of an object, or `size` from `offset` on."""

    def get(files: Any) -> bytes:
        if size is None:
            return files.cat_file(_address(path))
        if not size:
            return b""
        data = files.cat_file(_address(path), start=offset or 0, end=(offset or 0) + size)
        return data if len(data) <= size else data[offset or 0 :][:size]  # a server that knows no ranges sends all

    return _insist(get, path, patience)


def send(source: Path, path: RemotePath, patience: float) -> Version:
    """Make an object of a file, all at once; returns what the store says of it then."""
    if path.scheme not in LISTED:
        raise UsageError(f"{path}: nothing can be sent to a web server; name an s3:// or gs:// place")
    _insist(lambda files: files.put_file(str(source), _address(path)), path, patience)
    version = look(path, patience)
    if version.size != source.stat().st_size:
        raise UnreachableError(f"{path} has {version.size} bytes after {source} was sent; run the same command again")
    return version


def remove(path: RemotePath, patience: float) -> None:
    """Remove an object, if it is there."""
    with suppress(UnopenedFile):
        _insist(lambda files: files.rm_file(_address(path)), path, patience)


def changed(path: RemotePath) -> UnreachableError:
    return UnreachableError(
        f"{path} is not what it was when it was listed or ingested; put that back, or run ingest again"
    )


class _CutOffError(OSError):
    """Fewer bytes came than there are."""


def _require_size(path: RemotePath, size: int, version: Version | None, files: Any) -> None:
    if version is None or version.size in (None, size):
        return
    if _version(files.info(_address(path))).size == size:
        raise changed(path)
    raise _CutOffError(f"{size} bytes came of {version.size}")


def _insist(act: Callable[[Any], Result], path: RemotePath, patience: float) -> Result:
    begun, wait = time.monotonic(), FIRST_WAIT
    files = file_system(path.scheme)
    while True:
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
                raise UnreachableError(
                    f"{path} cannot be reached ({said}); correct its name, or the credentials in the environment"
                ) from None
            if time.monotonic() - begun + wait > patience:
                raise UnreachableError(
                    f"{path} cannot be reached ({said}); run the same command again when its server answers, or raise"
                    " remote.patience"
                ) from None
            log.warning("%s: %s; trying again", path, said)
            time.sleep(wait * random.uniform(0.5, 1))
            wait = min(2 * wait, LONGEST_WAIT)


def _passes(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    status = getattr(error, "status", None)
    if isinstance(status, int) and 400 <= status < 500:
        return status in LATER
    if isinstance(error, FINAL):
        return False
    return isinstance(error, OSError) or any(base.__name__ in PASSING for base in type(error).__mro__)


def _version(info: dict[str, Any]) -> Version:
    size = info.get("size")
    return Version(None if size is None else int(size), next((str(info[one]) for one in TAGS if info.get(one)), ""))


def _address(path: RemotePath) -> str:
    return str(path) if path.scheme in LISTED else f"{path.scheme}://{quote('/'.join(path.parts[1:]), safe='/:')}"


@cache
def file_system(scheme: str) -> Any:
    """fsspec's file system, which tries nothing twice by itself. Raises UsageError where its library is missing."""
    if scheme not in SCHEMES:
        raise UsageError(f"{scheme}:// cannot be read; there are {', '.join(f'{one}://' for one in SCHEMES)}")
    module, extra = SCHEMES[scheme]
    try:
        fsspec = importlib.import_module("fsspec")
        importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"{scheme}:// needs {module}: pip install 'jointspace[{extra}]'") from error
    made = fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **_options(scheme))
    if scheme == "s3":
        made.retries = 1
    return made


def _options(scheme: str) -> dict[str, Any]:
    if scheme == "s3":  # in one answer, which cannot be of two versions
        limits = {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS, "retries": {"max_attempts": 0}}
        return {"config_kwargs": limits, "max_concurrency": 1}
    if scheme in LISTED:
        return {}
    from aiohttp import ClientTimeout

    limit = ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
    return {"client_kwargs": {"timeout": limit, "trust_env": True}, "encoded": True}
