"""A process that has imported everything once and forks a child for each command, so that kills fall on its work.

    python nursery.py < requests        one JSON object {stage, arguments, seconds} a line

Each child runs one command; it is killed with SIGKILL after `seconds`, unless these are null. For each request it
prints a JSON object: `killed`, or the exit `code`, and the `seconds` that passed.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import select
import signal
import sys
import time
import traceback

from pipeline import runtime

runtime.configure(1)
ROOMS = ("stages", *(f"pipeline.{room}" for room in ("storage", "text", "linear", "collections", "evaluate", "index")))
FURTHER = (
    "torch", "matplotlib.figure", "sklearn.feature_extraction.text", "simplemma", "tqdm", "pipeline.images.inspection",
    "pipeline.images.matching", "nltk.tokenize.destructive",
)  # fmt: skip


def preload() -> None:
    for room in ROOMS:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, f"{room}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in FURTHER:
        importlib.import_module(name)


def child(stage: str, arguments: list[str]) -> None:
    import tiny_run

    try:
        tiny_run.call(stage, arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def attempt(stage: str, arguments: list[str], seconds: float | None) -> dict:
    start = time.monotonic()
    process = os.fork()
    if not process:
        child(stage, arguments)
    ended = os.pidfd_open(process)
    try:
        if not select.select([ended], [], [], seconds)[0]:
            os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
    finally:
        os.close(ended)
    code = os.waitstatus_to_exitcode(status)
    return {"killed": code == -signal.SIGKILL, "code": code, "seconds": time.monotonic() - start}


def main() -> None:
    preload()
    for line in sys.stdin:
        print(json.dumps(attempt(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
