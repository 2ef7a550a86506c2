"""Precomputed vectors: every format gives the same rows, and no file can run code or read other files."""

import os
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from pipeline.errors import InputError
from pipeline.foreign import files
from pipeline.foreign.vectors import ForeignFeatures, Source, foreign_files, open_foreign

NAMES = ["a.jpg", "ä b.jpg", "c\u2028.jpg", "d.jpg", "e.jpg"]
ROWS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


def read(path: Path, features: str | None = None, names: str | None = None) -> ForeignFeatures:
    return open_foreign(Source(path, features, names))


def make_npy(folder: Path) -> Path:
    np.save(folder / "f.npy", ROWS)
    (folder / "f.txt").write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    return folder / "f.npy"


def make_hdf5(folder: Path, **layout: object) -> Path:
    with h5py.File(folder / "f.h5", "w") as file:
        file.create_dataset("embeddings", data=ROWS, **layout)
        file.create_dataset("labels", data=np.arange(5))
        file.create_dataset("files", data=[name.encode() for name in NAMES] if layout else NAMES)
    return folder / "f.h5"


def make_chunked_hdf5(folder: Path) -> Path:
    return make_hdf5(folder, chunks=(2, 3), compression="gzip")


def make_parquet(folder: Path, kind: pa.DataType | None = None) -> Path:
    vectors = pa.array(ROWS.tolist(), kind or pa.list_(pa.float32()))
    pq.write_table(pa.table({"vector": vectors, "file": NAMES, "n": range(5)}), folder / "f.parquet", row_group_size=2)
    return folder / "f.parquet"


def make_fixed_parquet(folder: Path) -> Path:
    return make_parquet(folder, pa.list_(pa.float32(), 3))


def make_clip_retrieval(folder: Path) -> Path:
    for what in ("img_emb", "metadata"):
        (folder / what).mkdir()
    # Part 10 comes after part 2, because parts are sorted by number.
    for number, rows in ((2, slice(0, 2)), (10, slice(2, 5))):
        np.save(folder / f"img_emb/img_emb_{number}.npy", ROWS[rows])
        table = pa.table({"image_path": NAMES[rows], "caption": NAMES[rows]})
        pq.write_table(table, folder / f"metadata/metadata_{number}.parquet")
    return folder


def make_categories_and_tensors(folder: Path) -> Path:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(ROWS)
    pq.write_table(pa.table({"vector": tensors, "file": pa.array(NAMES).dictionary_encode()}), folder / "f.parquet")
    return folder / "f.parquet"


def make_clip_retrieval_with_an_empty_part(folder: Path) -> Path:
    np.save(make_clip_retrieval(folder) / "img_emb/img_emb_5.npy", np.empty(0))
    pq.write_table(pa.table({"image_path": pa.array([], pa.string())}), folder / "metadata/metadata_5.parquet")
    return folder


def make_npz(folder: Path) -> Path:
    files = np.array([name.encode() for name in NAMES])
    np.savez(folder / "f.npz", embeddings=ROWS, files=files, labels=np.arange(5), encoder=np.array("ViT-B-32"))
    return folder / "f.npz"


def make_compressed_npz(folder: Path) -> Path:
    np.savez_compressed(folder / "f.npz", ROWS)
    (folder / "f.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return folder / "f.npz"


def make_safetensors(folder: Path) -> Path:
    save_file({"embeddings": torch.from_numpy(ROWS), "labels": torch.arange(5)}, folder / "f.safetensors")
    (folder / "f.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return folder / "f.safetensors"


def make_torch(folder: Path) -> Path:
    torch.save({"embeddings": torch.nn.Parameter(torch.from_numpy(ROWS)), "files": NAMES, "n": 5}, folder / "f.pt")
    return folder / "f.pt"


def make_lone_tensor(folder: Path) -> Path:
    torch.save(torch.from_numpy(ROWS), folder / "f.pth", _use_new_zipfile_serialization=False)
    (folder / "f.txt").write_text("\n".join(NAMES), encoding="utf-8")
    return folder / "f.pth"


MAKERS = [
    make_npy, make_hdf5, make_chunked_hdf5, make_parquet, make_fixed_parquet, make_clip_retrieval, make_npz,
    make_compressed_npz, make_safetensors, make_torch, make_lone_tensor, make_categories_and_tensors,
    make_clip_retrieval_with_an_empty_part,
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_every_file_format_gives_the_same_rows(tmp_path: Path, make) -> None:
    foreign = read(make(tmp_path))
    assert foreign.names == NAMES
    for rows in ([0, 1, 2, 3, 4], [4, 0, 3], [1], []):
        taken = foreign.take(np.array(rows, int))
        assert taken.dtype == np.float32 and np.array_equal(taken, ROWS[rows])


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()], ids=str)
def test_any_type_of_strings_can_be_names(kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"vector": pa.array(ROWS.tolist(), pa.list_(pa.float32())), "file": pa.array(NAMES, kind)})
    pq.write_table(table, tmp_path / "f.parquet")
    assert read(tmp_path / "f.parquet").names == NAMES


