"""Noun phrases and regions of one split in a model's joint space, as two tables. A row of `phrases.parquet` is a noun
phrase of a sentence: `sentence_id`, `image_id`, its words `text`, its `head`, and `vector` (c,) float32. A row of
`regions.parquet` is a region: `image_id`, its `number` in the image (0 is the whole image), `x1`, `y1`, `x2`, `y2` in
original pixels, and `vector`. Both are ordered by image.
"""

from pathlib import Path
from typing import Unpack

import numpy as np
import pyarrow as pa

from pipeline.errors import InputError
from pipeline.foreign.files import read_lines
from pipeline.storage.commit import About, publish
from pipeline.storage.files import read_bytes
from pipeline.storage.tables import CORNERS, PackedTable, read_table, to_parquet

PHRASES, REGIONS = "phrases.parquet", "regions.parquet"
KIND = "embedded-phrases"


def write_phrases(folder: Path, regions: pa.Table, phrases: pa.Table, **about: Unpack[About]) -> None:
    """Publish both tables together; `about` has the `provenance` and `details`."""
    beside = {REGIONS: to_parquet(regions)}
    publish(Path(folder) / PHRASES, to_parquet(phrases), kind=KIND, rows=phrases.num_rows, beside=beside, **about)


class PhraseVectors:
    """What `embed-phrases` wrote for one `model` and `split`: the tables `regions` and `phrases` without
    their vectors, `region_vectors` (r, c), `phrase_vectors` (p, c), and `boxes` (r, 4).

    Raises IntegrityError if the tables are damaged.
    """

    def __init__(self, folder: Path) -> None:
        phrases, commit = read_table(Path(folder) / PHRASES, KIND)
        regions = PackedTable(read_bytes(Path(folder) / REGIONS), Path(folder) / REGIONS).unpack()
        self.fingerprint, details = commit.digest, commit.details
        self.model, self.split = details["model"], details["split"]
        self.dim: int = details["dim"]
        self.region_vectors, self.phrase_vectors = (self._vectors(table) for table in (regions, phrases))
        self.regions, self.phrases = (table.drop_columns("vector") for table in (regions, phrases))
        self.boxes = np.stack([regions[name].to_numpy() for name in CORNERS], axis=1)

    def _vectors(self, table: pa.Table) -> np.ndarray:
        column = table["vector"].combine_chunks()
        return column.values.to_numpy().reshape(len(table), self.dim)


def read_names(path: Path) -> dict[str, frozenset[str]]:
    """Label -> its names, in lower case, from lines of a label, a tab, and names separated by commas.

    Raises InputError naming the file, or the first line of another form.
    """
    found = {}
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, names = line.lower().partition("\t")
        known = frozenset(" ".join(name.split()) for name in names.split(",")) - {""}
        if line.strip() and not (tab and known):
            raise InputError(f"{path}, line {number}: write a label, a tab, and names separated by commas")
        if known:
            found[label.strip()] = known
    return found
