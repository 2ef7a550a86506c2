"""GPUs of its own for each job of a machine: a job holds a lock for every card that it computes on."""

import fcntl
import logging
import os
import random
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pipeline.device import DEVICES

log = logging.getLogger(__name__)
VISIBLE = "CUDA_VISIBLE_DEVICES"
_held: list[int] = []
"""Open files whose locks end with this process, however it ends."""


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


def visible_names() -> list[str]:
    """What CUDA_VISIBLE_DEVICES calls each GPU, by the driver's files where it is not set; torch is not asked."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number in range(sum(bool(re.fullmatch(r"nvidia\d+", one)) for one in os.listdir(DEVICES)))]


def _wait(names: list[str], count: int) -> list[str]:
    """The first `count` of `names` whose locks this process has got, all of them at once."""
    told = False
    while True:
        mine: dict[str, int] = {}
        for name in names:
            if len(mine) < count and (lock := _lock(name)) is not None:
                mine[name] = lock
        if len(mine) == count:
            _held.extend(mine.values())
            return list(mine)
        for lock in mine.values():
            os.close(lock)
        if not told:
            log.info("waiting for %d of %d GPUs: other jobs compute on them", count, len(names))
            told = True
        time.sleep(random.uniform(0.2, 1))


def _lock(name: str) -> int | None:
    """The open file that holds the lock of a card; None where another process has it."""
    folder = Path(tempfile.gettempdir()) / f"jointspace-cards-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    opened = os.open(folder / quote(name, safe=""), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        return None
    return opened
