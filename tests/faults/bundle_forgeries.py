"""Bundles that were made up: every file is what the card says, and some of them are not what their readers need."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

from pipeline.storage.json_files import CHECK, to_json

GONE = object()
VALUES = (GONE, None, -1, 10**12, 2**70, 1e300, True, "x", "", [], ["a"], {})
"""What a value of a JSON file is replaced by."""
JSON = (
    "card.json", "model.json", "vocabulary.json", "text_encoders/tfidf/model.json", "encoders/colour/model.json",
)  # fmt: skip
ARRAYS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "half": lambda x: np.atleast_1d(x)[: x.size // 2], "flat": lambda x: x.reshape(-1), "more axes": lambda x: x[None],
    "nothing": lambda x: np.empty(0, x.dtype), "not a number": lambda x: np.full(x.shape, np.nan, np.float32),
    "twice": lambda x: np.concatenate([np.atleast_1d(x)] * 2), "negative": lambda x: -x,
}  # fmt: skip

Forgery = Callable[[Path], object]


def seal(folder: Path, *names: str) -> None:
    """Have the card vouch for these files as they are now."""
    card = json.loads((folder / "card.json").read_text())
    for name in names:
        data = (folder / name).read_bytes()
        card["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    card.pop(CHECK)
    (folder / "card.json").write_bytes(to_json(card))


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The places of a JSON value; of a list only the first."""
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in parts:
        yield from leaves(part, (*path, key))


def told(folder: Path, name: str, path: tuple, new: object) -> None:
    """Put `new` at a place of a JSON file."""
    value = whole = json.loads((folder / name).read_text())
    whole.pop(CHECK, None)
    for key in path[:-1]:
        value = value[key]
    if new is GONE:
        value.pop(path[-1])
    else:
        value[path[-1]] = copy.deepcopy(new)
    (folder / name).write_bytes(to_json(whole))
    if name != "card.json":
        seal(folder, name)


def json_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    value = json.loads((bundle / name).read_text())
    value.pop(CHECK, None)
    return {
        f"{name} {'.'.join(map(str, path))} {'gone' if new is GONE else new!r}": partial(
            told, name=name, path=path, new=new
        )
        for path in leaves(value)
        if path
        for new in VALUES
    }


def _array(folder: Path, name: str, key: str, change: Callable[[np.ndarray], np.ndarray] | None) -> None:
    """Another array in a file of arrays, or none."""
    arrays = safetensors.numpy.load_file(folder / name)
    array = arrays.pop(key)
    if change is not None:
        arrays[key] = np.ascontiguousarray(change(array))
    data = safetensors.numpy.save(arrays)
    (folder / name).write_bytes(data)
    if name == "model.safetensors":  # which has a sidecar of its own
        told(folder, "model.json", ("bytes",), len(data))
        told(folder, "model.json", ("sha256",), hashlib.sha256(data).hexdigest())
    seal(folder, name)


def array_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    return {
        f"{name} {key} {what}": partial(_array, name=name, key=key, change=change)
        for key in safetensors.numpy.load_file(bundle / name)
        for what, change in {**ARRAYS, "gone": None}.items()
    }


def _table(folder: Path, modality: str, change: Callable[[pa.Table], pa.Table], rows: int = 8192) -> None:
    name = f"{modality}.parquet"
    pq.write_table(change(pq.read_table(folder / name)), folder / name, row_group_size=rows)
    seal(folder, name)


def _not_text(table: pa.Table) -> pa.Table:
    """Strings that are not UTF-8."""
    column = "text" if "text" in table.column_names else "path"
    raw = pa.array([b"\xff\xfe"] * len(table), pa.binary())
    strings = pa.StringArray.from_buffers(len(table), *raw.buffers()[1:])
    return table.set_column(table.column_names.index(column), column, strings)


