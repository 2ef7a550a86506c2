"""Reads untrusted files for trial in another process with a memory limit, because the reading library may crash.

A file that passed such a trial can be remembered, so that the next trial costs nothing. A folder that only this user
can write has one empty file for each digest that is remembered.
"""

import atexit
import multiprocessing
import os
import resource
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ParamSpec

from pipeline.compute.workers import DIED, KILLED, Failure, Worker, private_folder
from pipeline.errors import InputError, JointspaceError

MAX_TRIAL_BYTES = 1 << 32
"""Memory that a trial may take beyond the size of its file. FAISS copies most of the file for some types of index."""

Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Trial:
    """A function that reads the file `path`, which is relative to `folder`, with at most `most_bytes` of memory."""

    path: Path
    read: Callable[[], object]
    folder: str
    most_bytes: int


def try_first(
    path: Path, read: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs
) -> None:
    """Call `read(*arguments)`, which reads `path`, in a separate process, which may crash.

    The function and its arguments travel by pickle, and its result is dropped. Raises InputError with the reason of a
    failure. The process is started once and kept for the next trial.
    """
    if multiprocessing.current_process().daemon:
        raise InputError(
            f"{path} was not tried yet, and a daemonic process cannot try it; open it once in another process, with"
            " XDG_STATE_HOME naming a folder of yours where your home cannot be written"
        )
    most_bytes = MAX_TRIAL_BYTES + (path.stat().st_size if path.is_file() else 0)
    trial = Trial(path, partial(read, *arguments, **named), os.getcwd(), most_bytes)
    outcome = _worker(os.getpid())(trial)
    if isinstance(outcome, Failure):
        died = f"{path} ended the process that read it for trial; it is damaged, or not to be trusted"
        raise InputError(died if outcome.reason in (DIED, KILLED) else outcome.reason)


@cache
def _worker(process: int) -> Worker[Trial, None]:
    """Return the worker of this `process`. A fork of this process must not use the same worker."""
    worker = Worker(_attempt)
    atexit.register(worker.close)
    return worker


def _attempt(trial: Trial) -> None:
    """Read a file in the worker process. Raises InputError if it cannot be read in the memory of the trial."""
    os.chdir(trial.folder)  # the caller may have changed its folder since the process was started
    resource.setrlimit(resource.RLIMIT_DATA, (trial.most_bytes, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        trial.read()
    except JointspaceError:
        raise
    except MemoryError:
        limit = f"{trial.most_bytes / 2**30:.2g} GB"
        remedy = "it is damaged, or not to be trusted"
        raise InputError(f"{trial.path} needs more than {limit} of memory to be read; {remedy}") from None
    except Exception as error:
        raise InputError(f"cannot read {trial.path} ({error!r}); write it again") from error


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
