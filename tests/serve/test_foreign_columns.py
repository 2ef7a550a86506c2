"""Indexes with user columns of types that `ingest` never writes: the values are shown, or the index is refused."""

import datetime
import decimal
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from served_run import make_client, open_gallery

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.search import Searcher
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.stored_index import open_index
from stages.index.search import command

D = decimal.Decimal
DAY = datetime.date(2024, 1, 31)
NOON = datetime.datetime(2024, 1, 31, 12)
TIMESTAMPS = [NOON, datetime.datetime(2024, 1, 31), None]
DAYS = [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
ROWS = 24
"""Number of images in the synthetic index."""
SUPPORTED = {
    "uint64": (pa.uint64(), [2**64 - 1, 2**63, 0], "own > 9223372036854775807", 16, 2**64 - 1),
    "uint8": (pa.uint8(), [255, 0, 7], "own > 6.5", 16, 255),
    "int8": (pa.int8(), [-128, 127, 0], "own = -128", 8, -128),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 0], "own < 0", 8, -(2**63)),
    "halffloat": (pa.float16(), [0.5, 65504.0, -2.0], "own > 0.25", 16, 0.5),
    "float": (pa.float32(), [0.5, 3e38, -2.0], "own > 1", 8, 0.5),
    "decimal32": (pa.decimal32(5, 2), [D("19.99"), D("-1.50"), D("0.00")], "own > 19", 8, 19.99),
    "decimal64": (pa.decimal64(15, 2), [D("19.99"), D("-1.50"), D("0.00")], "own >= 19.99", 8, 19.99),
    "decimal128": (pa.decimal128(38, 3), [D("1e30"), D("-1.5"), D("0")], "own < 0", 8, 1e30),
    "decimal256": (pa.decimal256(76, 0), [D(10) ** 70, D(-5), D(0)], "own > 99999999999999999999", 8, 1e70),
    "dictionary of texts": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "c"], "own in ('a', 'b')", 16, "a"),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), [5, 6, 7], "own >= 6", 16, 5),
    "string_view": (pa.string_view(), ["Ann", "a text that is longer than a view", "c"], "'TEXT' in own", 8, "Ann"),
    "large_string": (pa.large_string(), ["x", "y", "z"], "own = 'x'", 8, "x"),
    "timestamp[ns]": (pa.timestamp("ns"), [1706702400000000001, 0, -1], "own >= '2024-01-31'", 8, NOON.isoformat()),
    "timestamp[s]": (pa.timestamp("s"), TIMESTAMPS, "own > '2024-01-31'", 8, NOON.isoformat()),
    "timestamp[ms]": (pa.timestamp("ms"), TIMESTAMPS, "own > '2024-01-31'", 8, NOON.isoformat()),
    "an unknown zone": (
        pa.timestamp("us", "Foo/Bar"), [1706702400000000, 0, 1], "own >= '2024-01-31'", 8, f"{NOON.isoformat()}Z"
    ),
    "a known zone": (
        pa.timestamp("s", "Asia/Tokyo"), [1706702400, 0, 1], "own = '2024-01-31T12:00:00Z'", 8, f"{NOON.isoformat()}Z"
    ),
    "date64": (pa.date64(), DAYS, "own > '2024-01-31'", 8, f"{DAY}"),
    "date32": (pa.date32(), DAYS, "own < '0002-01-01'", 8, f"{DAY}"),
    "null": (pa.null(), [None, None, None], "own is None", 24, None),
    "texts in a list": (pa.list_(pa.string()), [["a"], [], None], "own is not None", 16, ["a"]),
    "numbers in a struct": (pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": 2}, None], "own is None", 8, {"x": 1}),
}  # fmt: skip
"""Name of a case -> the Arrow type of a column, its three values, which the rows have in turn, a condition, the number
of rows that satisfy the condition, and the first value as an answer of the API shows it."""
UNSUPPORTED = {
    "binary": (pa.binary(), [b"\xff", b"", b"a"]),
    "large_binary": (pa.large_binary(), [b"\xff", b"", b"a"]),
    "binary of one length": (pa.binary(2), [b"\xff\xfe", b"ab", b"cd"]),
    "binary_view": (pa.binary_view(), [b"\xff", b"", b"a"]),
    "dictionary of bytes": (pa.dictionary(pa.int8(), pa.binary()), [b"\xff", b"b", b"c"]),
    "a long duration": (pa.duration("s"), [2**62, 0, 1]),
    "duration[ns]": (pa.duration("ns"), [1, 0, 1]),
    "time64[ns]": (pa.time64("ns"), [1, 0, 86399999999999]),
    "time32": (pa.time32("s"), [1, 0, 86399]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], None]),
    "bytes in a list": (pa.list_(pa.binary()), [[b"\xff"], [], None]),
    "durations in a struct": (pa.struct([("x", pa.duration("s"))]), [{"x": 2**62}, None, None]),
    "uuid": (pa.uuid(), [b"\xff" * 16, None, None]),
}
"""Name of a case -> an Arrow type that answers of the API cannot show, and three values, which the rows have in
turn."""
OUT_OF_RANGE_DATES = {
    "date32": (pa.date32(), [2**30, 0, 1]),
    "date32 before the year 1": (pa.date32(), [0, -(2**30), 1]),
    "date64": (pa.date64(), [2**30 * 86400000, 0, 1]),
    "timestamp[us]": (pa.timestamp("us"), [0, 1, 2**62]),
    "timestamp[ms]": (pa.timestamp("ms", "UTC"), [0, -(2**62), 1]),
}
"""Name of a case -> an Arrow type, and three values, which the rows have in turn. One of them is a date outside of the
years 1 to 9999."""


