"""Which photograph a name in a list means, where it is no photograph's name exactly.

The names that did not match are few, or all of them for one reason: they are gathered, looked for among all photographs
by the rules of `image_names`, and joined with the tables again.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from pipeline.collections.formats.files import CollectionFolder
from pipeline.collections.formats.remote_files import RemoteFolder
from pipeline.collections.reject_table import to_bytes, to_text
from pipeline.disk_tables import DiskTables
from pipeline.image_names import CASE, Match, Readings, Spelling, describe, is_plain
from pipeline.remote.paths import is_url

GONE = -1
"""The owner of what belongs to an image that is taken down."""
RESPELT = pa.schema([("path", pa.string()), ("file", pa.string()), ("fault", pa.string()), ("reading", pa.int64())])
RENAMED = pa.schema([("key", pa.binary()), ("image", pa.int64()), ("reading", pa.int64())])
TAKEN = pa.schema([("image", pa.int64())])


class ImageFiles:
    """The files of a collection by their names, relative to its root with forward slashes."""

    def __init__(self, folder: CollectionFolder) -> None:
        self._folder = folder
        self._root = os.fspath(folder.root)
        self.readings = Readings(folder.root)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name; of a server that lists nothing, it is not known and not doubted."""
        if isinstance(self._folder, RemoteFolder):
            return not self._folder.objects or name in self._folder.objects
        try:
            os.lstat(f"{self._root}/{name}")
        except (OSError, ValueError):
            return False
        return is_plain(name) and not name.startswith("/")

    def __iter__(self) -> Iterator[Spelling]:
        return (Spelling(name, name) for name, left_out in self._folder.files() if left_out is None)


class Takedown:
    """The `lines` of a takedown list; empty lines and comments (#) name nothing, but a photograph may be named so."""

    def __init__(self, lines: Iterable[str], readings: Readings) -> None:
        self.readings = readings
        self.lines = [line for line in dict.fromkeys(lines) if line.strip()]
        self._unmet = {line: "" for line in self.lines if not line.lstrip().startswith("#")}
        self._forms = {readings(line)[-1]: line for line in self._unmet}

    def meets(self, line: str, match: Match) -> bool:
        """Whether the images of this match are to be taken down."""
        if match.ambiguous:
            self._unmet[line] = f" (it may be {' or '.join(map(repr, match.spelt[:2]))})"
            return False
        self._unmet.pop(line, None)
        return True

    def names(self, name: str) -> bool:
        """Whether a line names what is no image's name."""
        line = self._forms.get(self.readings(name)[-1])
        if line is None or self._unmet.get(line):
            return False
        self._unmet.pop(line, None)
        return True

    def unmet(self) -> list[str]:
        """The lines that have named nothing, and why."""
        return [f"{line!r}{why}" for line, why in self._unmet.items()]