def table_forgeries(bundle: Path, modality: str) -> dict[str, Forgery]:
    changes: dict[str, Callable[[pa.Table], pa.Table]] = {
        "half": lambda t: t.slice(0, len(t) // 4), "no rows": lambda t: t.slice(0, 0), "not text": _not_text,
        "no columns": lambda t: pa.table({}),
    }  # fmt: skip
    for name in pq.read_schema(bundle / f"{modality}.parquet").names:
        changes[f"without {name}"] = lambda t, name=name: t.drop_columns([name])
        changes[f"numbers for {name}"] = lambda t, name=name: t.set_column(
            t.column_names.index(name), name, pa.array(np.arange(len(t), dtype=np.float32))
        )
    forge = partial(_table, modality=modality)
    found = {f"{modality} {what}": partial(forge, change=change) for what, change in changes.items()}
    return found | {f"{modality} in other groups": partial(forge, change=lambda t: t, rows=5)}


def _index(folder: Path, name: str, factory: str, dim: int | None = None, first: int = 0) -> None:
    """As many random vectors as the card says, numbered from `first` on."""
    card = json.loads((folder / "card.json").read_text())[name]
    index = faiss.index_factory(dim or card["dim"], factory, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).standard_normal((max(card["count"], 400), index.d)).astype(np.float32)
    index.train(vectors)
    ids = np.arange(card["count"])
    index.add_with_ids(vectors[ids], ids + first) if first else index.add(vectors[ids])
    (folder / f"{name}.faiss").write_bytes(bytes(faiss.serialize_index(index)))
    seal(folder, f"{name}.faiss")


def index_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    """One that numbers rows which are not there; and all of other dimensions, as the card says, too."""

    def widen(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        for part in (part for part in ("images", "sentences", "regions", "words") if f"{part}.faiss" in card["files"]):
            _index(folder, part, "Flat", 2 * card["dim"])
            told(folder, "card.json", (part, "dim"), 2 * card["dim"])
        told(folder, "card.json", ("dim",), 2 * card["dim"])

    return {
        f"{name} of far rows": lambda folder: _index(folder, name, "IDMap,Flat", first=10**9),
        f"{name} of far rows in lists": lambda folder: _index(folder, name, "IVF4,Flat", first=10**9),
        f"{name} of other dimensions, as the card": widen,
    }


def all_forgeries(bundle: Path) -> dict[str, Forgery]:
    found: dict[str, Forgery] = {}
    for name in filter(lambda name: (bundle / name).exists(), JSON):
        found |= json_forgeries(bundle, name)
    sets = (bundle / "fragments.safetensors").exists()
    for name in ("model.safetensors", *(["fragments.safetensors"] if sets else [])):
        found |= array_forgeries(bundle, name)
    for modality in ("images", "sentences"):
        found |= table_forgeries(bundle, modality)
    for name in ("regions", "words") if sets else ("images", "sentences"):
        found |= index_forgeries(bundle, name)
    return found


def _put_index(folder: Path, index: faiss.Index) -> None:
    """Have `index` be that of the images, by the card too."""
    (folder / "images.faiss").write_bytes(bytes(faiss.serialize_index(index)))
    told(folder, "card.json", ("images", "count"), index.ntotal)
    seal(folder, "images.faiss")


def inverted(folder: Path) -> faiss.IndexIVFFlat:
    """An index of one list, of as many vectors as the bundle has images."""
    card = json.loads((folder / "card.json").read_text())["images"]
    vectors = np.random.default_rng(0).standard_normal((card["count"], card["dim"])).astype(np.float32)
    index = faiss.index_factory(card["dim"], "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    return index


def lists_elsewhere(folder: Path, victim: Path) -> None:
    """The lists of the index in the file `victim`."""
    index = inverted(folder)
    mapped = faiss.OnDiskInvertedLists(1, index.code_size, str(victim))
    mapped.merge_from_1(index.invlists)
    index.replace_invlists(mapped, False)
    faiss.class_wrappers.add_to_referenced_objects(index, mapped)
    _put_index(folder, index)


def unknown_type(folder: Path, victim: Path) -> None:
    """Inside of a known one."""
    index = inverted(folder)
    inner = faiss.IndexIVFIndependentQuantizer(index.quantizer, index)
    inner.ntotal = index.ntotal
    outer = faiss.IndexPreTransform(inner)
    faiss.class_wrappers.add_to_referenced_objects(outer, [index, inner])
    _put_index(folder, outer)


def cell(modality: str, column: str, value: object, row: int = 3) -> Callable[[Path, Path], None]:
    """Another value in a row of a table."""

    def change(table: pa.Table) -> pa.Table:
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), pa.int64()))
        values = table[column].to_pylist()
        values[row] = value
        kind = table.schema.field(column).type
        return table.set_column(table.column_names.index(column), column, pa.array(values, kind))

    return lambda folder, victim: _table(folder, modality, change)


def _bomb(folder: Path, column: str, values: pa.Array, **options: Any) -> None:
    """Sentences of which a column is `values`; the card says as many of them."""
    table = pq.read_table(folder / "sentences.parquet")
    table = table.take(pa.array(np.arange(len(values)) % len(table)))
    table = table.set_column(0, "sentence_id", pa.array(np.arange(len(values))))
    if column in table.column_names:
        table = table.drop_columns([column])
    table = table.append_column(column, values)
    options = {"compression": "zstd", "store_schema": False, **options}
    pq.write_table(table, folder / "sentences.parquet", row_group_size=8192, **options)
    seal(folder, "sentences.parquet")


def long_texts(folder: Path, victim: Path) -> None:
    """A text of 4 MiB that stands in a dictionary once and in 300 rows."""
    once = pa.array(["red " * (1 << 20)])
    _bomb(folder, "text", pa.DictionaryArray.from_arrays(pa.array(np.zeros(300, np.int32)), once))


def wide_bytes(folder: Path, victim: Path) -> None:
    """200 MB of bytes of a fixed width in 500 rows, in a column of the sender's own."""
    once = pa.array([b"x" * 400_000], pa.binary(400_000))
    _bomb(folder, "own", pa.DictionaryArray.from_arrays(pa.array(np.zeros(500, np.int32)), once))
