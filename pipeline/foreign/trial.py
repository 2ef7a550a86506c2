"""Reads files of strangers first in another process, since the library that reads them may end it.

A file that passed such a trial can be remembered, so that the next trial costs nothing. What is remembered lies in a
folder that only this user can write, as one empty file for each digest.
"""

import atexit
import multiprocessing
import os
import resource
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.compute.workers import DIED, KILLED, Failure, Worker, private_folder
from pipeline.errors import InputError, JointspaceError

MOST_BYTES = 1 << 32
"""Memory that a trial may take beside the size of its file, most of which FAISS copies for some types of index."""


def try_first(path: Path, read: Callable[..., Any], *arguments: Any) -> None:
    """Call `read(*arguments)`, which reads `path`, in a process of its own, which it may end.

    Function and arguments travel by pickle; what it returns is dropped. Raises InputError with the reason of a failure.
    The process is started once and kept for the next trial.
    """
    if multiprocessing.current_process().daemon:
        raise InputError(
            f"{path} was not tried yet, and a daemonic process cannot try it; open it once in another process, with"
            " XDG_STATE_HOME naming a folder of yours where your home cannot be written"
        )
    outcome = _worker(os.getpid())((path, read, arguments, os.getcwd()))
    if isinstance(outcome, Failure):
        died = f"{path} ended the process that read it for trial; it is damaged, or not to be trusted"
        raise InputError(died if outcome.reason in (DIED, KILLED) else outcome.reason)


@cache
def _worker(process: int) -> Worker:
    """Return the worker of this `process`: a fork of it must not take part in its conversation."""
    worker = Worker(_attempt)
    atexit.register(worker.close)
    return worker


def _attempt(call: tuple[Path, Callable[..., Any], tuple[Any, ...], str]) -> None:
    path, read, arguments, folder = call
    os.chdir(folder)  # the caller may have gone elsewhere since the process was started
    most = MOST_BYTES + (path.stat().st_size if path.is_file() else 0)
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        read(*arguments)
    except JointspaceError:
        raise
    except Exception as error:
        raise InputError(f"cannot read {path} ({error!r}); write it again") from error


def is_remembered(digest: str) -> bool:
    """Return whether `remember` was called with this digest, by this user."""
    return (folder := _state_folder()) is not None and os.path.isfile(folder / digest)


def remember(digest: str) -> None:
    """Remember a digest (hexadecimal). Where the folder cannot be written, the next trial is made again."""
    if folder := _state_folder():
        with suppress(OSError):
            (folder / digest).touch()


def _state_folder() -> Path | None:
    """Return the folder of the digests, or None where no folder can be written by this user alone."""
    with suppress(OSError, RuntimeError, JointspaceError):  # RuntimeError where the user has no home
        home = Path(os.environ.get("XDG_STATE_HOME", ""))
        home = home if home.is_absolute() else Path.home() / ".local/state"
        folder = private_folder(home / "jointspace/tried", "")
        return None if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH) else folder
    return None
