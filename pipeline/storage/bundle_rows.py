"""What every row of a bundle's tables must be, whoever made the bundle: checked as the rows are read, by one function.

A path is relative and plain, so that it names a photograph below the folder of the photographs and nothing else. An id
is a name and no size: it is below `ID_LIMIT`, and whoever looks rows up by id does not count up to the largest.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError
from pipeline.storage.files import SHOWN, first_unplain

ID_LIMIT = 1 << 31
IDS = ("image_id", "sentence_id")
PLACES = ("path", "member")
REMEDY = "get the bundle anew from somebody whom you trust"


def require_plain_rows(path: Path, rows: pa.Table, first: int) -> None:
    """Raises IntegrityError naming the first row of the table at `path` that is not as it must be; `rows` are some of
    its columns, from row `first` on."""
    for name, limit in (*((name, ID_LIMIT) for name in IDS), ("offset", 1 << 62), ("size", 1 << 62)):
        if name in rows.column_names:
            _require_numbers(path, name, rows[name], limit, first)
    for name in PLACES:
        if name not in rows.column_names:
            continue
        names = rows[name].to_pylist()
        if (place := first_unplain(names)) is not None:
            raise IntegrityError(
                f"{path} row {first + place}: its {name} {repr(names[place])[:SHOWN]} is not a plain relative name;"
                f" {REMEDY}"
            )


def require_distinct(path: Path, table: pa.Table, name: str) -> None:
    """Raises IntegrityError naming a row whose id in the column `name` another row has too."""
    ids = table[name].to_numpy()
    first = np.unique(ids, return_index=True)[1]
    if len(first) < len(ids):
        row = int(np.setdiff1d(np.arange(len(ids)), first)[0])
        raise IntegrityError(f"{path} row {row}: its {name} {ids[row]} is that of another row; {REMEDY}")


def _require_numbers(path: Path, name: str, column: pa.ChunkedArray, limit: int, first: int) -> None:
    """Every row has an id; other numbers may be missing."""
    numbers = column.to_numpy()  # of a column with nulls, floats with NaN
    missing = np.isnan(numbers) if column.null_count else np.zeros(len(numbers), bool)
    wrong = (numbers < 0) | (numbers >= limit) | (missing if name in IDS else False)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = "null" if missing[row] else int(numbers[row])
        raise IntegrityError(f"{path} row {first + row}: its {name} is {value}, not from 0 to {limit - 1}; {REMEDY}")
