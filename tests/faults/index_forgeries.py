"""Bundles that were made up: every file is what the card says, and some of them are not what their readers need."""

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


def put_index(folder: Path, index: faiss.Index) -> None:
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
    put_index(folder, index)


def unknown_type(folder: Path, victim: Path) -> None:
    """Inside of a known one."""
    index = inverted(folder)
    inner = faiss.IndexIVFIndependentQuantizer(index.quantizer, index)
    inner.ntotal = index.ntotal
    outer = faiss.IndexPreTransform(inner)
    faiss.class_wrappers.add_to_referenced_objects(outer, [index, inner])
    put_index(folder, outer)


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


# --- FAISS indexes of allowed types whose parts do not fit


def _built(folder: Path, factory: str) -> faiss.Index:
    """An index of random vectors by its factory string, as many as the bundle has images."""
    card = json.loads((folder / "card.json").read_text())["images"]
    vectors = np.random.default_rng(0).standard_normal((max(card["count"], 400), card["dim"])).astype(np.float32)
    index = faiss.index_factory(card["dim"], factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors[: card["count"]])
    return index


def _other_refinement(index: faiss.Index) -> None:
    """Vectors of twice the dimensions to refine by, for which FAISS has no room."""
    wide = faiss.IndexFlat(2 * index.d, index.metric_type)
    wide.add(np.ones((index.ntotal, wide.d), np.float32))
    index.refine_index = wide
    faiss.class_wrappers.add_to_referenced_objects(index, wide)


def _short(attribute: str, size: int = 1) -> Callable[[faiss.Index], None]:
    """Another size of an array of the first transform."""

    def change(index: faiss.Index) -> None:
        transform = faiss.downcast_VectorTransform(index.chain.at(0))
        transform.have_bias = transform.have_bias or attribute == "b"
        getattr(transform, attribute).resize(size)

    return change


def _more_centroids(index: faiss.Index) -> None:
    quantizer = faiss.downcast_index(index.quantizer)
    quantizer.add(np.ones((3, index.d), np.float32))


def _far_ids(index: faiss.Index) -> None:
    """Ids that a refinement would look up beyond its vectors."""
    base = faiss.downcast_index(index.base_index)
    for number in range(base.nlist):
        if size := base.invlists.list_size(number):
            faiss.rev_swig_ptr(base.invlists.get_ids(number), size)[:] += 1 << 30


def _low_links(index: faiss.Index) -> None:
    """Links of a higher level to a vertex that is on the lowest level alone."""
    graph = index.hnsw
    levels, links = faiss.vector_to_array(graph.levels), faiss.vector_to_array(graph.neighbors)
    start = int(graph.offsets.at(graph.entry_point))
    low = int(np.flatnonzero(levels == 1)[-1])
    links[start + graph.cum_nb_neighbors(1) : start + graph.cum_nb_neighbors(2)] = low
    faiss.copy_array_to_vector(links, graph.neighbors)


def _no_lists(index: faiss.Index) -> None:
    """An inverted file that FAISS writes without its lists."""
    index.own_invlists = False
    index.invlists = None


def _same_ids(index: faiss.Index) -> None:
    """Ids of which two are the same."""
    number = next(number for number in range(index.nlist) if index.invlists.list_size(number) > 1)
    ids = faiss.rev_swig_ptr(index.invlists.get_ids(number), 2)
    ids[1] = ids[0]


def _put(name: str, value: float, part: str = "") -> Callable[[faiss.Index], None]:
    """Another value of an attribute of the index, or of a part of it."""

    def change(index: faiss.Index) -> None:
        setattr(getattr(index, part) if part else index, name, value)

    return change


def _remapped(index: faiss.Index) -> None:
    """A transform that reads anywhere."""
    remap = faiss.RemapDimensionsTransform(index.d, index.d, True)
    faiss.copy_array_to_vector(np.full(index.d, 1 << 30, np.int32), remap.map)
    remap.this.disown()  # the index deletes it
    index.prepend_transform(remap)


