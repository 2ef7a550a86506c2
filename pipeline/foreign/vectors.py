"""Opens files of precomputed vectors in common formats: a matrix, and the name of the image or sentence of each row."""

import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tokenize import TokenError
from typing import Literal
from zipfile import BadZipFile

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors import SafetensorError

from pipeline.compute.lazy_rows import Chained
from pipeline.errors import InputError, UsageError, brief
from pipeline.foreign import named_arrays
from pipeline.foreign.files import read_lines, try_first
from pipeline.foreign.named_arrays import plain_dataset
from pipeline.foreign.parquet import LIST_TYPES, is_string, stored_type, unpacked_bytes

NPY_START = b"\x93NUMPY"
NOT_FINITE = "its vector is not finite (NaN or infinity)"
BLOCK_ROWS = 1 << 14
"""Number of rows that are checked at once."""
MAX_UNPACKED_RATIO = 100
"""Largest ratio of the unpacked size of compressed features to the size of their file."""
SPARE_BYTES = 1 << 26
"""Number of bytes by which the unpacked size may exceed MAX_UNPACKED_RATIO times the size of the file. A file that
declares more is refused."""
UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError,
    TokenError, RuntimeError, BadZipFile, pickle.UnpicklingError, SafetensorError, pa.ArrowException,
)  # fmt: skip
"""Exceptions that numpy, h5py, pyarrow, safetensors and torch raise for damaged files."""

CLIP_RETRIEVAL = {"images": ("img_emb", "image_path"), "sentences": ("text_emb", "caption")}
"""Kind of vectors -> the folder in which clip-retrieval writes such vectors, and the column with their names in its
metadata files."""
NAMELESS_SUFFIXES = (".npy", ".safetensors")
"""Suffixes of files that cannot contain strings."""
NAMES: Mapping[str, tuple[str, ...]] = {
    "images": ("image_path", "path", "file", "file_name", "filename", "image", "url", "key", "id"),
    "sentences": ("caption", "text", "sentence"),
}
"""Kind of vectors -> usual columns with the names of their rows. If a file has several of them, the first in this order
is used."""
OWNER_COLUMNS = (*NAMES["images"][:6], "image_name", "image_file", "image_id", "name")
"""Usual columns with the image of each sentence. If a file has several of them, the first in this order is used."""
MARKS = {
    "images": ("image", "img", "photo", "picture", "visual", "vision"),
    "sentences": ("text", "txt", "caption", "sentence", "title"),
}
"""Kind of vectors -> words that indicate this kind in the names of files and columns."""

MISSING = {
    "features": "no matrix of floating-point numbers, one row per name",
    "names": "no column of strings, one per row",
}
"""Words of the message about a file in which nothing can be the features, or the names."""


@dataclass(frozen=True)
class Source:
    """The location of precomputed vectors.

    `path` is a file or folder. `features` is the dataset or column with the vectors, and `names` is the dataset, column
    or text file with the names of the rows. If `features` or `names` is None, the only candidate is used, or among
    several candidates the candidate with a usual name. `of` says whether the vectors describe images or sentences.
    """

    path: Path
    features: str | None
    names: str | None
    of: Literal["images", "sentences"] = "images"


@dataclass(frozen=True)
class ForeignFeatures:
    """Opened precomputed vectors.

    `blocks` are matrices (n_k, dim), one for each of the `files`. `names` (n,) are the names of all rows in order, or
    None if the rows are sentences in the order of the run.
    """

    names: list[str] | None
    blocks: list[np.ndarray]
    files: list[Path]

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    @property
    def dim(self) -> int:
        return self.blocks[0].shape[1]

    def take(self, rows: np.ndarray) -> np.ndarray:
        return Chained(self.blocks, np.float32)[rows]

    def finite(self) -> np.ndarray:
        """Return for each row (n,) whether all of its numbers are finite."""
        starts = range(0, len(self), BLOCK_ROWS)
        blocks = (self.take(np.arange(start, min(start + BLOCK_ROWS, len(self)))) for start in starts)
        return np.concatenate([np.isfinite(block).all(axis=1) for block in blocks] or [np.zeros(0, bool)])

    def where(self, row: int) -> str:
        """Return the file of a row and the number of the row in this file, from 0, as a text."""
        ends = np.cumsum([len(block) for block in self.blocks])
        number = int(np.searchsorted(ends, row, "right"))
        return f"{self.files[number]} row {row - ends[number] + len(self.blocks[number])}"


