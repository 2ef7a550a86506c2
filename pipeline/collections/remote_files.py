"""A collection in an object store or behind a web server, which answers as a folder does."""

import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from pipeline.collections.exclusion import path_expression
from pipeline.collections.files import CollectionFolder
from pipeline.collections.records import Options
from pipeline.errors import UsageError
from pipeline.remote import stores
from pipeline.remote.paths import WEB, Place, RemotePath, is_url
from pipeline.remote.stores import Version

BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
MOST_SHARDS = 1_000_000


def open_collection(root: Place, options: Options) -> CollectionFolder:
    return (RemoteFolder if isinstance(root, RemotePath) else CollectionFolder)(root, options)


class RemoteFolder(CollectionFolder):
    """What lies below the URL `root`. A web server lists nothing: there, names come from lists alone, and those of tar
    shards from a range in braces, `shard-{00000..00099}.tar`."""

    def _begin(self) -> None:
        if self._listed and not self.objects:
            raise UsageError(f"{self.root} holds nothing; set data_root to the place of your collection")

    @property
    def _listed(self) -> bool:
        return self.root.scheme not in WEB

    @cached_property
    def objects(self) -> dict[str, Version]:
        """All that the store lists, by names relative to the root."""
        return stores.find(self.root) if self._listed else {}

    @cached_property
    def _folders(self) -> dict[tuple[str, ...], list[str]]:
        """The names in each folder without what is left out, in the order in which a folder is walked."""
        names_in: dict[tuple[str, ...], list[str]] = {}
        for name, reason in self.files():
            if reason is None:
                *folders, last = name.split("/")
                names_in.setdefault(tuple(folders), []).append(last)
        return {folders: sorted(names_in[folders]) for folders in sorted(names_in)}

    def exists(self, path: Place) -> bool:
        if isinstance(path, Path) or not path.is_relative_to(self.root) or not self._listed:
            return super().exists(path)
        name = self.label(path)
        return name in self.objects or self.is_dir(path)

    def is_dir(self, path: Place) -> bool:
        if isinstance(path, Path):
            return path.is_dir()
        parts = path.relative_to(self.root).parts
        return not parts or any(folders[: len(parts)] == parts for folders in self._folders)

    def glob(self, pattern: str) -> list[Place]:
        if not self._listed:
            names = _expanded(pattern)
            names = names if len(names) > 1 else [name for name in names if self._is_named(name)]
            return [self.root / name for name in names]
        folders = {"/".join(parts[:depth]) for parts in self._folders for depth in range(1, len(parts) + 1)}
        names = set(filter(re.compile(path_expression(pattern)).fullmatch, {*self.objects, *folders}))
        if not names or "*" in pattern:
            names |= set(filter(re.compile(path_expression(pattern), re.IGNORECASE).fullmatch, self.objects))
        return sorted(self.root / name for name in names if not self._left_out(name, pattern))

    def _is_named(self, name: str) -> bool:
        """Whether a web server has what a format usually names so; folders it does not show."""
        return "*" not in name and "." in name and super().exists(self.root / name)

    def walk(self, folder: Place | None = None) -> Iterator[tuple[str, list[str]]]:
        above = (folder or self.root).relative_to(self.root).parts
        for folders, names in self._folders.items():
            if folders[: len(above)] == above:
                yield "/".join(folders[len(above) :]), names

    def has(self, name: str) -> bool:
        """Of a server that lists nothing, it is not known and not doubted."""
        return not self.objects or name in self.objects

    def files(self) -> Iterator[tuple[str, str | None]]:
        for name in self.objects:
            yield name, self.exclusion.of_whole_path(name)

    def lacks(self, what: str, remedy: str) -> UsageError:
        if self._listed:
            return super().lacks(what, remedy)
        return UsageError(
            f"{self.root} has no {what}: {remedy}; a web server lists nothing, so name tar shards as a range,"
            " shard-{00000..00099}.tar"
        )

    def version(self, path: RemotePath) -> Version | None:
        """What the list says of an object."""
        return self.objects.get(self.label(path)) if path.is_relative_to(self.root) else None

    def state(self, name: str) -> str:
        if Path(name).is_absolute() or is_url(name):
            return super().state(name)
        return str(self.objects.get(name) or self._scratch.fetched.get(str(self.root / name)))

    def open_below(self, name: str, most_bytes: float) -> BinaryIO:
        return self._open_remote(self.root / name, most_bytes)


def _expanded(pattern: str) -> list[str]:
    """The names that a range in braces stands for. Raises UsageError for too many."""
    if (braces := BRACES.search(pattern)) is None:
        return [pattern]
    first, last = int(braces[1]), int(braces[2])
    if last - first >= MOST_SHARDS:
        raise UsageError(f"collection.files: {pattern} names more than {MOST_SHARDS} shards; name fewer")
    width = len(braces[1])
    return [f"{pattern[: braces.start()]}{n:0{width}d}{pattern[braces.end() :]}" for n in range(first, last + 1)]
