"""Snakemake in forks of a process that has imported it and what our rules import, which is most of a dry run's time.

    python warm.py < requests        one JSON object, the arguments of `attempt`, a line

For each request it prints the exit code. What depends on how a process starts, or on another checkout, starts its own.
"""

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST = 900
"""Seconds after which a run is killed."""
IMPORTED = (
    "snakemake.assets", "snakemake.cli", "snakemake.report.html_reporter", "snakemake.storage", "smart_open",
    "pyarrow.parquet", "pipeline.collections.formats", "pipeline.collections.watching", "pipeline.run.workflow",
    "stages.closing",
)  # fmt: skip
"""What Snakemake, our rules and the end of a run import late."""


def environment() -> dict[str, str]:
    """This process's environment as it is now, in which Python finds this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def snakemake(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """What `python -m snakemake` does with these arguments in `folder`, in `environment`; its output is text."""
    server, words = _server(), list(map(str, arguments))
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        written = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (output, errors)]
        request = {"arguments": words, "folder": str(folder), "written": written, "environment": environment()}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        for file in (output, errors):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, output.read(), errors.read())


@cache
def _server() -> subprocess.Popen:
    """This module as a process, which ends when this one does."""
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    )
    atexit.register(server.communicate)
    return server


def attempt(arguments: list[str], folder: str, written: list[str], environment: dict[str, str]) -> int:
    """The exit code of Snakemake in a child of this environment, whose output and errors go to the files `written`."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 70
    try:
        signal.alarm(LONGEST)
        for number, path in enumerate((os.devnull, *written)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY), number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None  # which is looked up once
        code = run(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(arguments: list[str]) -> int:
    """Snakemake in this process; its exit code."""
    from snakemake import cli

    sys.path[0], sys.argv = "", [cli.__file__, *arguments]  # as `python -m` has them
    try:
        cli.main(arguments)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def main() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    from pipeline.config import load
    from stages.catalogue import declared

    load()  # pydantic makes its validators when they are first used
    declared()
    for line in sys.stdin:
        print(attempt(**json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
