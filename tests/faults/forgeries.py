"""What can happen to a run that no hash tells: whole artefacts in places of others, and records that were made up.

Each forgery changes the folder `run`, with the help of `other`, a run of the same collection with another encoder of
the same name, and returns the name of a file that its readers must mention.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.storage.atomic import CHECK, to_json

Forgery = Callable[[Path, Path], str]


def put(source: Path, target: Path) -> None:
    """A file or folder in the place of another, with its sidecar if it has one."""
    for ending in ("", ".json"):
        here, there = (path.with_name(path.name + ending) for path in (source, target))
        if not here.exists():
            continue
        shutil.rmtree(there) if there.is_dir() else there.unlink(missing_ok=True)
        (shutil.copytree if here.is_dir() else shutil.copy)(here, there)


def repeated(name: str) -> Forgery:
    """Shard 0 once more, in the place of shard 1."""

    def forge(run: Path, other: Path) -> str:
        put(run / name.format("00000"), run / name.format("00001"))
        return name.format("00001")

    return forge


def of_another_run(name: str) -> Forgery:
    """A file or folder of the other run."""

    def forge(run: Path, other: Path) -> str:
        put(other / name, run / name)
        return name

    return forge


def renamed(name: str, new: str) -> Forgery:
    """A folder under another name, beside its own."""

    def forge(run: Path, other: Path) -> str:
        put(run / name, run / new)
        return new

    return forge


def told(name: str, change: Callable[[dict], object]) -> Forgery:
    """A record that says something else, with the right sha256 of that."""

    def forge(run: Path, other: Path) -> str:
        value = json.loads((run / name).read_text())
        value.pop(CHECK, None)
        value = change(value) or value
        (run / name).write_bytes(to_json(value))
        return name

    return forge


def without(*keys: str) -> Callable[[dict], None]:
    """A record without the value at these keys."""

    def change(value: dict) -> None:
        for key in keys[:-1]:
            value = value[key]
        del value[keys[-1]]

    return change


def with_value(new: object, *keys: str) -> Callable[[dict], None]:
    """A record with another value at these keys."""

    def change(value: dict) -> None:
        for key in keys[:-1]:
            value = value[key]
        value[keys[-1]] = new

    return change


def replaced(name: str, make: Callable[[Path], None]) -> Forgery:
    """What `make` makes in the place of a file."""

    def forge(run: Path, other: Path) -> str:
        (run / name).unlink()
        make(run / name)
        return name

    return forge


def parent_is_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("")


def loop(path: Path) -> None:
    path.symlink_to(path)


ODD = {"folder": Path.mkdir, "pipe": os.mkfifo, "loop": loop, "parent is a file": parent_is_a_file}
"""What may stand where a file should, for readers to refuse at once."""
