"""The state of a collection, as far as it is visible without opening files: a change makes `ingest` run again."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.collections.formats import NAMED, SHARDS
from pipeline.collections.formats.files import CollectionFolder, is_image
from pipeline.collections.formats.remote_files import open_collection
from pipeline.collections.records import Options
from pipeline.errors import UsageError
from pipeline.remote.paths import Place
from pipeline.remote.scratch import Scratch

TEXT = ".txt"


def list_files(root: Place, form: str, given: Mapping[str, str], scratch: Scratch | None = None) -> list[Place]:
    """The lists of a collection in the format `form`, wherever they are. `given` is collection.files; `scratch` is for
    what is remote.

    Raises UsageError as the format's reader does.
    """
    return _lists(_folder(root, given, scratch), form) if form in NAMED else []


def describe_state(
    root: Place,
    form: str,
    given: Mapping[str, str],
    scratch: Scratch | None = None,
    exclude: tuple[str, ...] = (),
) -> str:
    """The number of a collection's files, and a digest of their names, sizes and modification times, or, of what is
    remote, the tags that its store gives.

    These are its photographs and lists, the texts of `text-files`, and the shards of `webdataset`, without what is left
    out. As in `ingest`, links to folders are followed only directly under the root. Raises UsageError and
    InputError as the format's reader does.
    """
    folder = _folder(root, given, scratch, exclude)
    names = lists_and_shards(folder, form, given)
    names |= {name for name, left_out in folder.files() if not left_out and is_read(name, form)}
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(os.fsencode(f"{name}\0{folder.state(name)}\0"))
    return f"{len(names)} files, {digest.hexdigest()[:16]}"


def lists_and_shards(folder: CollectionFolder, form: str, given: Mapping[str, str]) -> set[str]:
    """The names of the files that the format reads beside photographs and the texts of `text-files`."""
    if form in NAMED:
        return {folder.label(path) for path in _lists(folder, form)}
    if form not in SHARDS:
        return set()
    patterns = given.values() or [SHARDS[form]]
    return {folder.label(path) for pattern in patterns for path in _matching(folder, pattern)}


def _lists(folder: CollectionFolder, form: str) -> list[Place]:
    return [path for path in folder.locate(NAMED[form]).values() if path and folder.is_file(path)]


def is_read(name: str, form: str) -> bool:
    """Whether the format reads the file of this name as a photograph or a text."""
    suffix = os.path.splitext(name)[1].lower()
    if form in SHARDS:
        return False
    return is_image(name) or (form == "text-files" and suffix == TEXT)


def _matching(folder: CollectionFolder, pattern: str) -> list[Place]:
    if Path(pattern).is_absolute():  # for which pathlib raises an exception of its own
        raise UsageError(f"collection.files: {pattern} must be a pattern under {folder.root}; leave out the folder")
    return folder.glob(pattern)


def _folder(
    root: Place, given: Mapping[str, str], scratch: Scratch | None, exclude: tuple[str, ...] = ()
) -> CollectionFolder:
    return open_collection(root, Options(given, {}, "train", scratch=scratch, exclude=exclude))
