"""One writer at a time: a lock beside what a command writes, which the kernel releases when its holder dies.

The lock of `models/ncca` is the file `models/.ncca.lock`. Only the kernel's lock on it counts: the file's content
merely describes the holder, and the next holder takes over a file that a killed one left.
"""

import errno
import json
import logging
import os
import re
import shlex
import socket
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.errors import JointspaceError
from pipeline.storage.batch import is_alive
from pipeline.storage.files import is_regular

log = logging.getLogger(__name__)
LOCK = re.compile(r"\..+\.lock", re.DOTALL)
SIGNED = {"host", "pid", "command", "since"}
LONGEST_COMMAND, LONGEST_SIGNATURE = 200, 1 << 14
"""Characters of the command in a signature, and bytes of a whole signature."""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # errors of file systems without locks


@contextmanager
def hold(path: Path, wait: bool = False) -> Iterator[None]:
    """Keep every other process and thread from writing the file or folder `path`.

    Creates the folders above it, and in the end removes those that are still empty. If another process holds the lock,
    raises JointspaceError at once, naming the process, or, with `wait`, waits until the lock is free. Only warns on a
    file system without locks.
    """
    lock = path.resolve().with_name(f".{path.resolve().name}.lock")
    kernel = FileLock(lock, timeout=-1 if wait else 0, fallback_to_soft=False)
    made = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        kernel.acquire()
    except Timeout:
        raise JointspaceError(f"{path} is being written by {_holder(lock)}; wait for it, or stop it") from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise JointspaceError(
                f"cannot write {path} (its lock {lock}: {error.strerror}); make room, correct the folder's permissions,"
                " or write elsewhere"
            ) from error
        log.warning("%s is on a file system without locks; make sure that no other run writes it", path)
    if lock.exists() and not is_lock(lock):
        kernel.release()
        raise JointspaceError(f"{lock} is in the place of a lock but is not one of ours; move it, or write elsewhere")
    try:
        with suppress(OSError):  # a full disk: the lock holds all the same
            lock.write_text(json.dumps(_signature()), encoding="utf-8")
        yield
    finally:
        lock.unlink(missing_ok=True)
        kernel.release()
        with suppress(OSError):  # not empty
            for folder in made:
                folder.rmdir()


def is_lock(path: Path) -> bool:
    """Whether `path` has the name of a lock, and holds a signature or nothing yet."""
    if not LOCK.fullmatch(path.name) or not is_regular(path):
        return False
    try:
        text = path.read_bytes()[:LONGEST_SIGNATURE]
        return not text or json.loads(text).keys() == SIGNED
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def is_free(lock: Path, remove: bool = False) -> bool:
    """Whether no process holds the lock file `lock`, which is then removed if that is asked for."""
    try:
        with FileLock(lock, timeout=0, fallback_to_soft=False):
            if remove:
                lock.unlink(missing_ok=True)
    except (Timeout, OSError):
        return False
    return True


def _signature() -> dict[str, str | int]:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": textwrap.shorten(command, LONGEST_COMMAND, placeholder=" ..."),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }


def _holder(lock: Path) -> str:
    """Who holds `lock`, if the file says: it may not be signed yet, or still by a holder that was killed."""
    try:
        signed = json.loads(lock.read_text(encoding="utf-8"))
        if signed["host"] == socket.gethostname() and not is_alive(signed["pid"]):
            raise ValueError("signed by another holder")
        return f"process {signed['pid']} on {signed['host']} ({signed['command']}) since {signed['since']}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process"
