"""Every file that lies in a collection, counted: it is read, or left out for a reason."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.collections.formats import SHARDS
from pipeline.collections.formats.files import is_image
from pipeline.collections.formats.remote_files import open_collection
from pipeline.collections.ownership import NOBODY, find_owners
from pipeline.collections.records import Options
from pipeline.collections.watching import is_read, lists_and_shards
from pipeline.disk_tables import DiskTables
from pipeline.remote.paths import Place

UNNAMED = "photographs that no list names"
BESIDE = "photographs beside the shards that the format reads"
PHOTOGRAPHS = pa.schema([("seq", pa.int64()), ("path", pa.binary())])
LONGEST_SUFFIX = 10
"""Characters; a longer one is no kind of file."""


def count_files(root: Place, form: str, options: Options, tables: DiskTables, takedown: bool = False) -> None:
    """Add the files below `root` to the tally of the `options`; `tables` are those of an intake, whose images are the
    photographs that a list or the format names. Those of a `takedown` are gone from there."""
    folder, tally = open_collection(root, options), options.tally
    named = lists_and_shards(folder, form, options.files)
    if form in SHARDS and options.files and not any("*" in pattern for pattern in options.files.values()):
        for _ in named:  # shards by name are the collection, whatever lies beside them
            tally.add(None)
        return
    tables.create("photographs", PHOTOGRAPHS)
    count = 0
    for path, reason in folder.files():
        if reason is not None or path in named or (not is_image(path) and is_read(path, form)):
            tally.add(reason)
        elif is_image(path) and form not in SHARDS:
            tables.append("photographs", (count, os.fsencode(path)))
            count += 1
        else:
            tally.add(BESIDE if is_image(path) else _not_read(path))
    unnamed = _count_unnamed(tables)
    tally.given += count
    tally.read += count - unnamed
    if unnamed:
        tally.left_out[UNNAMED + " or that are taken down" * takedown] += unnamed


def _not_read(path: str) -> str:
    suffix = Path(path).suffix.lower()
    kind = suffix if 1 < len(suffix) <= LONGEST_SUFFIX and suffix[1:].isalnum() else "others"
    return f"neither photographs nor lists that the format reads ({kind})"


def _count_unnamed(tables: DiskTables) -> int:
    """How many of the photographs are no image of the tables."""
    if not tables.has_rows("photographs"):
        return 0
    both = "SELECT path AS key, seq, false AS image FROM photographs"
    if tables.has_rows("images"):
        both += " UNION ALL SELECT encode(path), -1, true FROM images WHERE path IS NOT NULL"
    owners = (found["owner"].to_numpy() for found in find_owners(tables.together(both, "key", "seq")))
    return sum(int(np.sum(owner == NOBODY)) for owner in owners)
