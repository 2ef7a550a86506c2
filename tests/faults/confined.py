"""Commands in children that may have 12 GB of addresses and five minutes, forked from a process that has imported what
they need once.

    python confined.py < requests        a JSON list of the arguments of a command, a line

For each request it prints a JSON list: the child's exit code (that of a signal is negative), and what the command
said, with the most memory that it took, in bytes, on the last line. `serve BUNDLE` opens the bundle as `serve` does,
and looks at all that it shows.
"""

import io
import json
import os
import resource
import signal
import sys
import traceback
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path

from pipeline import runtime

runtime.configure(1)

from pipeline.errors import InputError, JointspaceError  # noqa: E402

IMPORTED = (
    "pipeline.config.loading", "pipeline.index.gallery", "pipeline.index.search", "pipeline.index.upkeep",
    "pipeline.models.linear.cca", "pipeline.serve.gallery", "pipeline.storage.exports", "pipeline.storage.bundles",
    "stages.applied", "stages.cli", "stages.index.serve",
)  # fmt: skip
MEMORY, SECONDS = 12 << 30, 300


def run_command(arguments: list[str]) -> object:
    """What a command prints."""
    from stages.cli import cli

    if arguments[0] == "serve":
        return serve(Path(arguments[1]))
    with redirect_stdout(io.StringIO()) as printed:
        cli.get_command(None, arguments[0]).main(arguments[1:], standalone_mode=False)
    return printed.getvalue()


def serve(folder: Path) -> list[str]:
    from pipeline.config import loading
    from stages.index.serve import _open_gallery

    gallery = _open_gallery(folder, None, None, loading.load(), None, None)
    shown = [hit.row["path"] for hit in gallery.images("a red picture", 9)]
    for row, _ in gallery.browse(9)[1]:
        with suppress(InputError):
            gallery.original(row["image_id"])
    return [*gallery.examples, *shown]


def most_memory() -> int:
    """Bytes that this process has had in memory at most."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def child(arguments: list[str], told: int) -> None:
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    code = 1
    try:
        try:
            said = f"accepted: {run_command(arguments)}"
        except JointspaceError as error:
            said = f"refused: {error}"
        os.write(told, f"{said}\n{most_memory()}".encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main() -> None:
    for name in IMPORTED:
        import_module(name)
    for line in sys.stdin:
        reading, writing = os.pipe()
        if not (process := os.fork()):
            child(json.loads(line), writing)
        os.close(writing)
        with open(reading, encoding="utf-8") as pipe:
            said = pipe.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), said]), flush=True)


if __name__ == "__main__":
    main()