@pytest.mark.parametrize("name", ["f.pt", "f.safetensors"])
def test_bfloat16_is_read_as_float32(tmp_path: Path, name: str) -> None:
    """Many encoders compute in bfloat16, which NumPy does not have. The numbers are not changed by the conversion."""
    rounded = torch.from_numpy(ROWS).bfloat16()
    (torch.save if name == "f.pt" else save_file)({"embeddings": rounded}, tmp_path / name)
    (tmp_path / "f.txt").write_text("\n".join(NAMES), encoding="utf-8")
    assert np.array_equal(read(tmp_path / name).take(np.arange(5)), rounded.float().numpy())


def test_sentences_without_names_are_in_the_order_of_the_run(tmp_path: Path) -> None:
    for make in (make_safetensors, make_lone_tensor, make_compressed_npz):
        path = make(tmp_path)
        source = Source(path, None, None, "sentences")
        assert open_foreign(source).names == NAMES and foreign_files(source) == [path, tmp_path / "f.txt"]
        (tmp_path / "f.txt").unlink()
        assert open_foreign(source).names is None and foreign_files(source) == [path]
        with pytest.raises(
            InputError, match="f.txt does not exist. Write a file at this path that lists the names of the rows of "
        ):
            read(path)


@pytest.mark.parametrize(
    ("features", "names", "said"),
    [
        (ROWS, NAMES[:4], "5 vectors, but 4 names"),
        (ROWS[0], NAMES, r"float32 and the shape \(3,\)\. Write a matrix of floating-point"),
        (np.arange(10).reshape(5, 2), NAMES, r"int64 and the shape \(5, 2\)\. Write a matrix of floating-point"),
        (np.array([[{}]], dtype=object), ["a"], "cannot read features from .*Python objects"),
    ],
)
def test_file_without_a_matrix_of_named_rows_is_refused(tmp_path: Path, features, names: list[str], said: str) -> None:
    np.save(tmp_path / "f.npy", features, allow_pickle=True)
    (tmp_path / "f.txt").write_text("\n".join(names), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read(tmp_path / "f.npy")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    for make in (make_npy, make_hdf5, make_parquet, make_npz, make_safetensors, make_torch, make_lone_tensor):
        path = make(tmp_path)
        path.write_bytes(path.read_bytes()[:60])
        with pytest.raises(InputError, match=rf"cannot read .*{path.name}"):
            read(path)


@pytest.mark.parametrize(
    ("place", "data"), [("img_emb/img_emb_10.npy", "half"), ("metadata/metadata_2.parquet", None), ("f.pt", [Path()])]
)
def test_the_message_names_the_part_and_the_remedy_in_one_line(tmp_path: Path, place: str, data: object) -> None:
    """The cases are a truncated part, missing metadata, and Python objects, which torch advises to unpickle."""
    path = make_clip_retrieval(tmp_path) / place
    source = tmp_path
    if data is None:
        path.unlink()
    elif data == "half":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        torch.save(data, path)
        source = path
    with pytest.raises(InputError, match=rf"^[^\n]*{path.name}[^\n]*$") as error:
        read(source)
    assert "weights_only" not in str(error.value)


def test_file_with_contradictory_metadata_is_refused(tmp_path: Path) -> None:
    """The schema requires a name in each row, but the column was written as a column in which names may be missing. The
    message says that the file cannot be read, or that it crashed the process that read it for trial."""
    path = make_parquet(tmp_path)
    optional, required = (b"\x25" + bytes([kind]) + b"\x18\x04file" for kind in (2, 0))
    data = path.read_bytes()
    assert data.count(optional) == 1
    path.write_bytes(data.replace(optional, required))
    with pytest.raises(
        InputError, match=r"cannot read .*f.parquet|f.parquet crashed the process that read it for trial"
    ):
        read(path)


def test_file_that_crashes_its_reader_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.foreign.vectors._load_columns", end_process)
    with pytest.raises(InputError, match=r"f.parquet crashed the process that read it for trial"):
        read(make_parquet(tmp_path))


def end_process(*_: object) -> None:
    os.abort()


def test_parquet_file_that_claims_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    """A file of less than a megabyte declares 1 GB of zeros. Parquet stores them as one entry of a dictionary."""
    zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1 << 24, np.float32)), 1 << 10)
    group = pa.table({"vector": zeros, "file": ["a.jpg"] * len(zeros)})
    with pq.ParquetWriter(tmp_path / "f.parquet", group.schema, compression="zstd") as writer:
        for _ in range(16):
            writer.write_table(group)
    assert (tmp_path / "f.parquet").stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"f\.parquet declares 1,.* bytes of features"):
        read(tmp_path / "f.parquet")