class Naming:
    """Names in the `tables` of an intake. `notes` say how those that did not match exactly were read; `ambiguous` names
    of images have the names that they may mean."""

    def __init__(self, tables: DiskTables, photographs: ImageFiles | None, takedown: Takedown) -> None:
        self._tables, self._photographs, self.takedown = tables, photographs, takedown
        self._readings = photographs.readings if photographs else takedown.readings
        self.notes: list[str] = []
        self.ambiguous: dict[bytes, str] = {}

    def find_files(self) -> None:
        """Give images the file that is there, in place of one that differs from it in its spelling; a name that may be
        several files, or lies outside, is a fault of the image."""
        self._tables.create("respelt", RESPELT)
        if self._photographs is None or not self._tables.has_rows("images"):
            return
        lost = self._values("SELECT DISTINCT path FROM images WHERE NOT there AND path IS NOT NULL")
        if not lost:
            return
        matches = dict(self._readings.match(lost, lambda: self._photographs))
        for path in lost:
            match = matches.get(path)
            if match is None and (path.startswith("/") or is_url(path)):
                fault = f"outside: {path!r} leads out of the collection; use names relative to it"
                self._tables.append("respelt", (path, None, fault, None))
            elif match and match.ambiguous:
                fault = f"ambiguous: {path!r} may be {' or '.join(map(repr, match.spelt[:2]))}"
                self._tables.append("respelt", (path, None, fault, None))
            elif match:
                self._tables.append("respelt", (path, match.spelt[0], None, match.reading))
        if not self._tables.has_rows("respelt"):
            return
        # Lists that name a photograph exactly mean another one by the same name in another case.
        exact = 'SELECT path FROM images WHERE there AND "row" IS NOT NULL AND path IS NOT NULL'
        self._tables.renew("respelt", f"FROM respelt WHERE reading IS DISTINCT FROM {CASE} OR file NOT IN ({exact})")
        total = self._values('SELECT count(DISTINCT path) FROM images WHERE "row" IS NOT NULL')[0]
        self._note(
            self._counts("SELECT reading, count(*) FROM respelt WHERE file IS NOT NULL"), total, "names of files"
        )
        self._tables.renew(
            "images",
            "SELECT images.* REPLACE (coalesce(respelt.file, images.path) AS path,"
            " coalesce(images.fault, respelt.fault) AS fault) FROM images LEFT JOIN respelt USING (path)",
        )
        self._tables.sort("images", ("seq",))

    def join_files(self) -> None:
        """In the table `owners`, records of images whose names mean the same file become one image."""
        if self._tables.has_rows("respelt"):
            files = "SELECT file FROM respelt WHERE file IS NOT NULL"
            firsts = f"SELECT path, min(seq) AS image FROM images WHERE path IN ({files}) GROUP BY path"
            self._reown(f"SELECT seq AS owner, image FROM images JOIN ({firsts}) USING (path)", "owner")

    def find_images(self, kinds: Sequence[str], given: Counter[str]) -> None:
        """In the table `owners`, what belongs to no image by its key gets the one that the key means."""
        if not self._tables.has_rows("owners") or not self._values("SELECT 1 FROM owners WHERE owner > seq LIMIT 1"):
            return
        unknown = {
            what: f"SELECT seq, key FROM {what} JOIN owners USING (seq) WHERE owner > seq"
            for what in kinds
            if self._tables.has_rows(what)
        }
        keys = {key for rows in unknown.values() for key in self._values(f"SELECT DISTINCT key FROM ({rows})")}
        self._tables.create("renamed", RENAMED)
        for name, match in self._readings.match([*map(to_text, keys)], self._images):
            if len(match.targets) > 1:
                self.ambiguous[to_bytes(name)] = f"may be {' or '.join(map(repr, match.spelt[:2]))}"
            else:
                self._tables.append("renamed", (to_bytes(name), match.targets[0], match.reading))
        if self._tables.has_rows("renamed"):
            for what, rows in unknown.items():
                means = f"FROM ({rows}) JOIN renamed USING (key) WHERE image < seq"
                self._note(self._counts(f"SELECT reading, count(*) {means}"), given[what], f"names of {what}")
                self._reown(f"SELECT seq, image {means}", "seq")
        self._tables.drop("renamed")

    def take_down(self) -> None:
        """In the table `owners`, what belongs to images that are taken down becomes that of GONE."""
        if not self.takedown.lines or not self._tables.has_rows("images"):
            return
        self._tables.create("taken", TAKEN)
        for line, match in self._readings.match(self.takedown.lines, self._every_name):
            if self.takedown.meets(line, match):
                for image in match.targets:
                    self._tables.append("taken", (image,))
        if self._tables.has_rows("taken"):
            self._reown(f"SELECT DISTINCT image AS owner, {GONE} AS image FROM taken", "owner")
        self._tables.drop("taken")

    def _images(self) -> Iterator[Spelling]:
        """The images' keys, and their paths."""
        for key, path, owner in self._rows("SELECT key, path, owner FROM images JOIN owners USING (seq)"):
            yield Spelling(to_text(key), owner)
            if path is not None and path != to_text(key):
                yield Spelling(path, owner, from_root=True)

    def _every_name(self) -> Iterator[Spelling]:
        """All names by which images may be taken down: keys, paths of files and shards, names in a shard."""
        rows = "SELECT key, path, member, owner FROM images JOIN owners USING (seq)"
        for key, path, member, owner in self._rows(rows):
            inside = f"{path}/{member}" if member else None
            yield from (Spelling(one, owner) for one in {to_text(key), path, member, inside} if one is not None)

    def _reown(self, changes: str, by: str) -> None:
        """Give records of the table `owners` the `image` that the query `changes` has for their column `by`."""
        self._tables.renew(
            "owners",
            f"SELECT owners.* REPLACE (coalesce(changed.image, owners.owner) AS owner) FROM owners"
            f" LEFT JOIN ({changes}) AS changed ON owners.{by} = changed.{by}",
        )
        self._tables.sort("owners", ("seq",))

    def _note(self, counts: Iterable[tuple[int, int]], total: int, what: str) -> None:
        self.notes += [describe(reading, count, total, what) for reading, count in counts]

    def _counts(self, sql: str) -> Iterator[tuple[int, int]]:
        return self._rows(f"{sql} GROUP BY reading ORDER BY reading")

    def _values(self, sql: str) -> list:
        return [value for (value,) in self._rows(sql)]

    def _rows(self, sql: str) -> Iterator[tuple]:
        for batch in self._tables.each(sql):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
