"""Tests of the command `ingest`: its outputs, and that a refused collection leaves no outputs but the reasons."""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from slow_images import many_scans, slow_image
from synthetic_run import ingest

from pipeline.collections.assembly import Assembly
from pipeline.collections.intake import Intake
from pipeline.collections.records import DIVIDED, ImageRecord, SentenceRecord
from pipeline.errors import RejectLimitError
from pipeline.images import opening
from pipeline.images.decode import Inspection
from pipeline.storage.index_folder import REMOVED
from pipeline.storage.manifest import Manifest


@pytest.fixture
def root(tmp_path: Path, photograph) -> Path:
    """Make a collection of twenty images with one sentence each, and return its folder. Sixteen images belong to train,
    two to dev and two to test."""
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    names = [f"{n:02d}.jpg" for n in range(20)]
    for number, name in enumerate(names):
        (folder / "images" / name).write_bytes(photograph(number))
    (folder / "captions.tsv").write_text("".join(f"{name}\t0\tA dog .\n" for name in names))
    splits = ["train"] * 16 + ["dev"] * 2 + ["test"] * 2
    (folder / "splits.tsv").write_text("".join(f"{n}\t{s}\n" for n, s in zip(names, splits, strict=True)))
    return folder


@pytest.mark.parametrize(
    ("processes", "slow", "seconds"),
    [(0, lambda: many_scans(100, 4000), 0.2), (2, slow_image, 0.7)],
    ids=["here", "there"],
)
def test_images_that_take_too_long_are_rejected_and_nothing_else(
    root: Path, tmp_path: Path, processes: int, slow: Callable[[], bytes], seconds: float
) -> None:
    (root / "images" / "03.jpg").write_bytes(slow())
    (root / "images" / "17.jpg").write_bytes(many_scans(13_000))
    ingest(tmp_path, root, {"collection": {"decode_seconds": seconds, "reject_limit": 0.5}}, processes=processes)
    manifest = Manifest(tmp_path / "manifest")
    assert {row["file"]: row["reason"] for row in manifest.rejects() if row["what"] == "images"} == {
        "images/03.jpg": f"too-slow: decoding takes more CPU time than collection.decode_seconds allows, {seconds} s",
        "images/17.jpg": "too-slow: the JPEG has more than 100 scans. Save it with fewer",
    }
    assert manifest.images.num_rows == 18


