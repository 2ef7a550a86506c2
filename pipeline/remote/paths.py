"""Places that a configuration names: folders and files of this machine, or URLs."""

import re
from pathlib import Path, PurePosixPath

WEB = ("https", "http")
"""Schemes whose servers do not say what they hold; any other is a store that fsspec knows."""
LOCAL = ("file", "local", "memory", "filecache", "simplecache", "blockcache", "cached", "data")
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class RemotePath(PurePosixPath):
    """The place of an object, or of all objects whose names begin so: `place("s3://bucket/photos") / "a.jpg"`."""

    __slots__ = ()

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    @property
    def scheme(self) -> str:
        return self.parts[0].removesuffix(":")


Place = Path | RemotePath


def is_url(text: object) -> bool:
    return URL.match(str(text)) is not None


def place(text: str) -> Place:
    """What a configuration names by `text`."""
    return RemotePath(text) if is_url(text) else Path(text)


def below(root: Place, name: str) -> Place:
    """The place `name`, relative to `root` unless it is a URL or absolute itself."""
    if is_url(name):
        return RemotePath(name)
    return Path(name) if name.startswith("/") else root / name


def check_url(text: str) -> None:
    """Raises ValueError for a URL that cannot be used."""
    scheme, rest = URL.match(text)[1], URL.sub("", text, count=1)
    if scheme in LOCAL:
        raise ValueError(f"{scheme}:// is no place of a server; name a folder, s3://, https:// or another store")
    bucket, *names = rest.rstrip("/").split("/")
    if not bucket or any(name in ("", ".", "..") for name in names):
        raise ValueError(f"{text} must name a bucket or a server, and plain names below it")
    if "@" in bucket or "?" in rest or "#" in rest:
        raise ValueError(
            "the URL must hold no credentials, query or fragment; set the variables that its library reads"
            " (docs/own-data.md)"
        )
