"""A process that has imported everything once and forks a child for each command, so that kills fall on its work.

    python nursery.py [whole] < requests        one JSON object, the arguments of `attempt`, a line

Each child runs one command, on one thread. For each request it prints a JSON object: `killed`, or the exit `code`; the
`seconds` that passed, and those before the first file was `writing` (null: none was); what the error `said`, if any.
With `whole`, what only the slow commands need is imported too.
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
ROOMS = (
    "stages",
    *(
        f"pipeline.{room}"
        for room in ("storage", "text", "metrics", "models.linear", "collections", "evaluate", "index")
    ),
)
FURTHER = (
    "torch", "matplotlib.figure", "sklearn.feature_extraction.text", "simplemma", "tqdm", "pipeline.images.decode",
    "pipeline.images.matching",
)  # fmt: skip
SLOW_ROOMS = tuple(f"pipeline.{room}" for room in ("images", "models.neural", "generate", "report"))
SLOW = ("torch.optim", "torchvision", "matplotlib.backends.backend_agg", "sklearn.manifold", "spacy", "gensim.models")
MARK = b"\0"
"""What a child tells its parent when it begins to write."""


def preload(rooms: tuple[str, ...], further: tuple[str, ...]) -> None:
    for room in rooms:
        package = importlib.import_module(room)
        for module in pkgutil.walk_packages(package.__path__, f"{room}."):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in further:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    importlib.import_module("simplemma").lemmatize("dogs", lang="en")  # which loads its dictionary


def tell_of_writing(folder: str, told: int) -> None:
    """Write MARK to `told` when the first file under `folder` that is no lock is opened to be written."""
    waiting = [True]

    def watch(event: str, arguments: tuple) -> None:
        if event != "open" or not waiting:
            return
        path, _, flags = arguments
        ours = isinstance(path, str) and path.startswith(folder) and not path.endswith(".lock")
        if ours and flags & (os.O_WRONLY | os.O_RDWR):
            waiting.clear()
            os.write(told, MARK)

    sys.addaudithook(watch)


def child(stage: str, arguments: list[str], told: int) -> None:
    import tiny_run

    from pipeline.errors import JointspaceError

    tell_of_writing(str(tiny_run.place_of(stage, arguments).parent), told)
    try:
        tiny_run.call(stage, arguments)
    except JointspaceError as error:
        os.write(told, str(error).encode())
        os._exit(error.exit_code)
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def attempt(stage: str, arguments: list[str], seconds: float | None = None, since_writing: bool = False) -> dict:
    """Run a command; kill it with SIGKILL after `seconds`, unless these are null, from its beginning or from when it
    begins to write."""
    told, own = os.pipe()
    start = time.monotonic()
    process = os.fork()
    if not process:
        os.close(told)
        child(stage, arguments, own)
    os.close(own)
    ended, writing, said = os.pidfd_open(process), None, b""
    waiting = [told, ended]
    while ended in waiting:
        began = writing if since_writing else start
        left = None if seconds is None or began is None else max(0, began + seconds - time.monotonic())
        ready = select.select(waiting, [], [], left)[0]
        if not ready:
            os.kill(process, signal.SIGKILL)
            seconds = None
        elif told in ready:
            data = os.read(told, 1 << 16)
            if data.startswith(MARK):
                writing = time.monotonic()
            said += data.removeprefix(MARK)
            waiting = waiting if data else [ended]
        else:
            waiting = []
    os.close(told)
    os.close(ended)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return {
        "killed": code == -signal.SIGKILL,
        "code": code,
        "seconds": time.monotonic() - start,
        "writing": None if writing is None else writing - start,
        "said": said.decode(),
    }


def main() -> None:
    preload(ROOMS, FURTHER)
    if "whole" in sys.argv[1:]:
        preload(SLOW_ROOMS, SLOW)
    for line in sys.stdin:
        print(json.dumps(attempt(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
