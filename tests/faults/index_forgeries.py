"""Forgeries of indexes. The card lists the right digest of every file, but the contents are wrong for their readers."""

import copy
import hashlib
import json
import os
import subprocess
import sys
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

REMOVED = object()
"""Value that stands for the removal of a key."""
VALUES = (REMOVED, None, -1, 10**12, 2**70, 1e300, True, "x", "", [], ["a"], {})
"""Values that replace a value of a JSON file."""
JSON_FILES = (
    "card.json", "model.json", "vocabulary.json", "text_encoders/tfidf/model.json", "encoders/colour/model.json",
)  # fmt: skip
"""Files of an index in which JSON values are replaced."""
ARRAY_CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "half": lambda x: np.atleast_1d(x)[: x.size // 2], "flat": lambda x: x.reshape(-1), "more axes": lambda x: x[None],
    "nothing": lambda x: np.empty(0, x.dtype), "not a number": lambda x: np.full(x.shape, np.nan, np.float32),
    "twice": lambda x: np.concatenate([np.atleast_1d(x)] * 2), "negative": lambda x: -x,
}  # fmt: skip
"""Name of a change -> the function that changes an array."""

Forgery = Callable[[Path], object]
"""A function that changes the index in a folder."""


def seal(folder: Path, *names: str) -> None:
    """Write the sizes and digests of these files to the card, and the checksum of the card itself."""
    card = json.loads((folder / "card.json").read_text())
    for name in names:
        data = (folder / name).read_bytes()
        card["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    card.pop(CHECK)
    (folder / "card.json").write_bytes(to_json(card))


def json_paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield `path` and the key path of each value inside a JSON value. Only the first item of a list is used."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, item in items:
        yield from json_paths(item, (*path, key))


def edit_json(folder: Path, name: str, path: tuple, new: object) -> None:
    """Replace the value at a key path of a JSON file by `new`, or remove it if `new` is REMOVED, and update the
    checksums."""
    value = whole = json.loads((folder / name).read_text())
    whole.pop(CHECK, None)
    for key in path[:-1]:
        value = value[key]
    if new is REMOVED:
        value.pop(path[-1])
    else:
        value[path[-1]] = copy.deepcopy(new)
    (folder / name).write_bytes(to_json(whole))
    if name != "card.json":
        seal(folder, name)


def json_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    """Return forgeries of the index `bundle` by name: each replaces or removes one value in the JSON file `name`."""
    value = json.loads((bundle / name).read_text())
    value.pop(CHECK, None)
    return {
        f"{name} {'.'.join(map(str, path))} {'gone' if new is REMOVED else new!r}": partial(
            edit_json, name=name, path=path, new=new
        )
        for path in json_paths(value)
        if path
        for new in VALUES
    }


def _replace_array(folder: Path, name: str, key: str, change: Callable[[np.ndarray], np.ndarray] | None) -> None:
    """Change the array `key` of a safetensors file, or remove it if `change` is None."""
    arrays = safetensors.numpy.load_file(folder / name)
    array = arrays.pop(key)
    if change is not None:
        arrays[key] = np.ascontiguousarray(change(array))
    data = safetensors.numpy.save(arrays)
    (folder / name).write_bytes(data)
    if name == "model.safetensors":  # model.json also has the digest of this file.
        edit_json(folder, "model.json", ("bytes",), len(data))
        edit_json(folder, "model.json", ("sha256",), hashlib.sha256(data).hexdigest())
    seal(folder, name)


def array_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    """Return forgeries of the index `bundle` by name: each changes or removes one array in the safetensors file
    `name`."""
    return {
        f"{name} {key} {what}": partial(_replace_array, name=name, key=key, change=change)
        for key in safetensors.numpy.load_file(bundle / name)
        for what, change in {**ARRAY_CHANGES, "gone": None}.items()
    }


def _replace_table(folder: Path, modality: str, change: Callable[[pa.Table], pa.Table], rows: int = 8192) -> None:
    """Change the table of images or sentences, write it in row groups of `rows` rows, and update the card."""
    name = f"{modality}.parquet"
    pq.write_table(change(pq.read_table(folder / name)), folder / name, row_group_size=rows)
    seal(folder, name)


def _not_text(table: pa.Table) -> pa.Table:
    """Replace the texts or paths of a table by strings that are not UTF-8."""
    column = "text" if "text" in table.column_names else "path"
    raw = pa.array([b"\xff\xfe"] * len(table), pa.binary())
    strings = pa.StringArray.from_buffers(len(table), *raw.buffers()[1:])
    return table.set_column(table.column_names.index(column), column, strings)


def table_forgeries(bundle: Path, modality: str) -> dict[str, Forgery]:
    """Return forgeries of the index `bundle` by name: each changes the rows, a column or the row groups of a table."""
    changes: dict[str, Callable[[pa.Table], pa.Table]] = {
        "half": lambda t: t.slice(0, len(t) // 4), "no rows": lambda t: t.slice(0, 0), "not text": _not_text,
        "no columns": lambda t: pa.table({}),
    }  # fmt: skip
    for name in pq.read_schema(bundle / f"{modality}.parquet").names:
        changes[f"without {name}"] = lambda t, name=name: t.drop_columns([name])
        changes[f"numbers for {name}"] = lambda t, name=name: t.set_column(
            t.column_names.index(name), name, pa.array(np.arange(len(t), dtype=np.float32))
        )
    forge = partial(_replace_table, modality=modality)
    found = {f"{modality} {what}": partial(forge, change=change) for what, change in changes.items()}
    return found | {f"{modality} in other groups": partial(forge, change=lambda t: t, rows=5)}


def _write_random_index(folder: Path, name: str, factory: str, dim: int | None = None, first: int = 0) -> None:
    """Replace the FAISS index `name` by an index of random vectors. The card says how many vectors, and the ids begin
    with `first`.

    The vectors have `dim` dimensions. If `dim` is None, the card says how many dimensions.
    """
    card = json.loads((folder / "card.json").read_text())[name]
    index = faiss.index_factory(dim or card["dim"], factory, faiss.METRIC_INNER_PRODUCT)
    vectors = np.random.default_rng(0).standard_normal((max(card["count"], 400), index.d)).astype(np.float32)
    index.train(vectors)
    ids = np.arange(card["count"])
    index.add_with_ids(vectors[ids], ids + first) if first else index.add(vectors[ids])
    (folder / f"{name}.faiss").write_bytes(bytes(faiss.serialize_index(index)))
    seal(folder, f"{name}.faiss")


def index_forgeries(bundle: Path, name: str) -> dict[str, Forgery]:
    """Return forgeries of the index `bundle` by name: two replace the FAISS index `name` by an index with ids beyond
    the rows of the table, and one changes the dimensions of all FAISS indexes and of the card."""

    def widen(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        for item in ("images", "sentences", "regions", "words"):
            if f"{item}.faiss" in card["files"]:
                _write_random_index(folder, item, "Flat", 2 * card["dim"])
                edit_json(folder, "card.json", (item, "dim"), 2 * card["dim"])
        edit_json(folder, "card.json", ("dim",), 2 * card["dim"])

    return {
        f"{name} of far rows": lambda folder: _write_random_index(folder, name, "IDMap,Flat", first=10**9),
        f"{name} of far rows in lists": lambda folder: _write_random_index(folder, name, "IVF4,Flat", first=10**9),
        f"{name} of other dimensions, as the card": widen,
    }


def all_forgeries(bundle: Path) -> dict[str, Forgery]:
    """Return every forgery of the index `bundle`, by name."""
    found: dict[str, Forgery] = {}
    for name in filter(lambda name: (bundle / name).exists(), JSON_FILES):
        found |= json_forgeries(bundle, name)
    sets = (bundle / "fragments.safetensors").exists()
    for name in ("model.safetensors", *(["fragments.safetensors"] if sets else [])):
        found |= array_forgeries(bundle, name)
    for modality in ("images", "sentences"):
        found |= table_forgeries(bundle, modality)
    for name in ("regions", "words") if sets else ("images", "sentences"):
        found |= index_forgeries(bundle, name)
    return found


def put_index(folder: Path, index: faiss.Index) -> None:
    """Replace the FAISS index of the images by `index`, and update the card."""
    (folder / "images.faiss").write_bytes(bytes(faiss.serialize_index(index)))
    edit_json(folder, "card.json", ("images", "count"), index.ntotal)
    seal(folder, "images.faiss")


def one_list_index(folder: Path) -> faiss.IndexIVFFlat:
    """Return an inverted-file index with one list and one random vector per image of the index in `folder`."""
    card = json.loads((folder / "card.json").read_text())["images"]
    vectors = np.random.default_rng(0).standard_normal((card["count"], card["dim"])).astype(np.float32)
    index = faiss.index_factory(card["dim"], "IVF1,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    return index


def lists_elsewhere(folder: Path, victim: Path) -> None:
    """Store the lists of the FAISS index in the file `victim`, outside of the index folder."""
    index = one_list_index(folder)
    mapped = faiss.OnDiskInvertedLists(1, index.code_size, str(victim))
    mapped.merge_from_1(index.invlists)
    index.replace_invlists(mapped, False)
    faiss.class_wrappers.add_to_referenced_objects(index, mapped)
    put_index(folder, index)


def unknown_type(folder: Path, victim: Path) -> None:
    """Replace the FAISS index by a transform of an allowed type around an index of a type that jointspace never uses.
    `victim` is not used."""
    index = one_list_index(folder)
    inner = faiss.IndexIVFIndependentQuantizer(index.quantizer, index)
    inner.ntotal = index.ntotal
    outer = faiss.IndexPreTransform(inner)
    faiss.class_wrappers.add_to_referenced_objects(outer, [index, inner])
    put_index(folder, outer)


def many_transforms(folder: Path, victim: Path) -> None:
    """Replace the FAISS index of the images by an index behind more transforms than jointspace allows. `victim` is not
    used."""
    outer = faiss.IndexPreTransform(one_list_index(folder))
    for _ in range(5):
        outer.prepend_transform(faiss.NormalizationTransform(outer.d, 2.0))
    put_index(folder, outer)


def forge_cell(modality: str, column: str, value: object, row: int = 3) -> Callable[[Path, Path], None]:
    """Return a function that sets the value in one row and column of the table of images or sentences.

    If the table lacks the column, a column of integers is added, which is null in all other rows.
    """

    def change(table: pa.Table) -> pa.Table:
        if column not in table.column_names:
            table = table.append_column(column, pa.nulls(len(table), pa.int64()))
        values = table[column].to_pylist()
        values[row] = value
        kind = table.schema.field(column).type
        return table.set_column(table.column_names.index(column), column, pa.array(values, kind))

    return lambda folder, victim: _replace_table(folder, modality, change)


def _write_large_column(folder: Path, column: str, values: pa.Array, **options: Any) -> None:
    """Replace the table of sentences by a table with one row for each of `values`, which become the column `column`.

    The ids are new. All other columns repeat the values of the old rows. The card keeps the old count of sentences.
    """
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
    """Replace the table of sentences by 300 rows with the same text of 4 MiB, which a Parquet dictionary stores once.
    `victim` is not used."""
    once = pa.array(["red " * (1 << 20)])
    _write_large_column(folder, "text", pa.DictionaryArray.from_arrays(pa.array(np.zeros(300, np.int32)), once))


def wide_bytes(folder: Path, victim: Path) -> None:
    """Replace the table of sentences by 500 rows with one more column, of 400,000 bytes per row. All rows have the same
    value, which a Parquet dictionary stores once. `victim` is not used."""
    once = pa.array([b"x" * 400_000], pa.binary(400_000))
    _write_large_column(folder, "own", pa.DictionaryArray.from_arrays(pa.array(np.zeros(500, np.int32)), once))


# --- FAISS indexes of allowed types whose components do not fit together


def _random_index(folder: Path, factory: str) -> faiss.Index:
    """Build a FAISS index from a factory string, with one random vector per image."""
    card = json.loads((folder / "card.json").read_text())["images"]
    vectors = np.random.default_rng(0).standard_normal((max(card["count"], 400), card["dim"])).astype(np.float32)
    index = faiss.index_factory(card["dim"], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors[: card["count"]])
    return index


def _widen_refinement(index: faiss.Index) -> None:
    """Replace the vectors for refinement by vectors of twice the dimensions, which overflow the buffers of FAISS."""
    wide = faiss.IndexFlat(2 * index.d, index.metric_type)
    wide.add(np.ones((index.ntotal, wide.d), np.float32))
    index.refine_index = wide
    faiss.class_wrappers.add_to_referenced_objects(index, wide)


def _resize_transform(attribute: str, size: int = 1) -> Callable[[faiss.Index], None]:
    """Return a function that resizes the array `attribute` of the first transform of an index to `size` numbers."""

    def change(index: faiss.Index) -> None:
        transform = faiss.downcast_VectorTransform(index.chain.at(0))
        transform.have_bias = transform.have_bias or attribute == "b"
        getattr(transform, attribute).resize(size)

    return change


def _add_centroids(index: faiss.Index) -> None:
    """Add three centroids without lists to an inverted-file index."""
    quantizer = faiss.downcast_index(index.quantizer)
    quantizer.add(np.ones((3, index.d), np.float32))


def _raise_ids(index: faiss.Index) -> None:
    """Add 2 to the power of 30 to all ids, so that the refinement would read beyond its vectors."""
    base = faiss.downcast_index(index.base_index)
    for number in range(base.nlist):
        if size := base.invlists.list_size(number):
            faiss.rev_swig_ptr(base.invlists.get_ids(number), size)[:] += 1 << 30


def _link_to_lower_level(index: faiss.Index) -> None:
    """Link the entry point of an HNSW graph, on the second level, to a vertex that exists only on the lowest level."""
    graph = index.hnsw
    levels = faiss.vector_to_array(graph.levels)
    links = faiss.vector_to_array(graph.neighbors)
    start = int(graph.offsets.at(graph.entry_point))
    low = int(np.flatnonzero(levels == 1)[-1])
    links[start + graph.cum_nb_neighbors(1) : start + graph.cum_nb_neighbors(2)] = low
    faiss.copy_array_to_vector(links, graph.neighbors)


def _remove_lists(index: faiss.Index) -> None:
    """Remove the inverted lists, so that FAISS writes the index without them."""
    index.own_invlists = False
    index.invlists = None


def _repeat_id(index: faiss.Index) -> None:
    """Give two vectors of one list the same id."""
    number = next(number for number in range(index.nlist) if index.invlists.list_size(number) > 1)
    ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), 2)
    ids[1] = ids[0]


def _set(name: str, value: float) -> Callable[[faiss.Index], None]:
    """Return a function that sets the attribute `name` of its argument, an index or a component of an index, to
    `value`."""

    def change(index: faiss.Index) -> None:
        setattr(index, name, value)

    return change


def _remap_dimensions(index: faiss.Index) -> None:
    """Add a transform that reads components far beyond the vectors."""
    remap = faiss.RemapDimensionsTransform(index.d, index.d, True)
    faiss.copy_array_to_vector(np.full(index.d, 1 << 30, np.int32), remap.map)
    remap.this.disown()  # From now on, `index` owns the transform and deletes it.
    index.prepend_transform(remap)


UNFIT_INDEXES: dict[str, tuple[str, Callable[[faiss.Index], None], str]] = {
    "wide refinement": ("PQ4x4fs,Refine(SQ8)", _widen_refinement, "`refine_index dimension` does not fit"),
    "far ids in a refinement": ("IVF2,SQ8,RFlat", _raise_ids, "has ids that are not in 0 to"),
    "remapped dimensions": ("RR8,Flat", _remap_dimensions, "contains an RemapDimensionsTransform"),
    "short rotation": ("RR8,SQ8", _resize_transform("A"), "`transform` does not fit"),
    "short bias": ("PCA2,Flat", _resize_transform("b"), "`transform` does not fit"),
    "more vectors than codes": ("PQ4x4fs", _set("ntotal2", 1 << 40), "`ntotal2` does not fit"),
    "unknown implementation": ("PQ4x4fs", _set("implem", 99), "`implem` does not fit"),
    "huge blocks": ("IVF2,PQ4x4fs", _set("bbs", 1 << 30), "`bbs` does not fit"),
    "huge query blocks": ("IVF2,PQ4x4fs", _set("qbs2", 1 << 30), "`qbs` does not fit"),
    "no lists": ("IVF2,Flat", _remove_lists, "`lists` does not fit"),
    "no lists visited": ("IVF2,Flat", _set("nprobe", 0), "images.faiss"),
    "many lists visited": ("IVF2,Flat", _set("nprobe", 1 << 40), "`nprobe` does not fit"),
    "more centroids than lists": ("IVF2,Flat", _add_centroids, "`quantizer count` does not fit"),
    "endless search of a graph": ("HNSW8", lambda index: _set("efSearch", (1 << 31) - 1)(index.hnsw), "`efSearch`"),
    "an id twice": ("IVF2,SQ8", _repeat_id, "different ids, so an id is repeated"),
    "links to a lower level": ("HNSW4", _link_to_lower_level, "`graph` does not fit"),
    "a graph without an entry": ("HNSW4", lambda index: _set("entry_point", -1)(index.hnsw), "`graph` does not fit"),
    "untrained": ("SQ8", _set("is_trained", False), "images.faiss"),
    "another metric inside": ("IVF2,Flat", lambda index: _set("metric_type", 1)(index.quantizer), "quantizer metric"),
    "other codes": ("SQ8", lambda index: _set("qtype", faiss.ScalarQuantizer.QT_4bit)(index.sq), "images.faiss"),
    "lists within lists": (
        "IVF2(IVF2,Flat),Flat", lambda index: None, "contains an IndexIVFFlat at a position where",
    ),
    "endless refinement": ("SQ8,RFlat", _set("k_factor", 1e9), "images.faiss"),
}  # fmt: skip
"""Name of a forgery -> a factory string, the function that changes the index, and a part of the error message."""


def put_unfit_index(folder: Path, name: str) -> None:
    """Replace the FAISS index of the images by the index `name` of UNFIT_INDEXES."""
    factory, change, _ = UNFIT_INDEXES[name]
    index = faiss.downcast_index(built := _random_index(folder, factory))
    change(index)
    put_index(folder, built)


def abort_process(*_: object) -> None:
    """Crash the process. Tests call this function in place of reading an index that makes FAISS crash."""
    os.abort()


class Commands:
    """Caller of commands in a separate process that runs `answer`. A call after a crash starts a new process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *words: object) -> str:
        """Call a command. The first of `words` is its name, and the others are its arguments.

        Return the answer of the process, such as `refused: MESSAGE`, or `died: CODE` if the process ended with the
        return code CODE before it answered.
        """
        if self._process is None or self._process.poll() is not None:
            program = (
                "import sys, json; sys.path = json.loads(sys.argv[1]); from index_forgeries import answer; answer()"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", program, json.dumps(sys.path)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        self._process.stdin.write(json.dumps(list(map(str, words))) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        return json.loads(line) if line else f"died: {self._process.wait()}"

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def answer() -> None:
    """Read a JSON list of a command's name and arguments from each line of stdin, call it, and print a JSON string.

    The string is `accepted: OUTPUT`, `refused: MESSAGE` for a JointspaceError, or `traceback: MESSAGE`.
    """
    from click.testing import CliRunner

    from pipeline.errors import JointspaceError
    from stages.cli import cli

    for line in sys.stdin:
        name, *words = json.loads(line)
        result = CliRunner().invoke(cli.get_command(None, name), words)
        kind = "refused" if isinstance(result.exception, JointspaceError) else "traceback"
        said = f"{kind}: {result.exception}\n{result.output}" if result.exception else f"accepted: {result.output}"
        print(json.dumps(said), flush=True)
