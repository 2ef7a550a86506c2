"""Snakemake and our commands in forks of a process that has imported them, which is most of a short run's time.

    python warm.py < requests        one JSON object, the arguments of `attempt`, a line

For each request, a run of Snakemake, it prints the exit code. The jobs of a run are forks, too, which asking.py asks
for in place of the command that their shell would start. Other commands and scripts are forks of the tests' own
process. What depends on how a process starts, or is killed, starts its own.
"""

import atexit
import gc
import importlib
import json
import marshal
import os
import pkgutil
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 900
"""Seconds after which a run is killed."""
IMPORTED = (
    "snakemake.assets", "snakemake.cli", "snakemake.report.html_reporter", "snakemake.storage", "smart_open",
    "pyarrow.parquet", "pipeline.collections.formats", "pipeline.collections.inventory", "pipeline.run.runner",
    "stages.closing",
)  # fmt: skip
"""What Snakemake, our rules and the end of a run import late."""


PROGRAM = Path(sys.executable).with_name("jointspace")
"""What the shell of a job starts."""


def environment(root: Path = ROOT) -> dict[str, str]:
    """This process's environment as it is now, in which Python finds the checkout `root` and no code is allowed yet."""
    return {name: value for name, value in os.environ.items() if name != "JOINTSPACE_ALLOW"} | {"PYTHONPATH": str(root)}


def snakemake(folder: Path, *arguments: object, root: Path = ROOT) -> subprocess.CompletedProcess:
    """What `python -m snakemake` does with these arguments in `folder`, by the checkout `root`; its output is text."""

    def ask(request: dict[str, object]) -> int:
        server = _server(root)
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    return _complete(ask, "snakemake", folder, arguments, root)


def jointspace(folder: Path, *arguments: object, root: Path = ROOT) -> subprocess.CompletedProcess:
    """What the command `jointspace` does with these arguments in `folder`, in a fork of this process; modules that are
    not imported yet are those of the checkout `root`."""
    return _complete(lambda request: attempt(**request), "jointspace", folder, arguments, root)


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """What `python` does with a script and its arguments in `folder`, in a fork of this process."""
    return _complete(lambda request: attempt(**request), "python", folder, arguments, ROOT)


def _complete(
    run: Callable[[dict[str, object]], int], program: str, folder: Path, arguments: tuple[object, ...], root: Path
) -> subprocess.CompletedProcess:
    words = list(map(str, arguments))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        written = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
        request = {"program": program, "arguments": words, "folder": str(folder), "written": written}
        code = run({**request, "environment": environment(root)})
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess([program, *words], code, output.read(), errors.read())


@cache
def _server(root: Path) -> subprocess.Popen:
    """This module as a process, which ends when this one does."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(root)
    )
    atexit.register(server.communicate)
    return server


def attempt(program: str, arguments: list[str], folder: str, written: list[str], environment: dict[str, str]) -> int:
    """The exit code of a program in a child of this environment, whose output and errors go to the files `written`."""

    def run() -> int:
        signal.alarm(LONGEST)
        files = [os.open(os.devnull, os.O_RDONLY), *(os.open(path, os.O_WRONLY | os.O_APPEND) for path in written)]
        become(files, folder, environment)
        sys.path.insert(0, environment["PYTHONPATH"])
        return RUNS[program](arguments)

    return os.waitstatus_to_exitcode(os.waitpid(fork(run), 0)[1])


def fork(run: Callable[[], int]) -> int:
    """The process id of a child that calls `run`, whose result is its exit code."""
    if child := os.fork():
        return child
    code = 70
    try:
        code = run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def become(files: list[int], folder: str, environment: dict[str, str]) -> None:
    """Give this process its input, output and errors, its folder and its environment."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # which is looked up once
    sys.stdout = os.fdopen(1, "w", closefd=False)  # that of pytest writes elsewhere
    sys.stderr = os.fdopen(2, "w", closefd=False)


