"""What talks to a nursery (nursery.py), and compares what its children have left."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from cases import Case
from disks import files_of

MEASURED = {
    "build_seconds",
    "queries_per_second",
    "exact_queries_per_second",
    "latency_ms",
    "rates",
    "seconds",
    "check",
}
"""Keys of JSON files whose values are measured times, or follow from them."""
TIMED = ("index", "sweeps")
"""Folders and files of a run in which such JSON files are."""
CHOSEN = "config.yaml"
"""What a run was told by the last command over shards; others of its commands are told other things."""


class Ended(NamedTuple):
    """How a command ended; see nursery.py."""

    killed: bool
    code: int
    seconds: float
    writing: float | None
    said: str


class Nursery:
    """Runs commands in children that can be killed; `whole` where it is to know the slow commands too."""

    def __init__(self, whole: bool = False) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as its process)
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nursery.py"), *(["whole"] if whole else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip

    def run(self, stage: str, arguments: list[str], **limits: float | bool | None) -> Ended:
        """Run a command under the limits of nursery.py's `attempt`."""
        self._process.stdin.write(json.dumps({"stage": stage, "arguments": arguments, **limits}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (stage, self._told())
        return Ended(**json.loads(answer))

    def finish(self, stage: str, arguments: list[str]) -> Ended:
        """Run a command to its end."""
        done = self.run(stage, arguments)
        assert done.code == 0, (stage, done, self._told())
        return done

    def _told(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-3000:]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def compare(expected: Path, found: Path) -> list[Path]:
    """Assert that two folders have the same files, byte for byte; of what holds measured times, everything else.

    Returns the names of files whose times differ.
    """
    names = {Path(name) for name, path in files_of(expected).items() if path.name != CHOSEN}
    others = {Path(name) for name, path in files_of(found).items() if path.name != CHOSEN} ^ names
    assert not others, sorted(others)
    timed = []
    for name in sorted(names):
        ours, theirs = (found / name).read_bytes(), (expected / name).read_bytes()
        if ours != theirs:
            assert name.suffix == ".json" and set(TIMED) & set(name.parts) and same(ours, theirs), name
            timed.append(name)
    return timed


def same(ours: bytes, theirs: bytes) -> bool:
    """Whether the contents of two files are equal, but for times that were measured if they are JSON."""
    if ours == theirs:
        return True
    try:
        return without_times(json.loads(ours)) == without_times(json.loads(theirs))
    except ValueError:
        return False


def without_times(value: object) -> object:
    if isinstance(value, dict):
        rest = value.keys() - MEASURED - {"files"}
        return {key: without_times(value[key]) for key in rest}
    return [without_times(part) for part in value] if isinstance(value, list) else value


class Disturbed(NamedTuple):
    """A folder with a `run` to be killed in, the undisturbed one `expected`, its `cases`, and how each call ended."""

    folder: Path
    run: Path
    expected: Path
    cases: dict[str, Case]
    times: dict[str, list[Ended]]


def run_all(nursery: Nursery, cases: dict[str, Case]) -> dict[str, list[Ended]]:
    return {name: [nursery.finish(case.stage, call) for call in case.calls] for name, case in cases.items()}
