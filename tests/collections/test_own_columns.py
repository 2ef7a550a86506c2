"""The user's own columns get from every kind of file into the manifest with their types."""

import json
import math
import re
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import ExifTags, Image
from synthetic_run import ingest

from pipeline.collections import own_columns
from pipeline.collections.own_columns import MAX_COLUMNS, Field, OwnColumns
from pipeline.storage.manifest import IMAGES, Manifest, write_manifest

NAMES = ("a.jpg", "b.jpg", "t.jpg")
CSV = """file,price,stock,sold,taken,seen,code,shop,width
a.jpg,1.5,3,TRUE,2024-01-31,2024-01-31 10:00,007,"Ann's, north",9
b.jpg,,-1,false,2024-02-01,2024-02-01T10:00:01.5,12,,8
nobody.jpg,1,1,true,2024-02-01,2024-02-01 00:00,1,south,1
"""
WANTED = {
    "price": [1.5, None, None],
    "stock": [3, -1, None],
    "sold": [True, False, None],
    "taken": [date(2024, 1, 31), date(2024, 2, 1), None],
    "seen": [datetime(2024, 1, 31, 10), datetime(2024, 2, 1, 10, 0, 1, 500_000), None],
    "code": ["007", "12", None],
    "shop": ["Ann's, north", None, None],
    "own_width": [9, 8, None],
}


FOR_PARQUET = {
    "at": pa.array([37_800, None], pa.time32("s")),
    "long": pa.array([90_000, None], pa.duration("ms")),
    "none": pa.array([math.nan, None]),
}
"""Columns with two values each, of types that only Parquet tables can have."""


