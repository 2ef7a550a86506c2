"""Readers in children that may have 3 GB of memory and five minutes, forked from a process that has imported them once.

    python confined.py < requests        a JSON list, the name of a reader and a path, a line

For each request it prints a JSON list: the child's exit code, and what its reader said.
"""

import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path

from pipeline.errors import InputError, IntegrityError
from pipeline.storage import manifest  # noqa: F401  with which artefacts are read
from pipeline.storage.foreign import Source, open_foreign
from pipeline.storage.parameters import read_parameters
from pipeline.storage.shards import Shard
from pipeline.storage.tables import read_table

MEMORY, SECONDS = 3 << 30, 300


def read(path: Path) -> object:
    """An artefact, by its sidecar."""
    readers = {".h5": Shard, ".safetensors": read_parameters, ".parquet": read_table}
    return readers[path.suffix](path, "k")


def import_features(path: Path) -> object:
    """Vectors that were made elsewhere."""
    return open_foreign(Source(path, None, None)).blocks[0][:].sum()


READERS = {"read": (read, IntegrityError), "import": (import_features, InputError)}
"""Each with the error that refuses."""


def work(reader: str, path: str) -> str:
    """In the child."""
    signal.alarm(SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    function, refusal = READERS[reader]
    try:
        return f"accepted: {function(Path(path))}"
    except refusal as error:
        return f"refused: {error}"


def attempt(reader: str, path: str) -> tuple[int, str]:
    """The exit code of a child, and what its reader said."""
    told, own = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(own, work(reader, path).encode())
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
    for line in sys.stdin:
        print(json.dumps(attempt(*json.loads(line))), flush=True)
