"""The literal table of collection formats: name -> reader.

A reader `read(root, options)` yields the records of the collection in the folder `root`, each image before its texts
and boxes. It does not read images, and opens files only through `CollectionFolder`. It raises InputError for a file
that is useless as a whole, and UsageError for wrong `collection.files` or `collection.columns`. To add a format, write
such a function, and name it by its import path; or add it and its lists here, and its name to
`pipeline.config.collection`.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pipeline.collections.files import Exclusion
from pipeline.collections.formats import folder, published, table, vectors, webdataset
from pipeline.collections.records import Options, Record
from pipeline.config.registry import import_allowed

FORMATS: Mapping[str, Callable[[Path, Options], Iterator[Record]]] = {
    "folder": folder.read_folder,
    "flickr-token": published.read_flickr_token,
    "karpathy": published.read_karpathy,
    "coco": published.read_coco,
    "pascal1k": published.read_pascal1k,
    "table": table.read_table,
    "text-files": folder.read_text_files,
    "webdataset": webdataset.read,
    "parquet": table.read_parquet,
    vectors.FORMAT: vectors.read,
}
NAMED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "folder": folder.FOLDER,
    "flickr-token": published.FLICKR_TOKEN,
    "karpathy": published.KARPATHY,
    "coco": published.COCO,
    "pascal1k": published.PASCAL1K,
    "table": table.TABLE,
    vectors.FORMAT: vectors.VECTORS,
}
"""Format -> key of collection.files -> its usual names, for formats that read lists."""
SHARDS: Mapping[str, str] = {"webdataset": webdataset.SHARDS, "parquet": table.SHARDS}
"""Format -> the usual pattern of its shards, for formats that read photographs from within files."""


def read(form: str, root: Path, options: Options) -> Iterator[Record]:
    """The records of the collection, without the images that `collection.exclude` leaves out."""
    reader = import_allowed("format", form) if ":" in form else FORMATS[form]
    records = reader(root, options)
    return Exclusion(options.exclude).without_excluded(records, options.tally) if options.exclude else records