def test_parquet_file_that_needs_more_than_the_memory_of_a_trial_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of less than a megabyte has 4,096 rows with the same name of 1 MiB. Parquet stores the name once, and its
    metadata do not tell the size of all names, so only the memory limit of the trial stops the reader."""
    monkeypatch.setattr(files, "MAX_TRIAL_BYTES", 1 << 31)  # The allocator of pyarrow reserves 1 GB.
    names = pa.DictionaryArray.from_arrays(np.zeros(1 << 12, np.int32), ["x" * (1 << 20)])
    table = pa.table({"vector": [[1.0, 2.0]] * len(names), "file": names})
    pq.write_table(table, tmp_path / "f.parquet", compression="zstd", store_schema=False)
    assert (tmp_path / "f.parquet").stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"f\.parquet needs more than 2 GB of memory to be read"):
        read(tmp_path / "f.parquet")


def test_file_of_arrays_cannot_run_code(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", embeddings=ROWS, files=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"cannot read features from .*f.npz .*allow_pickle"):
        read(tmp_path / "f.npz")
    torch.save({"embeddings": ROWS}, tmp_path / "f.pt")
    with pytest.raises(InputError, match=r"cannot read features from .*f.pt"):
        read(tmp_path / "f.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt")  # torch raises another error
    with pytest.raises(InputError, match=r"cannot read features from .*script.pt") as caught:
        read(tmp_path / "script.pt")
    assert "weights_only" not in str(caught.value)
    np.savez_compressed(tmp_path / "bomb.npz", embeddings=np.zeros((1 << 15, 1 << 10), np.float32))
    with pytest.raises(InputError, match="bomb.npz declares 134,.* bytes of features"):
        read(tmp_path / "bomb.npz")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 3)], ids=str
)
@pytest.mark.parametrize("row", [0, 2])
def test_a_row_without_a_vector_is_named(tmp_path: Path, kind: pa.DataType, row: int) -> None:
    vectors = [[1.0, 2, 3], [4.0, 5, 6], [7.0, 8, 9]]
    vectors[row] = None
    pq.write_table(pa.table({"vector": pa.array(vectors, kind), "file": ["a", "b", "c"]}), tmp_path / "f.parquet")
    with pytest.raises(InputError, match=rf"f\.parquet: row {row} has no vector in the column vector\. Rows are"):
        read(tmp_path / "f.parquet")


def test_small_files_may_have_any_compression_ratio(tmp_path: Path) -> None:
    same = np.ones((2000, 64), np.float32)
    np.savez_compressed(tmp_path / "f.npz", embeddings=same, files=np.array([f"{n}.jpg" for n in range(2000)]))
    assert same.nbytes > 50 * (tmp_path / "f.npz").stat().st_size
    np.savez_compressed(tmp_path / "g.npz", same)
    (tmp_path / "g.txt").write_text("".join(f"{n}.jpg\n" for n in range(2000)))
    assert same.nbytes > 100 * (tmp_path / "g.npz").stat().st_size
    for name in ("f.npz", "g.npz"):
        np.testing.assert_array_equal(read(tmp_path / name).take(np.array([1999])), same[:1])


@pytest.mark.parametrize("bad", [[1.0, 2.0], None])
def test_a_ragged_row_is_named(tmp_path: Path, bad: list[float] | None) -> None:
    table = pa.table({"vector": pa.array([[1.0, 2, 3], bad], pa.list_(pa.float32())), "file": ["a", "b"]})
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(InputError, match=r"f.parquet: (the vector of )?row 1"):
        read(tmp_path / "f.parquet")


def test_hdf5_cannot_read_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(ROWS.tobytes())
    whole = make_hdf5(tmp_path)

    def with_link(file: h5py.File) -> None:
        file["embeddings"] = h5py.ExternalLink(str(whole), "embeddings")

    def with_storage(file: h5py.File) -> None:
        file.create_dataset("embeddings", (5, 3), "f4", external=[(str(secret), 0, 60)])

    def with_view(file: h5py.File) -> None:
        layout = h5py.VirtualLayout((5, 3), "f4")
        layout[:] = h5py.VirtualSource(str(whole), "embeddings", (5, 3))
        file.create_virtual_dataset("embeddings", layout)

    for build in (with_link, with_storage, with_view):
        with h5py.File(tmp_path / "bad.h5", "w") as file:
            build(file)
            file.create_dataset("files", data=NAMES, dtype=h5py.string_dtype())
        with pytest.raises(
            InputError,
            match=r"bad.h5 .*embeddings (is a link|reads other files), which is not \w+\)\. Write the file",
        ):
            read(tmp_path / "bad.h5")
