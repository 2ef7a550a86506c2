"""Reading files of strangers with libraries that may end the process: first for trial, in another one."""

import atexit
import os
import resource
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import InputError, JointspaceError
from pipeline.workers import DIED, KILLED, Failure, Worker

MOST_BYTES = 1 << 32
"""Of memory that a trial may take."""


def try_first(path: Path, read: Callable[..., Any], *arguments: Any) -> None:
    """Call `read(*arguments)`, which reads `path`, in a process of its own, which it may end.

    Function and arguments travel by pickle; what it returns is dropped. Raises InputError with the reason of a failure.
    The process is started once and kept for the next trial.
    """
    outcome = _worker()((path, read, arguments, os.getcwd()))
    if isinstance(outcome, Failure):
        died = f"{path} ended the process that read it for trial; it is damaged, or not to be trusted"
        raise InputError(died if outcome.reason in (DIED, KILLED) else outcome.reason)


@cache
def _worker() -> Worker:
    worker = Worker(_attempt)
    atexit.register(worker.close)
    return worker


def _attempt(call: tuple[Path, Callable[..., Any], tuple[Any, ...], str]) -> None:
    path, read, arguments, folder = call
    os.chdir(folder)  # the caller may have gone elsewhere since the process was started
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    try:
        read(*arguments)
    except JointspaceError:
        raise
    except Exception as error:
        raise InputError(f"cannot read {path} ({error!r}); write it again") from error
