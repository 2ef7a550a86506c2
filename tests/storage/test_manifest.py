"""The manifest: written tables are read back, shards keep their fingerprints, and damaged tables are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import IntegrityError
from pipeline.storage.manifest import (
    BOXES,
    DOCUMENTS,
    Manifest,
    shard_fingerprints,
    write_manifest,
    write_rejects,
)
from pipeline.storage.pairs import split_ids, split_pairs

SHARD_SIZE = 4


def tables(n_images: int, sentences_each: int = 2, split: str = "train") -> dict[str, pa.Table]:
    numbers = np.arange(n_images)
    owners = np.repeat(numbers, sentences_each)
    images = {
        "image_id": numbers,
        "path": [f"images/{n}.jpg" for n in numbers],
        **dict.fromkeys(("member", "offset", "size"), pa.nulls(n_images)),
        "split": [split] * n_images,
        "width": numbers + 8,
        "height": numbers + 9,
        "sha256": [f"{n:064x}" for n in numbers],
    }
    sentences = {"sentence_id": np.arange(len(owners)), "image_id": owners, "text": [f"A dog {n} ." for n in owners]}
    return {
        "images": pa.table(images),
        "sentences": pa.table(sentences),
        "documents": DOCUMENTS.empty_table(),
        "boxes": BOXES.empty_table(),
    }


def write(folder: Path, n_images: int = 10, rejects: Any = (), **options: Any) -> Manifest:
    counts = {"images": {"given": n_images, "kept": n_images, "rejected": 0, "duplicate": 0}}
    write_manifest(folder, Path("data"), [tables(n_images, **options)], list(rejects), counts, SHARD_SIZE)
    return Manifest(folder)


def shard_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "shards").iterdir()}


def names(*shards: int) -> set[str]:
    return {f"{n:05d}.{end}" for n in shards for end in ("json", "images.parquet", "sentences.parquet")}


def test_images_added_at_the_end_do_not_change_full_shards(tmp_path: Path) -> None:
    write(tmp_path, 9)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    before = shard_files(tmp_path)
    write(tmp_path, 11)
    after = shard_files(tmp_path)
    assert {name for name in after if after[name] == before.get(name)} == names(0, 1)
    assert all((tmp_path / "shards" / name).stat().st_mtime_ns == times[name] for name in names(0))


def test_leftover_shards_of_a_larger_manifest_are_removed(tmp_path: Path) -> None:
    write(tmp_path, 9)
    (tmp_path / "shards" / "00002.images.parquet").write_bytes(b"another's")
    write(tmp_path, 4)
    assert set(shard_files(tmp_path)) == names(0) | {"00002.images.parquet"}
    write(tmp_path, 4, sentences_each=0)
    assert set(shard_files(tmp_path)) == names(0) - {"00000.sentences.parquet"} | {"00002.images.parquet"}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_table_in_which_a_shard_has_no_rows_leaves_no_file(damaged: bool, tmp_path: Path) -> None:
    """A manifest is written again without sentences. The old files of sentences are removed, whether the old commit
    record of a shard lists them, or is damaged and lists nothing."""
    write(tmp_path, 6)
    if damaged:
        (tmp_path / "shards/00001.json").write_text("{")
    write(tmp_path, 6, sentences_each=0)
    assert set(shard_files(tmp_path)) == {name for name in names(0, 1) if "sentences" not in name}
    (tmp_path / "shards/00000.sentences.parquet").write_bytes(b"left by a process that was killed before it cleaned up")
    write(tmp_path, 6, sentences_each=0)
    assert "00000.sentences.parquet" not in shard_files(tmp_path)


@pytest.mark.parametrize("numbers", [[0], [0, 3, 4, 9], [9, 9], range(3, 7), []], ids=repr)
def test_selected_rows_equal_the_rows_of_the_whole_table(numbers: list[int], tmp_path: Path) -> None:
    manifest = write(tmp_path)
    assert manifest.rows("images", numbers)["image_id"].to_pylist() == list(numbers)
    assert [row["image_id"] for row in manifest.pick(numbers[::-1])] == list(numbers[::-1])


@pytest.mark.parametrize("numbers", [[10], [-1], [-1, 3], [2, 99], [3, 2], [5, 0, 5]], ids=repr)
def test_row_numbers_out_of_range_or_order_are_refused(numbers: list[int], tmp_path: Path) -> None:
    with pytest.raises(IndexError, match="row numbers of images must be in ascending order and from 0 to 9"):
        write(tmp_path).rows("images", numbers)


def test_pairs_of_a_split_equal_those_of_a_plain_loop(tmp_path: Path) -> None:
    """The first shard has images of the splits `train` and `dev`, the second shard only of `dev`, and the last shard
    only of `train`. The ids and texts of each split, and of both splits together, are compared with the results of a
    loop over all images."""
    splits = ["dev", "train", "dev", "train", *["dev"] * 4, "train", "train"]
    parts = tables(10)
    parts["images"] = parts["images"].set_column(5, "split", pa.array(splits))
    counts = {"images": {"given": 10, "kept": 10, "rejected": 0, "duplicate": 0}}
    write_manifest(tmp_path, Path("data"), [parts], [], counts, SHARD_SIZE)
    manifest = Manifest(tmp_path)
    for wanted in (["dev"], ["train"], ["train", "dev"]):
        images = [number for number, split in enumerate(splits) if split in wanted]
        sentences = [2 * number + one for number in images for one in range(2)]
        pairs = split_pairs(manifest, *wanted)
        ids = split_ids(manifest, wanted)
        assert pairs.image_id.tolist() == ids["images"].tolist() == images
        assert pairs.sentence_id.tolist() == ids["sentences"].tolist() == sentences
        assert pairs.image_id[pairs.owners].tolist() == [number // 2 for number in sentences]
        for split in wanted:
            texts = {number: f"A dog {number} ." for number in range(10) if splits[number] == split}
            assert list(manifest.texts_of(split)) == [text for text in texts.values() for _ in range(2)]
            of_shards = [text for number, text in texts.items() if number >= SHARD_SIZE for _ in range(2)]
            assert list(manifest.texts_of(split, range(1, 3))) == of_shards
        assert split_ids(manifest, wanted, [2])["images"].tolist() == [number for number in images if number >= 8]


def test_counts_that_do_not_add_up_publish_nothing(tmp_path: Path) -> None:
    counts = {"images": {"given": 11, "kept": 10, "rejected": 0, "duplicate": 0}}
    with pytest.raises(IntegrityError, match="counts of images are inconsistent"):
        write_manifest(tmp_path / "m", Path("data"), [tables(10)], [], counts, SHARD_SIZE)
    assert not (tmp_path / "m").exists()


def test_rejects_are_lines_of_json_whatever_the_name(tmp_path: Path) -> None:
    reject = {"file": "b\udcf6d.jpg", "row": None, "what": "images", "reason": "line\nfeed\u2028"}
    write_rejects(tmp_path / "rejects.jsonl", [reject, reject])
    lines = (tmp_path / "rejects.jsonl").read_bytes().split(b"\n")
    assert [json.loads(line) for line in lines[:2]] == [reject, reject] and lines[2:] == [b""]


def test_damaged_and_missing_tables_are_named(tmp_path: Path) -> None:
    write(tmp_path)
    images = tmp_path / "shards" / "00001.images.parquet"
    data = bytearray(images.read_bytes())
    data[len(data) // 2] ^= 1
    images.write_bytes(data)
    (tmp_path / "shards" / "00002.sentences.parquet").unlink()
    manifest = Manifest(tmp_path)
    with pytest.raises(IntegrityError, match=r"00001\.images\.parquet is changed"):
        _ = manifest.images
    with pytest.raises(IntegrityError, match=r"00002\.sentences\.parquet is missing"):
        _ = manifest.sentences
    with pytest.raises(IntegrityError, match=r"manifest\.json does not exist\. Run the stage"):
        Manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("row", [0, 3, 7])
def test_every_row_of_a_shard_counts_for_its_fingerprint(row: int) -> None:
    given = tables(SHARD_SIZE)
    before = shard_fingerprints(given)
    texts = given["sentences"]["text"].to_pylist()
    texts[row] += " again"
    given["sentences"] = given["sentences"].set_column(2, "text", pa.array(texts))
    after = shard_fingerprints(given)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"sentences", "content"}
