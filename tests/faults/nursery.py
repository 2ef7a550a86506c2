"""A process that has imported everything once and forks a child for each command, which kills itself at a write.

    python nursery.py < requests    a JSON list, a command, its arguments and the number of a write (or null), a line

A write is a file that is opened to be written, renamed or removed below the working folder. For each request it prints
a JSON list: the child's exit code (that of a signal is negative), and how many writes it began.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import traceback

from pipeline import runtime

runtime.configure(1)
ROOMS = (
    "stages", "pipeline.storage", "pipeline.text", "pipeline.metrics", "pipeline.models.linear",
    "pipeline.collections", "pipeline.evaluate", "pipeline.index",
)  # fmt: skip
FURTHER = ("matplotlib.figure", "sklearn.feature_extraction.text", "pipeline.images.decode")
CHANGES = ("os.rename", "os.remove", "os.link")


def preload() -> None:
    names = list(FURTHER)
    for room in ROOMS:
        names += [module.name for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}.")]
    for name in names:
        with contextlib.suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    importlib.import_module("simplemma").lemmatize("dogs", lang="en")  # which loads its dictionary


def child(command: str, arguments: list[str], last: int | None, counted: int) -> None:
    import tiny_run

    folder = str(tiny_run.run_of(arguments))

    def watch(event: str, given: tuple) -> None:
        writes = event in CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE)
        if writes and str(given[0]).startswith(folder):
            watch.count += 1
            if watch.count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    watch.count = 0
    sys.addaudithook(watch)
    code = 0
    try:
        tiny_run.call(command, arguments)
    except BaseException:
        traceback.print_exc()
        code = 70
    os.write(counted, str(watch.count).encode())
    os._exit(code)


def main() -> None:
    preload()
    for line in sys.stdin:
        reading, writing = os.pipe()
        if not (process := os.fork()):
            os.close(reading)
            child(*json.loads(line), writing)
        os.close(writing)
        with open(reading) as pipe:
            count = int(pipe.read() or 0)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), count]), flush=True)


if __name__ == "__main__":
    main()