UNFIT: dict[str, tuple[str, Callable[[faiss.Index], None], str]] = {
    "wide refinement": ("PQ4x4fs,Refine(SQ8)", _other_refinement, "its refine_index dimension does not fit"),
    "far ids in a refinement": ("IVF2,SQ8,RFlat", _far_ids, "has ids beyond the"),
    "remapped dimensions": ("RR8,Flat", _remapped, "contains an RemapDimensionsTransform"),
    "short rotation": ("RR8,SQ8", _short("A"), "its transform does not fit"),
    "short bias": ("PCA2,Flat", _short("b"), "its transform does not fit"),
    "more vectors than codes": ("PQ4x4fs", _put("ntotal2", 1 << 40), "its ntotal2 does not fit"),
    "unknown implementation": ("PQ4x4fs", _put("implem", 99), "its implem does not fit"),
    "huge blocks": ("IVF2,PQ4x4fs", _put("bbs", 1 << 30), "its bbs does not fit"),
    "huge query blocks": ("IVF2,PQ4x4fs", _put("qbs2", 1 << 30), "its qbs does not fit"),
    "no lists": ("IVF2,Flat", _no_lists, "its lists does not fit"),
    "no lists visited": ("IVF2,Flat", _put("nprobe", 0), "images.faiss"),
    "many lists visited": ("IVF2,Flat", _put("nprobe", 1 << 40), "its nprobe does not fit"),
    "more centroids than lists": ("IVF2,Flat", _more_centroids, "its quantizer count does not fit"),
    "endless search of a graph": ("HNSW8", lambda index: _put("efSearch", (1 << 31) - 1)(index.hnsw), "its efSearch"),
    "an id twice": ("IVF2,SQ8", _same_ids, "images.faiss has an id twice"),
    "links to a lower level": ("HNSW4", _low_links, "its graph does not fit"),
    "a graph without an entry": ("HNSW4", lambda index: _put("entry_point", -1)(index.hnsw), "its graph does not fit"),
    "untrained": ("SQ8", _put("is_trained", False), "images.faiss"),
    "another metric inside": ("IVF2,Flat", lambda index: _put("metric_type", 1)(index.quantizer), "quantizer metric"),
    "other codes": ("SQ8", lambda index: _put("qtype", faiss.ScalarQuantizer.QT_4bit)(index.sq), "images.faiss"),
    "lists within lists": (
        "IVF2(IVF2,Flat),Flat", lambda index: None, "contains an IndexIVFFlat, which jointspace does not use there",
    ),
    "endless refinement": ("SQ8,RFlat", _put("k_factor", 1e9), "images.faiss"),
}  # fmt: skip
"""What does not fit -> the factory string of an index, how it is changed, and what the refusal says."""


def unfit(folder: Path, what: str) -> None:
    """Put one of UNFIT in the place of the index of the images."""
    factory, change, _ = UNFIT[what]
    index = faiss.downcast_index(made := _built(folder, factory))
    change(index)
    put_index(folder, made)


def end_process(*_: object) -> None:
    """In the place of a trial: what a forged index does to FAISS."""
    os.abort()


class Commands:
    """Calls commands in another process, which they may end, one after another: see `answer`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *words: object) -> str:
        if self._process is None or self._process.poll() is not None:
            program = "import sys, json; sys.path = json.loads(sys.argv[1]); import index_forgeries as b; b.answer()"
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
    """Call the commands whose words are the lines of stdin, and print what each says, or why it refuses, as a line."""
    from click.testing import CliRunner

    from pipeline.errors import JointspaceError
    from stages.cli import cli

    for line in sys.stdin:
        name, *words = json.loads(line)
        result = CliRunner().invoke(cli.get_command(None, name), words)
        kind = "refused" if isinstance(result.exception, JointspaceError) else "traceback"
        said = f"{kind}: {result.exception}\n{result.output}" if result.exception else f"accepted: {result.output}"
        print(json.dumps(said), flush=True)
