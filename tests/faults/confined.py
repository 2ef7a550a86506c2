"""A command with 12 GB of addresses more than it has, and five minutes; tests run this in a fork (warm.py).

    python confined.py COMMAND ARGUMENTS...

It prints what the command said, with the most memory that it took, in bytes, on the last line. `serve BUNDLE` opens the
bundle as `serve` does, and looks at all that it shows.
"""

import io
import resource
import signal
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

from pipeline import runtime
from pipeline.errors import InputError, JointspaceError

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


def kilobytes(name: str) -> int:
    """Of this process, as the kernel counts them."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


if __name__ == "__main__":
    runtime.configure(1)
    signal.alarm(SECONDS)
    most = (kilobytes("VmSize") << 10) + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        said = f"accepted: {run_command(sys.argv[1:])}"
    except JointspaceError as error:
        said = f"refused: {error}"
    print(said, kilobytes("VmHWM") << 10, sep="\n", end="")