def foreign_files(source: Source) -> list[Path]:
    """Return the files that `open_foreign` reads: the vectors, and the text files with their names if there are any.

    For the output of clip-retrieval, each file of vectors is followed by its metadata file, which has the names. For
    another folder, the files are its Parquet files.
    """
    if source.path.is_dir():
        folder, _ = CLIP_RETRIEVAL[source.of]
        parts = sorted(source.path.glob(f"{folder}/{folder}_*.npy"), key=lambda part: (len(part.name), part.name))
        tables = sorted(path for path in source.path.iterdir() if path.suffix.lower() == ".parquet")
        return [file for part in parts for file in (part, _metadata(source, part))] or tables
    return [source.path, *(_names_files(source) if _names_are_beside(source) else [])]


def open_foreign(source: Source) -> ForeignFeatures:
    """Open precomputed vectors.

    Raises InputError, with the file, if they cannot be read, are not a matrix of floating-point numbers, or if the
    numbers of rows and names differ. Raises UsageError if the format is unknown, if several datasets or columns may
    have the vectors or the names, or if the dataset or column that `source` names is none of them.
    """
    path = source.path
    if not path.exists():
        raise InputError(f"{path} does not exist. Correct the path in the configuration.")
    kind = "folder" if path.is_dir() else path.suffix
    if kind not in READERS:
        raise UsageError(
            f"{path} has an unknown format. Give a folder of clip-retrieval or of Parquet files, or a file of the type"
            f" {', '.join(sorted(READERS.keys() - {'folder'}))}."
        )
    with _reading(path):
        return READERS[kind](source)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Convert any exception of a library about a damaged file to an InputError with the file."""
    try:
        yield
    except UNREADABLE as error:
        raise InputError(
            f"jointspace cannot read features from {path} ({brief(error)}). Write the file again."
        ) from error


def _read_npy(source: Source) -> ForeignFeatures:
    names = _read_names(source) if _names_are_beside(source) else None
    return assemble([(source.path, _map_npy(source.path), names)])


def _names_are_beside(source: Source) -> bool:
    """Return whether the names of the vectors are in a text file next to them.

    A file that cannot contain strings must have such a text file, unless its rows are sentences in the order of the
    run. Any other file of arrays may have one. HDF5 and Parquet files contain the names themselves.
    """
    if source.path.suffix in NAMELESS_SUFFIXES and (source.of == "images" or source.names is not None):
        return True
    may_be = source.path.suffix in NAMELESS_SUFFIXES or source.path.suffix in named_arrays.READERS
    return may_be and _names_files(source)[0].exists()


def _read_arrays(source: Source) -> ForeignFeatures:
    path = source.path
    if path.suffix == ".npz":
        _require_modest(path, named_arrays.npz_bytes(path))
    arrays = named_arrays.READERS[path.suffix](path)
    matrix = arrays.matrices[_only(source, "features", list(arrays.matrices))]
    if arrays.strings and not _names_are_beside(source):
        return assemble([(path, matrix, arrays.strings[_only(source, "names", list(arrays.strings))])])
    in_order = source.of == "sentences" and source.names is None and not _names_files(source)[0].exists()
    return assemble([(path, matrix, None if in_order else _read_names(source))])


def _names_files(source: Source) -> list[Path]:
    """Return the text files that may have the names.

    If `source.names` names a file, it is the only result. Otherwise, for vectors in FILE.npy, the results are FILE.txt
    and FILE.npy.txt, as far as they exist. If neither file exists, the result is FILE.txt, so that an error can name
    it.
    """
    path = source.path
    if source.names:
        return [path.parent / source.names]
    usual = [path.with_suffix(".txt"), path.with_name(f"{path.name}.txt")]
    return [file for file in usual if file.exists()] or usual[:1]


def _read_names(source: Source) -> list[str]:
    """Return the name of each row, from a text file with one name per line. `_names_files` chooses this file.

    If the rows are sentences and all lines have a tab, the name of a row is the text after the first tab of its line,
    and a second file is not read. Otherwise, a second file must have the same lines as the first file.

    Raises InputError if there is no such file, if a file cannot be read, or if two files differ that must have the same
    lines.
    """
    first, *others = _names_files(source)
    if not first.exists():
        raise InputError(
            f"{first} does not exist. Write a file at this path that lists the names of the rows of"
            f" {source.path.name}, one per line."
        )
    names = read_lines(first)
    if source.of == "sentences" and all("\t" in name for name in names):
        return [name.partition("\t")[2] for name in names]
    if any(read_lines(other) != names for other in others):
        raise InputError(
            f"{first} and {others[0]} list different names. Remove one of the two files, or name one of the"
            " two in `names`."
        )
    return names


def owner_names(source: Source) -> list[str] | None:
    """Read the name of the image of each sentence.

    The names are in one of the OWNER_COLUMNS of the Parquet files, or before the first tab in each line of the list of
    names. Return None if the files do not have the names of the images.
    """
    owners: list[str] = []
    for path in (path for path in foreign_files(source) if path.suffix.lower() == ".parquet"):
        words = names_column(source, path)
        present = pq.read_schema(path).names
        column = next((name for name in OWNER_COLUMNS if name in present and name != words), None)
        if column is None:
            return None
        owners += map(str, _strings(path, _read_columns(path, [column])[0]))
    if _names_are_beside(source):
        lines = [line.partition("\t") for line in read_lines(_names_files(source)[0])]
        owners = [owner for owner, _, _ in lines] if all(tab for _, tab, _ in lines) else []
    return owners or None


def _read_clip_retrieval(source: Source) -> ForeignFeatures:
    parts, (folder, _) = [], CLIP_RETRIEVAL[source.of]
    for features in foreign_files(source)[::2]:
        metadata = _metadata(source, features)
        if not metadata.exists():
            raise InputError(
                f"{metadata} does not exist. Copy this file from the output of clip-retrieval in which"
                f" {features.name} is."
            )
        (names,) = _read_columns(metadata, [names_column(source, metadata)])
        parts.append((features, _map_npy(features), _strings(metadata, names)))
    if not parts:
        raise InputError(
            f"{source.path} does not contain {folder}/{folder}_0.npy. Give a folder that clip-retrieval wrote."
        )
    return assemble(parts)


def _metadata(source: Source, features: Path) -> Path:
    return source.path / "metadata" / f"metadata_{features.stem.rpartition('_')[2]}.parquet"


def _read_folder(source: Source) -> ForeignFeatures:
    """Read a folder that clip-retrieval wrote, or a folder with a table in several Parquet files."""
    files = foreign_files(source)
    if files and files[0].suffix.lower() == ".parquet":
        return assemble([_read_parquet_file(replace(source, path=file)) for file in files])
    return _read_clip_retrieval(source)


def _read_parquet_file(source: Source) -> tuple[Path, np.ndarray, list[str]]:
    try_first(source.path, pq.read_schema, source.path)
    features = columns_of_vectors(pq.read_schema(source.path))
    columns = [_only(source, "features", features), names_column(source, source.path)]
    features, names = (column.combine_chunks() for column in _read_columns(source.path, columns))
    features = features.storage if isinstance(features, pa.ExtensionArray) else features
    if features.null_count:
        raise InputError(
            f"{source.path}: row {features.is_null().index(True)} has no vector in the column {columns[0]}. Rows are"
            " counted from 0. Remove this row."
        )
    flat = features.flatten().to_numpy(zero_copy_only=False)
    lengths = features.value_lengths().to_numpy(zero_copy_only=False)
    if len(odd := np.flatnonzero(lengths != lengths[:1])):
        raise InputError(
            f"{source.path}: the vector of row {odd[0]} in the column {columns[0]} has {lengths[odd[0]]} numbers, but"
            f" the vector of row 0 has {lengths[0]}. Write vectors of the same length."
        )
    matrix = flat.reshape(len(features), lengths[0] if len(lengths) else 0)
    return source.path, matrix, list(map(str, _strings(source.path, names)))


def names_column(source: Source, table: Path) -> str:
    """Return the column with the names of the rows in the Parquet file `table`, which has vectors or is a metadata file
    of clip-retrieval.

    Raises UsageError if several columns may have the names and none has a usual name, or if `source.names` is not one
    of these columns. Raises InputError if no column may have the names.
    """
    if source.path.is_dir() and table.parent != source.path:
        return source.names or CLIP_RETRIEVAL[source.of][1]
    schema = pq.read_schema(table)
    strings = [field.name for field in schema if is_string(stored_type(field.type))]
    if source.of == "images":
        strings = strings or [field.name for field in schema if pa.types.is_integer(field.type)]
    return _only(source, "names", strings)


def columns_of_vectors(schema: pa.Schema) -> list[str]:
    """Return the columns of a Parquet file that contain lists of floating-point numbers.

    Columns with `box` in their name are not returned.
    """
    kinds = {field.name: stored_type(field.type) for field in schema if "box" not in field.name.lower()}
    return [
        name
        for name, kind in kinds.items()
        if any(is_list(kind) for is_list in LIST_TYPES) and pa.types.is_floating(kind.value_type)
    ]


def marked(name: str) -> str | None:
    """Return what the vectors in a file or column describe, according to its name: `images` or `sentences`.

    If the name has words of MARKS for both, the last of these words counts. Return None if it has no such word.
    """
    last = {kind: max(map(name.lower().rfind, marks)) for kind, marks in MARKS.items()}
    return max(last, key=last.__getitem__) if max(last.values()) >= 0 else None


def _read_columns(path: Path, columns: list[str]) -> list[pa.ChunkedArray]:
    try_first(path, _load_columns, path, columns)
    return _load_columns(path, columns)


def _load_columns(path: Path, columns: list[str]) -> list[pa.ChunkedArray]:
    _require_modest(path, unpacked_bytes(pq.read_metadata(path)))
    present = pq.read_schema(path).names
    if missing := set(columns).difference(present):
        raise InputError(
            f"{path} does not have a column {min(missing)}. Set `names` to one of its columns: {', '.join(present)}."
        )
    table = pq.read_table(path, columns=columns)
    return [table.column(name) for name in columns]


def _read_hdf5(source: Source) -> ForeignFeatures:
    with h5py.File(source.path, "r") as file:
        datasets = {name: dataset for name in map(str, file) if (dataset := plain_dataset(file, name)) is not None}
        matrices = [name for name, dataset in datasets.items() if dataset.ndim == 2 and dataset.dtype.kind == "f"]
        strings = [name for name, dataset in datasets.items() if h5py.check_string_dtype(dataset.dtype)]
        features = datasets[_only(source, "features", matrices)]
        names = datasets[_only(source, "names", strings)]
        if names.shape != features.shape[:1]:
            raise InputError(
                f"{source.path} has {features.shape[0]} vectors, but an array of names of the shape {names.shape}."
                " Write one name per vector."
            )
        if (offset := features.id.get_offset()) is None:
            _require_modest(source.path, math.prod(features.shape) * features.dtype.itemsize)
            matrix = features[:]
        else:
            matrix = np.memmap(source.path, features.dtype, "r", offset, features.shape)
        return assemble([(source.path, matrix, np.asarray(names.asstr("utf-8")[:]).tolist())])


READERS: Mapping[str, Callable[[Source], ForeignFeatures]] = {
    ".npy": _read_npy,
    ".h5": _read_hdf5,
    ".hdf5": _read_hdf5,
    ".parquet": lambda source: assemble([_read_parquet_file(source)]),
    **dict.fromkeys(named_arrays.READERS, _read_arrays),
    "folder": _read_folder,
}


def assemble(parts: list[tuple[Path, np.ndarray, list[str] | None]]) -> ForeignFeatures:
    """Check the parts (file, matrix, names) and join them.

    A part without names whose array has the shape (0,) has no rows, and is ignored if there are other parts. Raises
    InputError if a part is not a matrix of floating-point numbers, if it has names but not one per row, or if the
    dimensions of parts differ.
    """
    parts = [part for part in parts if part[1].shape != (0,) or part[2]] or parts
    for path, matrix, names in parts:
        if matrix.ndim != 2 or matrix.dtype.kind != "f" or not matrix.shape[1]:
            raise InputError(
                f"{path} has an array of the type {matrix.dtype} and the shape {matrix.shape}. Write a matrix of"
                " floating-point numbers, with one row per name."
            )
        if names is not None and len(matrix) != len(names):
            raise InputError(f"{path} has {len(matrix)} vectors, but {len(names)} names. Write one name per vector.")
        if matrix.shape[1] != parts[0][1].shape[1]:
            raise InputError(
                f"{path} has vectors of {matrix.shape[1]} numbers, but {parts[0][0]} has vectors of"
                f" {parts[0][1].shape[1]} numbers. Write vectors of the same length in all files."
            )
    named = [part for _, _, part in parts if part is not None]
    paths, matrices, _ = zip(*parts, strict=True)
    return ForeignFeatures([*chain.from_iterable(named)] if named else None, list(matrices), list(paths))


def _map_npy(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        # np.load would read a file with another beginning as an archive or a pickle.
        if file.read(len(NPY_START)) != NPY_START:
            raise InputError(f"{path} is not a .npy file of NumPy. Save one array with numpy.save.")
    with _reading(path):
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _strings(path: Path, column: pa.ChunkedArray | pa.Array) -> list[str]:
    names = column.to_pylist()
    if None in names:
        raise InputError(f"{path}: row {names.index(None)} (counted from 0) has no name. Remove the row.")
    return names


def _only(source: Source, what: str, candidates: Sequence[str]) -> str:
    """Return the dataset or column with the features or the names. `what` is `features` or `names`.

    The result is the user's choice, or else the only candidate. Among several candidates for the names, it is the first
    usual name in NAMES. Among several candidates for the features, it is the only candidate whose name says that it
    describes `source.of`. Raises UsageError if several candidates remain, or if the user's choice is not a candidate,
    and InputError if there are no candidates.
    """
    given = source.features if what == "features" else source.names
    if given is None and len(candidates) > 1:
        usual = [name for name in NAMES[source.of] if name in candidates][:1]
        of_kind = [name for name in candidates if marked(name) == source.of]
        candidates = (usual if what == "names" else of_kind) or candidates
    if given in candidates or (given is None and len(candidates) == 1):
        return given or candidates[0]
    if not candidates:
        raise InputError(f"{source.path} has {MISSING[what]}. Write the file again with its {what}.")
    raise UsageError(
        f"{source.path} may have its {what} in {', '.join(candidates)}. Set the key `{what}` of the encoder to one of"
        " them, or write a file with only one of them."
    )


def _require_modest(path: Path, claimed: int) -> None:
    """Raise InputError if the unpacked size that a file declares is implausibly large for the size of the file.

    `claimed` is the unpacked size in bytes, which may exceed MAX_UNPACKED_RATIO times the size of the file by at most
    SPARE_BYTES.
    """
    size = path.stat().st_size
    if claimed > SPARE_BYTES + MAX_UNPACKED_RATIO * size:
        raise InputError(
            f"{path} declares {claimed:,} bytes of features, but has only {size:,} bytes. Write the file again without"
            " compression."
        )
