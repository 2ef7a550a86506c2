"""Runs Snakemake, commands and scripts in forks of the process that runs the tests.

The process of the tests has already imported most modules, and imports take most of the time of a short run. The jobs
that Snakemake starts are forks too: their shells start fork_client.py, which asks the process of the tests for a fork
that runs the command. Tests about starting or killing a process start a real process instead.
"""

import gc
import importlib
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
"""Maximum number of seconds that a run may take before it is killed."""
IMPORTED = (
    "snakemake.assets", "snakemake.cli", "snakemake.report.html_reporter", "snakemake.storage", "smart_open",
    "pyarrow.parquet", "pipeline.collections.formats", "pipeline.run.runner",
    "pipeline.run.reading.results",
)  # fmt: skip
"""Modules that Snakemake, its rules and the end of a run import late. They are imported before the process forks."""


PROGRAM = Path(sys.executable).with_name("jointspace")
"""The path of `jointspace`, the program that the shell of a job starts."""


def environment() -> dict[str, str]:
    """Return the environment variables of this process for a program that imports the modules of this checkout. The
    variable that allows code of users is left out.
    """
    return {name: value for name, value in os.environ.items() if name != "JOINTSPACE_ALLOW"} | {"PYTHONPATH": str(ROOT)}


def snakemake(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run `python -m snakemake` with `arguments` in `folder`, and return the exit code, the output and the errors as
    text.
    """
    preload({"all", "--configfile"} <= set(arguments) and not {"-n", "--unlock"} & set(arguments))
    return _complete(run_snakemake, folder, arguments)


def jointspace(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run the command `jointspace` with `arguments` in `folder`, and return the exit code, the output and the errors as
    text.
    """
    return _complete(call_jointspace, folder, arguments)


def python(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run a Python script in `folder`, and return the exit code, the output and the errors as text. The first argument
    is the path of the script.
    """
    return _complete(call_script, folder, arguments)


def _complete(
    program: Callable[[list[str]], int], folder: Path, arguments: tuple[object, ...]
) -> subprocess.CompletedProcess:
    words = list(map(str, arguments))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:

        def run() -> int:
            signal.alarm(LONGEST)
            gc.freeze()  # Otherwise a garbage collection in a fork would copy shared memory.
            nothing = os.open(os.devnull, os.O_RDONLY)
            become([nothing, output.fileno(), errors.fileno()], folder, environment())
            return program(words)

        code = os.waitstatus_to_exitcode(os.waitpid(fork(run), 0)[1])
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


def fork(run: Callable[[], int]) -> int:
    """Start a child process, and return its id. The child calls `run` and exits with its result, or with 70 after an
    error.
    """
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


def become(files: list[int], folder: str | Path, environment: dict[str, str]) -> None:
    """Give this process another current folder, other environment variables, and `files` (three descriptors) as its
    standard input, output and error.
    """
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # With None, tempfile looks up TMPDIR in the new environment.
    sys.stdout = os.fdopen(1, "w", closefd=False)  # pytest has replaced sys.stdout
    sys.stderr = os.fdopen(2, "w", closefd=False)


def code_of(program: Callable[[], object]) -> int:
    """Call `program`, and return the exit code with which it would end its process. The code is 0 if `program`
    returns.
    """
    try:
        program()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run_snakemake(arguments: list[str]) -> int:
    """Run Snakemake in a child of this process, run its jobs in further children, and return its exit code. `arguments`
    are the words after `snakemake`.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0forks-{os.getpid()}")
        listener.listen()
        child = fork(lambda: call_snakemake(arguments))
        serve(listener, os.pidfd_open(child))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def call_snakemake(arguments: list[str]) -> int:
    """Run Snakemake in this process, and return its exit code. Snakemake asks the parent of this process to run its
    jobs.
    """
    from snakemake import cli
    from snakemake.shell import shell

    asking = [sys.executable, "-I", "-S", str(Path(__file__).with_name("fork_client.py")), f"forks-{os.getppid()}"]
    instead = f'function {shlex.quote(str(PROGRAM))} {{ {shlex.join(asking)} "$@"; }}; set -euo pipefail; '
    shell.prefix(instead.replace("{", "{{").replace("}", "}}"))
    sys.path.insert(0, "")  # `python -m` does the same
    sys.argv = [cli.__file__, *arguments]
    return code_of(lambda: cli.main(arguments))


def serve(listener: socket.socket, ended: int) -> None:
    """Run each command that a fork_client.py asks for at `listener`, in a child process per command, until another
    process has ended. `ended` is a descriptor (pidfd) of the other process.
    """
    jobs: list[int] = []
    while ended not in select.select([listener, ended], [], [])[0]:
        asked, _ = listener.accept()
        with asked:
            jobs.append(fork(lambda asked=asked: answer(asked)))
        jobs = [one for one in jobs if not os.waitpid(one, os.WNOHANG)[0]]


def answer(asked: socket.socket) -> int:
    """Run the command that a fork_client.py asks for over the connection `asked`. Send the exit code of the command to
    the client, and return the exit code.
    """
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
    """Run a command of jointspace in this process and return its exit code."""
    from pipeline.compute import runtime
    from stages.cli import main

    runtime.configure = limit_threads  # the loaded libraries do not read their environment variables again
    sys.argv = [str(PROGRAM), *arguments]
    return code_of(main)


def limit_threads(count: int | None = 1) -> None:
    """Set the environment variables that tell the project how many threads to use: `count`, or one if `count` is None.
    Limit the libraries that are already loaded to one thread, whatever `count` is.

    A fork does not have the threads of the libraries, so OpenMP would wait for these threads forever.
    """
    import torch
    from threadpoolctl import threadpool_limits

    from pipeline.compute.runtime import THREAD_VARIABLES

    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(count or 1)))
    threadpool_limits(1)
    torch.set_num_threads(1)


def call_script(arguments: list[str]) -> int:
    """Run a Python script in this process, and return its exit code. `arguments` has the path of the script and its
    arguments.
    """
    from pipeline.compute import runtime

    limit_threads()
    runtime.configure = limit_threads
    sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
    return code_of(lambda: runpy.run_path(arguments[0], run_name="__main__"))


@cache
def preload(commands: bool) -> None:
    """Import the modules of Snakemake and of the rules and, if `commands` is true, the modules of all commands. Forks
    of this process then have these modules.

    A run of a whole workflow uses most commands. In other runs, each command imports its modules faster by itself.
    """
    from pipeline.config.loading import load
    from stages.catalogue import declared

    for name in IMPORTED:
        importlib.import_module(name)
    load()  # Pydantic makes its validators at their first use. The forks inherit them.
    declared()
    for name in ("pipeline", "stages") if commands else ():
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            with suppress(ImportError):  # the module needs an extra that is not installed
                importlib.import_module(module.name)
    if commands:
        importlib.import_module("matplotlib.figure")
        importlib.import_module("simplemma").lemmatize("dogs", lang="en")  # This call loads the dictionary.