def own(table: pa.Table) -> dict[str, list]:
    return {name: column for name, column in table.to_pydict().items() if name not in IMAGES.names}


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_further_columns_of_a_table(kind: str, collection: Path, gather) -> None:
    rows = [{"file": f"images/{name}", "sentence": f"A dog {name} ."} for name in NAMES]
    for at, row in enumerate(rows):
        row |= {name: values[at] for name, values in WANTED.items()}
    # The first image gets a second row with another price, which must be ignored.
    rows.insert(1, {**rows[0], "sentence": "Another .", "price": 99.0})
    path = collection / f"table.{kind}"
    if kind == "parquet":
        table = pa.Table.from_pylist(rows).append_column("lists", pa.array([[1]] * 4))
        for name, values in FOR_PARQUET.items():
            table = table.append_column(name, values.take([0, 0, 1, 1]))
        pq.write_table(table.append_column("bytes", pa.array([b"\xff"] * 4)), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    else:
        lines = [",".join(f'"{"" if value is None else value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]))
    found = gather(collection, "table", files={"table": path.name})
    assert found.tables["sentences"].num_rows == 4
    wanted = dict(WANTED)
    if kind == "parquet":
        wanted |= {"at": ["10:30:00", None, None], "long": [90, None, None], "none": [None] * 3}
        assert found.tables["images"].schema.field("none").type == pa.float64()
    if kind == "jsonl":  # JSON has no dates.
        wanted |= {name: [value and str(value) for value in WANTED[name]] for name in ("taken", "seen")}
    assert own(found.tables["images"]) == wanted


def test_columns_go_through_the_manifest_and_change_no_shard(collection: Path, gather, tmp_path: Path) -> None:
    def manifest(name: str) -> Manifest:
        found = gather(collection)
        write_manifest(tmp_path / name, collection, [found.tables], [], found.counts, 2)
        return Manifest(tmp_path / name)

    plain = manifest("plain")
    (collection / "metadata.csv").write_text(CSV)
    first = manifest("first")
    assert own(first.images) == WANTED and plain.fingerprint != first.fingerprint
    assert [first.shard(n).fingerprints for n in range(2)] == [plain.shard(n).fingerprints for n in range(2)]
    (collection / "metadata.csv").write_text(CSV.replace("2024-02-01,", "2024-02-02,"))
    assert manifest("second").fingerprint != first.fingerprint


def test_folders_and_camera_data_become_columns(tmp_path: Path) -> None:
    taken = 0x9003
    make = 0x010F
    model = 0x0110
    cameras = {
        "2021/a.jpg": {taken: "2021:05:01 12:30:00", make: "Canon\0\0", model: "Canon EOS 80D"},
        "2022/b.jpg": {taken: "0000:00:00 00:00:00", make: "NIKON", model: "D750"},
        "2022/c.jpg": {make: "\x1b[2J", 0x0132: "2022:07:02 08:00:01"},
    }
    for number, (name, tags) in enumerate(cameras.items()):
        exif = Image.Exif()
        exif.update({tag: value for tag, value in tags.items() if tag != taken})
        exif.get_ifd(ExifTags.IFD.Exif).update({taken: tags[taken]} if taken in tags else {})
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number, 9, 9)).save(tmp_path / "photos" / name, exif=exif)

    def images(**settings: object) -> dict[str, list]:
        collection = {"default_split": "gallery", **settings}
        ingest(tmp_path / "run", tmp_path / "photos", {"collection": collection})
        return own(Manifest(tmp_path / "run/manifest").images)

    times = [datetime(2021, 5, 1, 12, 30), None, datetime(2022, 7, 2, 8, 0, 1)]
    camera = ["Canon EOS 80D", "NIKON D750", None]
    assert images() == {"folder": ["2021", "2022", "2022"], "taken": times, "camera": camera}
    assert images(own_columns=["camera"]) == {"camera": camera}
    (tmp_path / "photos/metadata.csv").write_text("file,taken\n2022/b.jpg,long ago\n")
    assert images()["taken"] == [None, "long ago", None]


def make_table(columns: OwnColumns, *images: dict) -> pa.Table:
    """Return the table of own columns of images. Each of `images` has the values of an image by column."""
    packed = [columns.pack(values) for values in images]
    columns.see(packed)
    return columns.table(packed)


def fill(*values: object, longest: int = 20) -> tuple[pa.Table, str]:
    """Return the table of a column `x` with these values, one per image, and the notes for the user about it. Texts
    longer than `longest` characters are not kept."""
    columns = OwnColumns(longest)
    table = make_table(columns, *({"x": value} for value in values))
    return table, "\n".join(columns.format_summary())


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (["1", "-20", "0"], "int64"), (["1", "2.5", "1e3", ".5"], "double"), (["1", "007"], "string"),
        (["1e999", "1"], "string"), (["9223372036854775808"], "string|double"), (["-"], "string"), (["nan"], "string"),
        (["true", "False"], "bool"), (["2024-02-29"], "date32"), (["2023-02-29"], "string"), (["0000-01-01"], "string"),
        (["2024-01-01T00:00Z", "2024-01-01 00:00+01:00"], "timestamp.us, tz=UTC"), (["2024-01-01", "soon"], "string"),
    ],
)  # fmt: skip
def test_fields_without_types_have_the_type_that_fits_all(fields: list[str], kind: str) -> None:
    table, _ = fill(*map(Field, fields), longest=40)
    assert re.match(kind, str(table.schema.field("x").type)) and table["x"].null_count == 0
    if kind == "string":
        assert table["x"].to_pylist() == fields


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        (["7,25", "12", "1.250,5"], [7.25, 12.0, 1250.5]), (["-7,5", "\u22121.250"], [-7.5, -1250.0]),
        (["1,250.5", "3"], [1250.5, 3.0]), (["1,250", "2.5"], [1250.0, 2.5]), (["1,250", "2,5"], [1.25, 2.5]),
        (["3 250,75", "3\u00a0250", "3\u202f250"], [3250.75, 3250.0, 3250.0]), (["3 250", "7"], [3250, 7]),
        (["1'250.5"], [1250.5]), (["1.250.000", "7"], [1_250_000, 7]), (["1,250,000"], [1_250_000]),
        (["1.250", "2.5"], [1.25, 2.5]), (["1,250", "2.5", "3,75"], None), (["1,250", "2,500"], None),
        (["7,25", "soon"], None), (["1,25.5"], None), (["12,34,567"], None), (["0,123", "7"], [0.123, 7.0]),
        (["24.12.2023", "1.2.2024"], [date(2023, 12, 24), date(2024, 2, 1)]),
        (["3/4/2024", "24/12/2023"], [date(2024, 4, 3), date(2023, 12, 24)]),
        (["3/4/2024", "12/24/2023"], [date(2024, 3, 4), date(2023, 12, 24)]),
        (["03/04/2024", "05/04/2024"], None), (["04/04/2024"], [date(2024, 4, 4)]),
        (["04.05.2024"], [date(2024, 5, 4)]),
        (["24/12/2023", "12/24/2023"], None), (["30.02.2024"], None), (["2023/12/24"], [date(2023, 12, 24)]),
        (["24.12.2023 9:05", "24.12.2023 18:00:01"], [datetime(2023, 12, 24, 9, 5), datetime(2023, 12, 24, 18, 0, 1)]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parts", [1, 2])
def test_numbers_and_dates_of_a_column_are_read_by_one_national_convention(
    fields: list[str], values: list | None, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If there are two parts, the column is read in two blocks.
    monkeypatch.setattr(own_columns, "BLOCK_IMAGES", len(fields))
    images = fields * parts
    table, said = fill(*map(Field, images), longest=40)
    assert table["x"].to_pylist() == (values or fields) * parts
    if values and values != [1.25, 2.5]:
        assert said.count("the column x is read as") == 1


def test_hostile_values_and_names_are_omitted_and_counted() -> None:
    table, said = fill("x" * 21, "\0", "\ud800", float("nan"), float("inf"), 10**30, [1, {"a": None}], Field(" "))
    assert table["x"].to_pylist() == [None] * 6 + ['[1, {"a": null}]', None]
    assert "4 values of own columns left out: longer than 20 characters, or not Unicode" in said
    columns = OwnColumns(20)
    names = [f"c{number}" for number in range(150)]
    table = make_table(columns, dict.fromkeys(["", " ", "a\x1b[2J", "x" * 65, "\ud800", *names], 1) | {"c0": 2})
    assert table.column_names == names[:MAX_COLUMNS] and table["c0"].to_pylist() == [2]
    assert sum(columns.left_out.values()) == 5 + 50


def test_integers_of_64_bits_are_numbers_and_longer_ones_text() -> None:
    edges = {"first": -(2**63), "last": 2**63 - 1, "before": -(2**63) - 1, "after": 2**63}
    own = OwnColumns(100)
    packed = [own.pack(edges)]
    own.see(packed)
    row = own.table(packed).to_pylist()[0]
    assert row == {**edges, "before": "-9223372036854775809", "after": "9223372036854775808"}
