"""Tables that do not fit into the memory that they may have, compared with numpy's sort."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline import disk_tables
from pipeline.disk_tables import TEMPORARY, DiskTables

SCHEMA = pa.schema([("seq", pa.int64()), ("owner", pa.int64()), ("key", pa.binary()), ("text", pa.string())])
WORDS = "a brown dog runs over the green grass by the sea and a child throws it a red ball"


def rows(count: int, seed: int = 7, owners: int | None = None) -> pa.Table:
    """Scattered `owner` and `key`: each is that of two or three rows."""
    random = np.random.default_rng(seed)
    owner = random.integers(0, owners or count // 2, count)
    keys = pa.array(owner).cast(pa.string()).cast(pa.binary())
    return pa.table([np.arange(count), owner, keys, [f"{WORDS} {n}" for n in range(count)]], schema=SCHEMA)


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[DiskTables]:
    """A table of so many rows, of which a portion has so many bytes, in so much memory."""
    count, owners, portion, memory = request.param
    monkeypatch.setattr(disk_tables, "PORTION", portion)
    monkeypatch.setattr(disk_tables, "MEMORY", memory)
    monkeypatch.setattr(disk_tables, "BATCH", 1000)
    tables = DiskTables(tmp_path / "tables", {"given": SCHEMA})
    for batch in rows(count, owners=owners).to_batches(50_000):
        tables.insert("given", pa.table(batch))
    yield tables
    tables.close()
    assert not list(tmp_path.rglob("*.*"))


MANY_LEVELS = (40_000, None, 1 << 13, "128MB")
ONE_OWNER = (5_000, 1, 1 << 13, "128MB")
FEW = (900, None, 1, "128MB")
SMALL_MEMORY = (800_000, None, 1 << 22, "32MB")
"""Of 120 MB."""
SIZES = pytest.mark.parametrize(
    "filled", [MANY_LEVELS, ONE_OWNER, FEW, SMALL_MEMORY], indirect=True, ids=["levels", "one", "few", "memory"]
)


@SIZES
def test_a_table_is_sorted_whatever_its_size(
    filled: DiskTables, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    filled.sort("given", ("owner", "seq"))
    found = pa.Table.from_batches(filled.each("FROM given"))
    count, owners = request.node.callspec.params["filled"][:2]
    given = rows(count, owners=owners)
    assert found.equals(given.take(np.lexsort([given["seq"], given["owner"]])))
    spilled = [path.name for path in tmp_path.rglob("*.*")]
    assert all(map(TEMPORARY.fullmatch, spilled))
    assert bool(spilled) == (count == SMALL_MEMORY[0])
