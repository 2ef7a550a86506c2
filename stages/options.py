"""Options that several commands share, and what they mean."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)

config = click.option(
    "--config", "config_path", type=FILE, help="Configuration laid over config/default.yaml. [default: none]"
)
bundle = click.option(
    "--index", "bundle_folder", type=FOLDER, required=True, help="Bundle that `build-index` wrote, to start from."
)


def count(name: str, default: int, what: str) -> click.Option:
    """An option of a declared stage, a number above zero."""
    return click.Option([name], type=click.IntRange(min=1), default=default, show_default=True, help=what)


def output(kind: str, what: str):
    """The option `--output`, a file, a folder, or either (path); `what` says what it becomes.

    A command that has it holds the lock of what it writes; a second run of it fails, naming the first.
    """
    types = {"file": FILE, "folder": FOLDER, "path": PATH}

    def lock(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def locked(output: Path, **arguments: Any) -> None:
            from pipeline.storage.locks import hold

            with hold(output):
                function(output=output, **arguments)

        return click.option("--output", type=types[kind], required=True, help=what)(locked)

    return lock
