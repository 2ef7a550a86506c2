"""Shards: written arrays are read back, and values that are not finite or datasets in other files are refused."""

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from pipeline.compute.lazy_rows import Chained
from pipeline.errors import IntegrityError
from pipeline.storage.commit import publish
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters
from pipeline.storage.shards import FEATURES, OpenedOnUse, Shard, write_shard


def forge(path: Path) -> None:
    """Write a commit record that vouches for the HDF5 file at `path`, so that only the content of the file is wrong."""
    publish(path, path.read_bytes(), kind=FEATURES, rows=1)


def test_stored_arrays_are_read_as_memory_maps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "features": rng.random((50, 7)).astype(np.float16),
        "image_id": np.arange(50),
        "none": np.zeros((0, 3), np.float32),
    }
    write_shard(tmp_path / "s.h5", FEATURES, arrays, rows=50, details={"dim": 7})
    shard = Shard(tmp_path / "s.h5", FEATURES)
    for name, array in arrays.items():
        np.testing.assert_array_equal(shard[name], array)
        assert shard[name].dtype == array.dtype
    assert isinstance(shard["features"], np.memmap)
    with pytest.raises(IntegrityError, match="no dataset boxes"):
        shard["boxes"]


def test_writing_to_the_map_does_not_reach_the_file(tmp_path: Path) -> None:
    write_shard(tmp_path / "s.h5", FEATURES, {"x": np.zeros(4)}, rows=4)
    Shard(tmp_path / "s.h5", FEATURES)["x"][:] = 1
    assert not Shard(tmp_path / "s.h5", FEATURES)["x"].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused_with_their_row(tmp_path: Path, value: float) -> None:
    x = np.zeros((10, 3), np.float16)
    x[6, 1] = value
    with pytest.raises(IntegrityError, match="features row 6 is not finite"):
        write_shard(tmp_path / "s.h5", FEATURES, {"features": x}, rows=10)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("trick", ["external storage", "external link", "soft link", "virtual", "group", "chunked"])
def test_files_that_read_other_files_are_refused(tmp_path: Path, trick: str) -> None:
    (tmp_path / "secret").write_bytes(b"x" * 64)
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.arange(8)
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        if trick == "external storage":
            file.create_dataset("x", (8,), "i8", external=[(str(tmp_path / "secret"), 0, 64)])
        elif trick == "external link":
            file["x"] = h5py.ExternalLink("other.h5", "/x")
        elif trick == "soft link":
            file["x"] = h5py.SoftLink("/y")
        elif trick == "virtual":
            layout = h5py.VirtualLayout((8,), "i8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (8,))
            file.create_virtual_dataset("x", layout)
        elif trick == "group":
            file.create_group("x")
        else:
            file.create_dataset("x", data=np.arange(8), chunks=(4,))
    forge(path)
    with pytest.raises(IntegrityError, match="s.h5.*x"):
        Shard(path, FEATURES)


def test_stored_parameters_are_read_back(tmp_path: Path) -> None:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3).T, "n": np.array(7)}
    path = tmp_path / "model.safetensors"
    write_parameters(path, MODEL, tensors, settings={"c": 2}, details={"log": [1]})
    read = read_parameters(path, MODEL)
    np.testing.assert_array_equal(read.tensors["w"], tensors["w"])
    assert read.tensors["n"].shape == () and read.tensors["n"] == 7
    assert (read.settings, read.details) == ({"c": 2}, {"log": [1]})
    assert {item.name for item in tmp_path.iterdir()} == {"model.safetensors", "model.json"}


PARTS = [np.arange(4).reshape(2, 2), np.empty((0, 2), int), 10 + np.arange(10).reshape(5, 2), np.empty((0, 2), int)]
MASK = np.array([True, False, False, True, False, False, True])


@pytest.mark.parametrize("rows", [[], [0], [6, 0, 3, 3, 2], [1, 2, 3], [6, 5], [2, 2, 6]])
@pytest.mark.parametrize("kind", [list, np.int64, np.int16, np.uint8, np.uint64])
def test_rows_equal_the_rows_of_the_concatenated_array(rows: list[int], kind: type) -> None:
    chosen = rows if kind is list else np.array(rows, kind)
    gathered = Chained(PARTS)[chosen]
    np.testing.assert_array_equal(gathered, np.concatenate(PARTS)[np.array(rows, int)])
    assert gathered.dtype == PARTS[0].dtype and Chained(PARTS, np.float32)[chosen].dtype == np.float32


@pytest.mark.parametrize("rows", [MASK, ~MASK, slice(None), slice(5, 1, -2), slice(-3, 99), slice(4, 4)], ids=repr)
def test_masks_and_slices_choose_rows_as_in_numpy(rows: np.ndarray | slice) -> None:
    np.testing.assert_array_equal(Chained(PARTS)[rows], np.concatenate(PARTS)[rows])


@pytest.mark.parametrize(
    "rows",
    [
        [7], [0, 7], [9, 2, 0], [-1], [3, -1, 2], [2**32], np.array([2**64 - 1], np.uint64), np.array([7, 0], np.uint8),
        [1.0], np.array([0.5, 2]), ["1"], 3, np.array(3), [[0, 1]], [None], MASK[:6], [True, False],
    ],
    ids=repr,
)  # fmt: skip
def test_rows_out_of_range_or_of_another_type_are_refused(rows: object) -> None:
    with pytest.raises(IndexError, match="^(rows must be|there are 7 rows)"):
        Chained(PARTS)[rows]


def test_items_are_opened_once_when_they_are_first_used() -> None:
    opened: list[int] = []
    letters = OpenedOnUse(3, lambda number: opened.append(number) or "abc"[number])
    assert [*letters, letters[2]] == ["a", "b", "c", "c"] and opened == [0, 1, 2]
    for number in (-1, 3):
        with pytest.raises(IndexError):
            letters[number]


def test_no_row_of_empty_arrays_can_be_chosen() -> None:
    chained = Chained([np.empty((0, 3), np.float16)] * 2)
    assert chained[[]].shape == (0, 3) and chained[:].dtype == np.float16
    with pytest.raises(IndexError, match="there are 0 rows"):
        chained[[0]]


@pytest.mark.parametrize("sized", [False, True], ids=["shape", "shape and size"])
def test_a_dataset_that_claims_more_than_the_file_holds_is_refused(tmp_path: Path, sized: bool) -> None:
    path = tmp_path / "s.h5"
    with h5py.File(path, "w", libver="earliest") as file:  # The headers of this version have no checksums.
        file.create_dataset("features", data=np.ones((4, 1013)))
    data = path.read_bytes().replace(struct.pack("<QQ", 4, 1013), struct.pack("<QQ", 4000, 1013))
    if sized:
        data = data.replace(struct.pack("<Q", 4 * 1013 * 8), struct.pack("<Q", 4000 * 1013 * 8))
    path.write_bytes(data)
    forge(path)
    with pytest.raises(IntegrityError, match=r"s\.h5 is not a readable HDF5 file"):
        Shard(path, FEATURES)
