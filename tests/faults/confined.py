"""Readers in children that may have 3 GB of memory and five minutes, forked from a process that has imported them once.

    python confined.py < requests        a JSON list, the name of a reader and a path, a line

For each request it prints a JSON list: the child's exit code (that of a signal is negative), and what its reader said.
The reader `command` takes the arguments of a command in place of a path, and may have 12 GB of addresses.
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

from pipeline.errors import InputError, IntegrityError, JointspaceError  # noqa: E402
from pipeline.storage import manifest  # noqa: E402, F401  with which artefacts are read
from pipeline.storage.foreign import Source, open_foreign  # noqa: E402
from pipeline.storage.parameters import read_parameters  # noqa: E402
from pipeline.storage.shards import Shard  # noqa: E402
from pipeline.storage.tables import read_table  # noqa: E402

IMPORTED = (
    "pipeline.config.names", "pipeline.index.opening", "pipeline.index.search", "pipeline.index.upkeep",
    "pipeline.models.linear.cca", "pipeline.serve.gallery", "pipeline.storage.exports", "pipeline.storage.revision",
    "stages.applied", "stages.cli", "stages.index.serve",
)  # fmt: skip
MEMORY, COMMAND, SECONDS = 3 << 30, 12 << 30, 300


def read(path: Path) -> object:
    """An artefact, by its sidecar."""
    readers = {".h5": Shard, ".safetensors": read_parameters, ".parquet": read_table}
    return readers[path.suffix](path, "k")


def import_features(path: Path) -> object:
    """Vectors that were made elsewhere."""
    return open_foreign(Source(path, None, None)).blocks[0][:].sum()


def run_command(arguments: list[str]) -> object:
    """What a command prints. `serve BUNDLE` opens the bundle as `serve` does, and looks at all that it shows."""
    from stages.cli import cli

    if arguments[0] == "serve":
        return serve(Path(arguments[1]))
    with redirect_stdout(io.StringIO()) as printed:
        cli.get_command(None, arguments[0]).main(arguments[1:], standalone_mode=False)
    return printed.getvalue()


def serve(folder: Path) -> list[str]:
    from pipeline import config
    from stages.index.serve import _open_gallery

    gallery = _open_gallery(folder, None, None, config.load())
    shown = [hit.row["path"] for hit in gallery.images("a red picture", 9)]
    for row, _ in gallery.browse(9)[1]:
        with suppress(InputError):
            gallery.original(row["image_id"])
    return [*gallery.examples, *shown]


READERS = {
    "read": (lambda path: read(Path(path)), IntegrityError, MEMORY),
    "import": (lambda path: import_features(Path(path)), InputError, MEMORY),
    "command": (run_command, JointspaceError, COMMAND),
}
"""Each with the error that refuses, and its memory."""


def most_memory() -> int:
    """Bytes that this process has had in memory at most."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def work(reader: str, given: str | list[str]) -> str:
    """In the child."""
    function, refusal, memory = READERS[reader]
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        return f"accepted: {function(given)}"
    except refusal as error:
        return f"refused: {error}"


def attempt(reader: str, given: str | list[str]) -> tuple[int, str]:
    """The exit code of a child, and what its reader said."""
    told, own = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            with os.fdopen(own, "w", encoding="utf-8") as pipe:
                pipe.write(work(reader, given) + (f"\n{most_memory()}" if reader == "command" else ""))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(own)
    with open(told, encoding="utf-8") as said:
        words = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), words


if __name__ == "__main__":
    if "command" in sys.argv[1:]:  # what a command imports, without which each would take seconds
        for name in IMPORTED:
            import_module(name)
    for line in sys.stdin:
        print(json.dumps(attempt(*json.loads(line))), flush=True)
