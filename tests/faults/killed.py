"""A command that kills itself at a write; tests run this in a fork (warm.py).

    python killed.py LAST COMMAND ARGUMENTS...

A write is a file that is opened to be written, renamed or removed below the working folder; with 0 for LAST it ends
well. It prints how many writes it began.
"""

import os
import signal
import sys

import tiny_run

from pipeline import runtime

CHANGES = ("os.rename", "os.remove", "os.link")


def main(last: int, command: str, arguments: list[str]) -> None:
    folder, count = str(tiny_run.run_of(arguments)), 0

    def watch(event: str, given: tuple) -> None:
        nonlocal count
        writes = event in CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & os.O_ACCMODE)
        if writes and str(given[0]).startswith(folder):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    tiny_run.call(command, arguments)
    print(count)


if __name__ == "__main__":
    runtime.configure(1)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
