"""GPUs of its own for each job of a machine: a job holds a lock for every card that it computes on."""

import getpass
import logging
import os
import random
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock, Timeout

from pipeline.device import VISIBLE, visible_names
from pipeline.plain_files import private_folder

log = logging.getLogger(__name__)
_held: list[FileLock] = []
"""Locks that end with this process, however it ends."""


def take(count: int) -> None:
    """Leave `count` of the visible GPUs visible to this process, such that no other process took: wait until there are.

    None is visible after `take(0)`. Where no more are visible than `count`, all are left to it without a lock: a queue
    chose them. CUDA must not have started.
    """
    names = visible_names()
    if count == 0:
        os.environ[VISIBLE] = ""
    elif len(names) > count:
        os.environ[VISIBLE] = ",".join(_wait(names, count))


def _wait(names: list[str], count: int) -> list[str]:
    """The first `count` of `names` whose locks this process has got, all of them at once."""
    folder, announced = _folder(), False
    while True:
        mine: dict[str, FileLock] = {}
        for name in names:
            if len(mine) < count and (lock := _lock(folder / quote(name, safe=""))) is not None:
                mine[name] = lock
        if len(mine) == count:
            _held.extend(mine.values())
            return list(mine)
        for lock in mine.values():
            lock.release()
        if not announced:
            log.info("waiting for %d of %d GPUs: other jobs compute on them", count, len(names))
            announced = True
        time.sleep(random.uniform(0.2, 1))


def _folder() -> Path:
    """Where this user's jobs lock cards. Raises UsageError if it is a link, or somebody else's."""
    folder = Path(tempfile.gettempdir()) / f"jointspace-cards-{quote(getpass.getuser(), safe='')}"
    return private_folder(folder, "name another by TMPDIR")


def _lock(path: Path) -> FileLock | None:
    """The lock of a card; None where another process has it."""
    lock = FileLock(path, timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
