"""File names read from files that may be foreign: a bundle's card, a parser's commit, a study, a model's encoders.

Joined to a folder unchecked, such a name could lead anywhere.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import IntegrityError

DRIVE = re.compile(r"[A-Za-z]:")
UNPLAIN = re.compile(r"\\|(?:^|\0)(?:/|[A-Za-z]:|\0|$)|(?:^|[/\0])\.\.(?:[/\0]|$)", re.ASCII)
"""In names that NUL divides."""
SHOWN = 120  # characters of a name that an error quotes


def plain(name: Any, source: Path | str) -> str:
    """`name`, read from the file `source`, if it is relative, with forward slashes and plain parts.

    Raises IntegrityError for an absolute path, `..`, a drive, a backslash, NUL, or a value that is not a string.
    """
    usable = isinstance(name, str) and not {"\\", "\0"} & set(name) and not DRIVE.match(name)
    if not usable or any(part in ("", ".", "..") for part in name.split("/")):
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, which is not a plain name; get it anew")
    return name


def first_unplain(names: Sequence[str | None]) -> int | None:
    """The place of the first of the relative paths of photographs `names` that may not be opened or shown: one that is
    absolute or empty, or has `..`, a drive, a backslash or NUL. None of them: None."""
    there = [name for name in names if name is not None]
    joined = "\0".join(there)
    if there and (joined.count("\0") >= len(there) or UNPLAIN.search(joined)):
        return next(
            place for place, name in enumerate(names) if name is not None and ("\0" in name or UNPLAIN.search(name))
        )
    return None


def inside(folder: Path, name: Any, source: Path | str) -> Path:
    """The path of the file `name` below `folder`, as the file `source` names it; it need not exist.

    Raises IntegrityError as `plain` does, and for a path that contains a link or leads out of `folder`.
    """
    folder = Path(folder)
    path = folder.joinpath(plain(name, source))
    below = [path, *path.parents][: len(path.parts) - len(folder.parts)]
    try:
        link = next((part for part in below if part.is_symlink()), None)
        within = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # an impossible name, or a circle of links
        link, within = None, False
    if link is not None:
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, but {link} is a link; put the file itself there")
    if not within:
        raise IntegrityError(f"{source} names {repr(name)[:SHOWN]}, which cannot lie in {folder}; get it anew")
    return path
