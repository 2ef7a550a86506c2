"""Folders of this user's below one that many users write to."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from pipeline.errors import UsageError


def private_folder(folder: Path, remedy: str) -> Path:
    """`folder`, made if it is not there. Raises UsageError, with the `remedy`, if it is a link or another user's, or
    cannot be made."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        status = folder.lstat()
    except OSError as error:
        raise UsageError(f"{folder} cannot be made ({error.strerror}); {remedy}") from error
    if not stat.S_ISDIR(status.st_mode) or (hasattr(os, "getuid") and status.st_uid != os.getuid()):
        raise UsageError(f"{folder} is not a folder of yours; remove it, or {remedy}")
    return folder
