"""Opening files that a user or a stranger brings: regular files only, and none outside of their folder."""

import errno
import os
import stat

from pipeline.errors import Refused

FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Of a file that is opened: a pipe would be waited for, and a terminal become ours."""
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UnopenedFile(Refused):
    """A file that is not read. `reason` is one of missing, outside, unreadable and too-large; `detail` says more."""


def open_plain(root: str, path: str, most_bytes: float, follow_links: bool) -> int:
    """The descriptor of the regular file `path` under the folder `root`, of at most `most_bytes`, open for reading.

    Unless `follow_links`, its links may not lead out of that folder, except for one folder directly under it, which may
    be a link to another disk. Raises UnopenedFile, and never waits for what is not a file.
    """
    if os.path.isabs(path) or ".." in path.split("/") or "\0" in path:
        raise UnopenedFile("outside", "its name leads out of the collection")
    try:
        descriptor = _open(root, path, follow_links)
    except FileNotFoundError:
        raise UnopenedFile("missing", f"there is no file {path}") from None
    except OSError as error:
        socket = error.errno == errno.ENXIO
        raise UnopenedFile("unreadable", "not a regular file" if socket else error.strerror) from error
    try:
        _require_regular(os.fstat(descriptor), most_bytes)
    except UnopenedFile:
        os.close(descriptor)
        raise
    return descriptor


def _open(root: str, path: str, follow_links: bool) -> int:
    if follow_links:
        return os.open(os.path.join(root, path), FLAGS)
    top, _, below = path.partition("/")
    base = os.path.realpath(os.path.join(root, top) if below else root)
    name = os.path.join(base, below or path)
    if "/" not in below:
        try:
            return os.open(name, FLAGS | os.O_NOFOLLOW)  # nearly every file is there and is no link
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
    resolved = os.path.realpath(name)
    if os.path.commonpath([base, resolved]) != base:
        raise UnopenedFile("outside", "a link leads out of the collection (collection.follow_links)")
    return os.open(resolved, FLAGS)


def _require_regular(status: os.stat_result, most_bytes: float) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((kind for is_kind, kind in KINDS if is_kind(status.st_mode)), "something else")
        raise UnopenedFile("unreadable", f"not a regular file but {kind}")
    if status.st_size > most_bytes:
        raise UnopenedFile("too-large", f"{status.st_size} bytes, more than {most_bytes:.0f}")