def code_of(program: Callable[[], object]) -> int:
    """The exit code with which `program` would end its process."""
    try:
        program()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run_snakemake(arguments: list[str]) -> int:
    """Snakemake in a child of this process, which forks itself for its jobs; the exit code."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0warm-{os.getpid()}")
        listener.listen()
        child = fork(lambda: call_snakemake(arguments))
        serve(listener, os.pidfd_open(child))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def call_snakemake(arguments: list[str]) -> int:
    """Snakemake in this process, whose parent runs the jobs."""
    from snakemake import cli
    from snakemake.shell import shell

    asking = [sys.executable, "-I", "-S", str(Path(__file__).with_name("asking.py")), f"warm-{os.getppid()}"]
    instead = f'function {shlex.quote(str(PROGRAM))} {{ {shlex.join(asking)} "$@"; }}; set -euo pipefail; '
    shell.prefix(instead.replace("{", "{{").replace("}", "}}"))
    sys.path[0], sys.argv = "", [cli.__file__, *arguments]  # as `python -m` has them
    return code_of(lambda: cli.main(arguments))


def serve(listener: socket.socket, ended: int) -> None:
    """Run the commands that are asked for until the process of the descriptor `ended` has ended."""
    jobs: list[int] = []
    while ended not in select.select([listener, ended], [], [])[0]:
        asked, _ = listener.accept()
        with asked:
            jobs.append(fork(lambda asked=asked: answer(asked)))
        jobs = [one for one in jobs if not os.waitpid(one, os.WNOHANG)[0]]


def answer(asked: socket.socket) -> int:
    """Run the command that asking.py asks for, and tell it the exit code."""
    message, files, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    while more := asked.recv(1 << 20):
        message += more
    become(files, *marshal.loads(message)[1:])
    code = call_jointspace(marshal.loads(message)[0])
    sys.stdout.flush()
    sys.stderr.flush()
    asked.sendall(str(code).encode())
    return code


def call_jointspace(arguments: list[str]) -> int:
    """One of our commands in this process."""
    from pipeline import runtime
    from stages.cli import main

    runtime.configure = limit_threads  # the libraries are there, and do not look at their variables again
    sys.argv = [str(PROGRAM), *arguments]
    return code_of(main)


def limit_threads(count: int | None = 1) -> None:
    """The threads of libraries that are there already: one, where a fork has lost those that they had."""
    import torch
    from threadpoolctl import threadpool_limits

    from pipeline.runtime import THREAD_VARIABLES

    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count or 1)))
    threadpool_limits(count or 1)
    torch.set_num_threads(count or 1)


def call_script(arguments: list[str]) -> int:
    """A script of Python in this process."""
    from pipeline import runtime

    limit_threads()
    runtime.configure = limit_threads
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
    return code_of(lambda: runpy.run_path(arguments[0], run_name="__main__"))


RUNS = {"snakemake": run_snakemake, "jointspace": call_jointspace, "python": call_script}


def runs_commands(arguments: list[str], **_: object) -> bool:
    """Whether a run needs most of our modules: that of `all` by a configuration, but for a dry one."""
    return {"all", "--configfile"} <= set(arguments) and not {"-n", "--unlock"} & set(arguments)


@cache
def preload() -> None:
    """Import all that commands import; of a few commands each imports its own sooner."""
    for name in ("pipeline", "stages"):
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            with suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    importlib.import_module("matplotlib.figure")
    importlib.import_module("simplemma").lemmatize("dogs", lang="en")  # which loads its dictionary
    gc.freeze()  # else each child would copy what its collector looks at


def main() -> None:
    from pipeline import runtime

    runtime.configure()
    for name in IMPORTED:
        importlib.import_module(name)
    from pipeline.config.loading import load
    from stages.catalogue import declared

    load()  # pydantic makes its validators when they are first used
    declared()
    for line in sys.stdin:
        request = json.loads(line)
        if runs_commands(**request):
            preload()
        print(attempt(**request), flush=True)


if __name__ == "__main__":
    main()
