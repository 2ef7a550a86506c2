"""Locks that let only one process at a time write a file or folder. The kernel releases the lock of a dead process.

The lock of `models/ncca` is the file `models/.ncca.lock`. Only the kernel's lock on this file counts. The content of
the file only describes the holder for messages, and the next holder reuses a lock file that a killed process has left.
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
"""Pattern of the name of a lock file."""
SIGNATURE_KEYS = {"host", "pid", "command", "since"}
MAX_COMMAND_CHARACTERS = 200
"""Largest number of characters of the command in the description of a lock's holder. A longer command is shortened."""
MAX_SIGNATURE_BYTES = 1 << 14
"""Number of bytes at the beginning of a file in which `is_lock` looks for the description of a holder."""
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Error numbers of file systems that do not support locks. `hold` then goes on without a lock."""


@contextmanager
def hold(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of the file or folder `path` during the block, so that no other holder of this lock writes it.

    Missing folders above `path` are created, and finally removed again if they are still empty. If another process or
    thread holds the lock and `wait` is true, this function waits until the lock is free. If `wait` is false, it raises
    a JointspaceError that names the process, as far as the lock file describes the process. It also raises a
    JointspaceError if the lock file cannot be created, or if a file that is not a lock file has the name of the lock
    file. On a file system without locks, it logs a warning and goes on without a lock.
    """
    lock = path.resolve().with_name(f".{path.resolve().name}.lock")
    kernel = FileLock(lock, timeout=-1 if wait else 0, fallback_to_soft=False)
    made = [folder for folder in lock.parents if not folder.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        try:
            kernel.acquire()
        except Timeout:
            if not lock.exists():
                lock.touch()  # filelock also times out if the file cannot be created. This call then raises OSError.
            raise
    except Timeout:
        raise JointspaceError(
            f"{path} is being written by {_holder(lock)}. Wait until that process has ended, or stop that process."
        ) from None
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise JointspaceError(
                f"jointspace cannot write {path}, because its lock {lock} cannot be created ({error.strerror}). Free"
                " some disk space, correct the permissions of the folder, or write to another folder."
            ) from error
        log.warning("%s is on a file system without locks. Make sure that no other run writes to this path.", path)
    if lock.exists() and not is_lock(lock):
        kernel.release()
        raise JointspaceError(
            f"{lock} is not a lock file of jointspace, but the lock of {path} needs this name. Move the file away, or"
            " write to another folder."
        )
    try:
        with suppress(OSError):  # The disk may be full. The lock is valid without its description.
            lock.write_text(json.dumps(_signature()), encoding="utf-8")
        yield
    finally:
        lock.unlink(missing_ok=True)
        kernel.release()
        with suppress(OSError):  # A folder stays if it is not empty.
            for folder in made:
                folder.rmdir()


def is_lock(path: Path) -> bool:
    """Return whether `path` is a lock file of jointspace: a regular file that has the name of a lock file, and is empty
    or describes the holder of the lock by JSON with the SIGNATURE_KEYS."""
    if not LOCK.fullmatch(path.name) or not is_regular(path):
        return False
    try:
        text = path.read_bytes()[:MAX_SIGNATURE_BYTES]
        return not text or json.loads(text).keys() == SIGNATURE_KEYS
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def is_free(lock: Path, remove: bool = False) -> bool:
    """Return whether no process holds the existing lock file `lock`. With `remove`, a free lock file is deleted.

    The result is False if the file cannot be opened.
    """
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
        "command": textwrap.shorten(command, MAX_COMMAND_CHARACTERS, placeholder=" ..."),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }


def _holder(lock: Path) -> str:
    """Describe the process that holds `lock`.

    The description is "another process" if the lock file does not describe the present holder: it is empty, cannot be
    read, or was written by a process of this machine that has ended.
    """
    try:
        signed = json.loads(lock.read_text(encoding="utf-8"))
        if signed["host"] == socket.gethostname() and not is_alive(signed["pid"]):
            raise ValueError("an earlier holder, which was killed, has written the signature")
        return f"process {signed['pid']} on {signed['host']} ({signed['command']}) since {signed['since']}"
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "another process"
