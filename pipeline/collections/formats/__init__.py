"""The literal table of collection formats: name -> reader.

A reader `read(root, options)` yields the records of the collection in the folder `root`, each image before its texts
and boxes. It does not read images, and opens files only through `CollectionFolder`. It raises InputError for a file
that is useless as a whole, and UsageError for wrong `collection.files` or `collection.columns`. To add a format, write
a module with such a function, and add it and its lists here, and its name to `pipeline.config.Collection.format`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.collections.exclusion import Exclusion
from pipeline.collections.formats import (
    coco,
    flickr_token,
    folder,
    karpathy,
    parquet,
    pascal1k,
    table,
    text_files,
    webdataset,
)
from pipeline.collections.records import Options, Record
from pipeline.remote.paths import Place

FORMATS: Mapping[str, Callable[[Path, Options], Iterator[Record]]] = {
    "folder": folder.read,
    "flickr-token": flickr_token.read,
    "karpathy": karpathy.read,
    "coco": coco.read,
    "pascal1k": pascal1k.read,
    "table": table.read,
    "text-files": text_files.read,
    "webdataset": webdataset.read,
    "parquet": parquet.read,
}
NAMED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "folder": folder.FILES,
    "flickr-token": flickr_token.FILES,
    "karpathy": karpathy.FILES,
    "coco": coco.FILES,
    "pascal1k": pascal1k.FILES,
    "table": table.FILES,
}
"""Format -> key of collection.files -> its usual names, for formats that read lists."""
SHARDS: Mapping[str, str] = {"webdataset": webdataset.SHARDS, "parquet": parquet.SHARDS}
"""Format -> the usual pattern of its shards, for formats that read photographs from within files."""


def read(form: str, root: Place, options: Options) -> Iterator[Record]:
    """The records of the collection, without the images that `collection.exclude` leaves out."""
    records = FORMATS[form](root, options)
    return Exclusion(options.exclude).without_excluded(records, options.tally) if options.exclude else records