def test_a_photo_that_runs_out_of_memory_is_rejected_and_the_run_continues(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (root / "images" / "07.jpg").read_bytes()
    load_in_memory = opening.load

    def load(given: bytes, *more: object) -> opening.Loaded:
        if given == data:
            raise MemoryError
        return load_in_memory(given, *more)

    monkeypatch.setattr("pipeline.images.opening.load", load)
    ingest(tmp_path, root, {"collection": {"reject_limit": 0.1}}, processes=0)
    manifest = Manifest(tmp_path / "manifest")
    (reject,) = (row for row in manifest.rejects() if row["what"] == "images")
    assert (reject["file"], reject["reason"].partition(":")[0]) == ("images/07.jpg", "out-of-memory")
    assert manifest.images.num_rows == 19


def test_a_second_run_with_other_processes_writes_the_same_files(root: Path, tmp_path: Path) -> None:
    for processes in (0, 2):
        ingest(tmp_path / str(processes), root, processes=processes)
    first, second = (Manifest(tmp_path / name / "manifest").fingerprint for name in ("0", "2"))
    assert first == second


def test_with_too_many_rejects_only_the_reasons_are_published(root: Path, tmp_path: Path, photograph) -> None:
    for name in ("03.jpg", "04.jpg"):
        (root / "images" / name).write_bytes(b"<html>")
    with pytest.raises(
        RejectLimitError, match=r"2 of 20 photos .* share of 0\.05 that collection\.reject_limit .*rejects\.jsonl"
    ):
        ingest(tmp_path, root)
    assert not (tmp_path / "manifest").exists()
    assert (tmp_path / "rejects.jsonl").read_text().count("not-an-image") == 2
    ingest(tmp_path, root, {"collection": {"reject_limit": 0.1}})
    assert Manifest(tmp_path / "manifest").n_shards == 1
    assert not (tmp_path / "rejects.jsonl").exists()
    (root / "images/04.jpg").write_bytes(photograph(4))
    ingest(tmp_path / "one", root, {"collection": {"reject_limit": 0.01}})
    with pytest.raises(RejectLimitError, match="1 of 20 photos"):
        ingest(tmp_path / "none", root, {"collection": {"reject_limit": 0}})


def test_splits_that_the_collection_names_are_not_drawn(root: Path, tmp_path: Path) -> None:
    ingest(tmp_path, root, {"collection": {"draw": ["dev", "test"]}})
    assert Manifest(tmp_path / "manifest").summary["splits"] == {"dev": 2, "test": 2, "train": 16}


def test_only_unmatched_lines_of_the_own_list_are_warnings_of_the_run(root: Path, tmp_path: Path) -> None:
    """Checks that a line in an index's list of removed photos gives no warning if the photo of the line is gone, and
    that such a line in the user's takedown list gives a warning."""
    removed = tmp_path / "index/ncca" / REMOVED
    removed.parent.mkdir(parents=True)
    removed.write_text("images/deleted.jpg\nimages/01.jpg\n")
    (tmp_path / "gone.txt").write_text("images/02.jpg\nimages/lost.jpg\n")
    ingest(tmp_path, root, {"collection": {"takedown": str(tmp_path / "gone.txt")}})
    manifest = Manifest(tmp_path / "manifest")
    (warning,) = manifest.summary["warnings"]
    assert "gone.txt names 'images/lost.jpg'" in warning and manifest.n_images == 18


def draw_splits(names: Iterable[str], silent: Collection[str] = (), by_name: bool = False) -> dict[str, str]:
    """Ingest images without a list of splits, and return the split of each image that is kept.

    Each image has a sentence, except the images in `silent`. The bytes of an image are its name up to a plus sign, so
    that names with the same beginning are copies.
    """

    def records() -> Iterator[ImageRecord | SentenceRecord]:
        for row, name in enumerate(names):
            yield ImageRecord(name, name, DIVIDED, "t.csv", row)
            if name not in silent:
                yield SentenceRecord(name, 0, "A dog .", "t.csv", row)

    with closing(Intake(200).add(records())) as intake:
        assembly = Assembly(intake, by_name)
        outcomes = (Inspection(9, 9, sha256(path.partition("+")[0])) for path, *_ in assembly.locations())
        parts = list(assembly.collect(outcomes).parts())
        return dict(zip(*(column(parts, name) for name in ("path", "split")), strict=True))


def column(parts: Iterable[Mapping[str, pa.Table]], name: str) -> list[str]:
    return [value for part in parts for value in part["images"][name].to_pylist()]


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def expected_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the expected split of each name. The names are sorted by their SHA-256. The first tenth, rounded down, is
    test, the next tenth, rounded to the nearest number, is dev, and the others are train."""
    by_hash = sorted(names, key=sha256)
    count = len(by_hash)
    tests = len(by_hash) // 10
    devs = (count + 5) // 10
    return dict(zip(by_hash, ["test"] * tests + ["dev"] * devs + ["train"] * (count - tests - devs), strict=True))


@pytest.mark.parametrize("count", [0, 4, 5, 9, 10, 14, 15, 300])
def test_photos_without_a_split_are_divided_by_the_hash_of_their_bytes(count: int) -> None:
    names = [f"{number}.jpg" for number in range(count)]
    silent = ["silent.jpg", "other.jpg"] if count else []
    assert draw_splits([*silent, *names], silent) == {**expected_splits(names), **dict.fromkeys(silent, "gallery")}


def test_at_most_a_thousand_photos_are_held_out_for_each_split() -> None:
    assert Counter(draw_splits(map(str, range(11_000))).values()) == {"train": 9_000, "dev": 1000, "test": 1000}


def test_copies_of_a_photo_count_once_and_names_do_not_decide_the_split() -> None:
    names = [f"{number}.jpg" for number in range(40)]
    copied = sorted(names, key=sha256)[20:]  # Copies of train photos must not make test larger.
    copies = [f"{name}+copy" for name in copied]
    assert draw_splits([*names, *copies]) == expected_splits(names)
    without_caption = draw_splits([*names, *copies], silent=copied)  # Only the copies of these photos have captions.
    assert without_caption == expected_splits(names)
    renamed = draw_splits([f"{name}+renamed" for name in names])
    assert renamed == {f"{name}+renamed": split for name, split in expected_splits(names).items()}


def test_vectors_are_divided_by_their_names() -> None:
    names = [f"{number}+{number % 40}" for number in range(40)]
    assert draw_splits(names, by_name=True) == expected_splits(names) != draw_splits(names)


def test_added_or_removed_photos_move_few_others_and_none_between_train_and_test() -> None:
    moved = []
    for seed in range(10):
        names = [f"{seed}-{number}.jpg" for number in range(512)]
        fewer = np.random.default_rng(seed).permutation(names)[26:].tolist()
        all_splits = draw_splits(names)
        fewer_splits = draw_splits(fewer)
        assert Counter(fewer_splits.values()) == {"test": 48, "dev": 49, "train": 389}
        pairs = Counter((all_splits[name], fewer_splits[name]) for name in fewer)
        assert not pairs["train", "test"] and not pairs["test", "train"] and pairs["test", "dev"] <= 3
        moved.append(sum(count for (before, after), count in pairs.items() if before != after))
    assert np.median(moved) <= 3, moved


def test_lists_of_removed_photos_and_takedowns_apply_to_names_but_not_to_ids(
    collection: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "runs/run"
    for model, line in (("ncca", f"images/a.jpg\t{'0' * 64}"), ("cca", "images/a.jpg")):
        (run / "index" / model).mkdir(parents=True)
        (run / "index" / model / "removed.txt").write_text(f"{line}\n")
    (tmp_path / "gone.txt").write_text("id:0\nnobody.jpg\nB.JPG\n")
    takedown = {"collection": {"takedown": str(tmp_path / "gone.txt"), "default_split": "gallery"}}
    (run / "config.yaml").write_text("{}\n")
    ingest(run, collection, takedown)
    assert Manifest(run / "manifest").images["path"].to_pylist() == ["images/t.jpg"]
    assert "'id:0' (an id: every ingest numbers the photos anew" in caplog.text
    assert "'nobody.jpg', but no photo" in caplog.text and caplog.text.count("has that name") == 1
