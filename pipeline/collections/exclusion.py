"""What lies in a collection's folders and is no part of it: what a NAS, Windows or macOS puts there, hidden files, and
what `collection.exclude` names."""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate

from pipeline.collections.records import ImageRecord, Record, Reject, Tally

NAS = "thumbnails and deleted files of a NAS"
WINDOWS = "of Windows"
MACOS = "of macOS"
NAMES = {
    **dict.fromkeys(("@eadir", "#recycle", "#snapshot", "@tmp", "@sharebin", "@synoresource"), NAS),
    **dict.fromkeys((".@__thumb", "@__thumb", "@recycle", "@recently-snapshot", ".@upload_cache"), NAS),
    **dict.fromkeys((".snapshot", ".snapshots", "~snapshot", ".zfs", ".recycle", "network trash folder"), NAS),
    **dict.fromkeys(("$recycle.bin", "recycler", "system volume information", "found.000"), WINDOWS),
    **dict.fromkeys(("thumbs.db", "thumbs.db:encryptable", "ehthumbs.db", "ehthumbs_vista.db", "desktop.ini"), WINDOWS),
    **dict.fromkeys(("__macosx", ".trashes", ".trash", ".appledouble", ".appledb", ".appledesktop"), MACOS),
    **dict.fromkeys(
        (".spotlight-v100", ".fseventsd", ".documentrevisions-v100", ".temporaryitems", ".ds_store"), MACOS
    ),
    **dict.fromkeys(("temporary items", "icon\r", ".localized", ".volumeicon.icns", ".picasaoriginals"), MACOS),
    "lost+found": "of a Linux file system",
    **dict.fromkeys(("dataset_info.json", "dataset_infos.json"), "of Hugging Face's datasets"),
}
"""Names of files and folders in lower case -> whose they are."""
PATTERNS = {
    "._*": "AppleDouble, of macOS",
    ".trash-*": "deleted files, of Linux",
    "*@synoeastream": NAS,
    "*@synoresource": NAS,
    "synofile_thumb_*": NAS,
    "synophoto_thumb_*": NAS,
    "~$*": "open documents of Microsoft Office",
}
"""Patterns of such names, likewise."""
SUSPECT = re.compile(r"^[.~s]|@")
"""What is found in all that PATTERNS or HIDDEN may be of: nearly no name of a photograph has it."""
BY_PATTERN = "collection.exclude "
HIDDEN = "hidden (a name that begins with a dot)"


class Exclusion:
    """Decides what is left out, by the patterns of `collection.exclude` too: one without a slash is compared with the
    name of each file and folder, one with a slash with the path from the collection's root."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        of_paths = [pattern for pattern in patterns if "/" in pattern.strip("/")]
        self._names = [pattern for pattern in patterns if pattern not in of_paths]
        self._paths = {pattern: re.compile(path_expression(pattern.strip("/"))) for pattern in of_paths}

    def of_name(self, name: str) -> str | None:
        """Why a file or folder of this name is left out, whatever folder it is in; None if it is not."""
        folded = name.lower()
        if folded in NAMES:
            return f"{name.strip()} ({NAMES[folded]})"
        if SUSPECT.search(folded):
            if pattern := next((pattern for pattern in PATTERNS if fnmatchcase(folded, pattern)), None):
                return f"{pattern} ({PATTERNS[pattern]})"
            if name.startswith("."):
                return HIDDEN
        return next((BY_PATTERN + pattern for pattern in self._names if fnmatchcase(name, pattern)), None)

    def of_path(self, path: str) -> str | None:
        """Why the file or folder at `path`, relative to the root, is left out if the folders above are not."""
        if reason := self.of_name(path.rpartition("/")[2]):
            return reason
        patterns = (pattern for pattern, expression in self._paths.items() if expression.fullmatch(path))
        return next((BY_PATTERN + pattern for pattern in patterns), None)

    def of_whole_path(self, path: str) -> str | None:
        """Why the file at `path` is left out, for itself or for a folder above it."""
        parts = path.split("/")
        return next(filter(None, (self.of_path("/".join(parts[: depth + 1])) for depth in range(len(parts)))), None)

    def excludes(self, path: str) -> str | None:
        """The reason if it is a pattern of the user's that leaves out the file at `path`."""
        reason = self.of_whole_path(path) if self._names or self._paths else None
        return reason if reason and reason.startswith(BY_PATTERN) else None

    def without_excluded(self, records: Iterable[Record], tally: Tally) -> Iterator[Record]:
        """`records` without the images that a list names although a pattern of the user's leaves them out, and without
        what belongs to them."""
        gone: set[str] = set()
        for record in records:
            if isinstance(record, Reject):
                yield record
                continue
            if isinstance(record, ImageRecord) and (reason := self.excludes(record.path)):
                if record.key not in gone:
                    tally.notes[f"images of a list are left out with their texts: {reason}"] += 1
                gone.add(record.key)
            if record.key not in gone:
                yield record


def path_expression(pattern: str) -> str:
    """A pattern of pathlib's as a regular expression."""
    parts = []
    for part in pattern.split("/"):
        if part == "**":
            parts.append("(?:.*/)?")
            continue
        expression = translate(part).removeprefix("(?s:").removesuffix(r")\Z")
        parts.append(expression.replace(".*", "[^/]*") + "/")
    return "".join(parts).removesuffix("/")