def with_column(run: Path, folder: Path, kind: pa.DataType, values: list) -> Path:
    """Write a copy of the synthetic index of `run` to `folder`, in which the images have a column `own` of the type
    `kind`. The images have the three `values` in turn. Return `folder`."""
    bundle = IndexShard(run / "bundle")
    if isinstance(kind, pa.BaseExtensionType):
        own = kind.wrap_array(pa.array(values * (ROWS // 3), kind.storage_type))
    elif any(isinstance(value, int) for value in values) and pa.types.is_temporal(kind) and not pa.types.is_time(kind):
        own = pa.array(values * (ROWS // 3), pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    else:
        own = pa.array(values * (ROWS // 3), kind)
    writer = IndexWriter(folder)
    writer.link(bundle, but={"images.parquet"})
    writer.add_table("images.parquet", bundle.table("images").append_column("own", own))
    writer.commit(source=bundle.card)
    return folder


@pytest.mark.parametrize("name", SUPPORTED)
def test_columns_of_foreign_types_are_shown_and_searched(run: Path, tmp_path: Path, name: str) -> None:
    kind, values, where, passing, first = SUPPORTED[name]
    folder = with_column(run, tmp_path / "index", kind, values)
    assert Searcher(open_index(folder)).allowed("images", where).sum() == passing
    client = make_client(open_gallery(folder))
    for _ in range(2):
        assert client.get("/api/models").status_code == client.get("/api/models/ncca/columns").status_code == 200
        found = client.get("/api/models/ncca/images", params={"sentence": "dog", "top": 3})
        assert found.status_code == 200
        by_id = {result["image_id"]: result["columns"].get("own") for result in found.json()["results"]}
        assert by_id[0] == first
        told = client.get("/api/models/ncca/images", params={"sentence": "dog", "top": 20, "where": where})
        assert told.status_code == 200 and len(told.json()["results"]) == min(20, passing)
        assert client.get("/api/models/ncca/photographs/0/about").status_code == 200
        assert client.get("/api/models/ncca/photographs", params={"where": where}).status_code == 200
    for options in ([], ["--json"], ["--where", where]):
        result = CliRunner().invoke(command, ["--index", str(folder), "dog", *options], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    refused = 0
    for other in ("own > 'a'", "own = 3", "'a' in own", "own", "own < -1", "own in (1, 2)", "own = true"):
        try:
            Searcher(open_index(folder)).allowed("images", other)
        except UsageError as error:
            refused += 1
            assert "own" in str(error) and "nothing" not in str(error)
    assert refused >= 3  # No type can be compared with numbers, texts and truth values, so some conditions are refused.


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_columns_that_cannot_be_shown_are_refused_when_the_index_is_opened(
    run: Path, tmp_path: Path, name: str
) -> None:
    folder = with_column(run, tmp_path / "index", *UNSUPPORTED[name])
    with pytest.raises(IntegrityError, match=r"images.parquet: the column own has the type .*Write"):
        open_gallery(folder)
    with pytest.raises(IntegrityError, match="the column own has the type"):
        Searcher(open_index(folder)).images("dog", 3)


@pytest.mark.parametrize("name", OUT_OF_RANGE_DATES)
def test_dates_beyond_the_calendar_are_refused_with_their_row(run: Path, tmp_path: Path, name: str) -> None:
    kind, values = OUT_OF_RANGE_DATES[name]
    folder = with_column(run, tmp_path / "index", kind, values)
    row = next(number for number, value in enumerate(values) if abs(value) >= 2**30)
    with pytest.raises(
        IntegrityError, match=rf"images.parquet row {row}: the time in the column own is not in the years 1 to 9999"
    ):
        open_gallery(folder)
