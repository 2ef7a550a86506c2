"""A folder that is there when all of it has been written."""

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import UsageError
from pipeline.storage.batch import TEMPORARY, cannot_write


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder that becomes `output` if the block succeeds, and is removed otherwise. The caller holds the lock of
    `output`, so what has a temporary name is a killed one's, and is removed.

    Raises UsageError where `output` exists, and JointspaceError if it cannot be written.
    """
    if os.path.lexists(output):
        raise UsageError(f"{output} exists; give --output a new folder")
    for path in output.parent.glob(f".{glob.escape(output.name)}.tmp.*"):
        if TEMPORARY.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    folder = output.with_name(f".{output.name}.tmp.{os.getpid()}")
    try:
        folder.mkdir(parents=True)
        yield folder
        for path in _files(folder):
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        os.rename(folder, output)
    except OSError as error:
        raise cannot_write(output, sum(path.stat().st_size for path in _files(folder)), error, "output") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
