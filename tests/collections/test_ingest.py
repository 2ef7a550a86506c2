"""The command: what it publishes, and that it publishes nothing of a collection that it refuses."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hostile import many_scans, slow_image
from made_up import ingest

from pipeline.collections.assembly import Assembly
from pipeline.collections.intake import Intake
from pipeline.collections.records import DIVIDED, ImageRecord, SentenceRecord
from pipeline.errors import RejectLimitError
from pipeline.images.decode import Inspection
from pipeline.storage.manifest import Manifest


@pytest.fixture
def root(tmp_path: Path, photograph) -> Path:
    """Twenty images, a sentence each, the last ones in dev and test."""
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
        "images/03.jpg": f"too-slow: took longer than {seconds} s to decode (collection.decode_seconds)",
        "images/17.jpg": "too-slow: a JPEG of more than 100 scans",
    }
    assert manifest.images.num_rows == 18


def test_a_second_run_writes_the_same_whatever_the_processes(root: Path, tmp_path: Path) -> None:
    for processes in (0, 2):
        ingest(tmp_path / str(processes), root, processes=processes)
    first, second = (Manifest(tmp_path / name / "manifest").fingerprint for name in ("0", "2"))
    assert first == second


def test_too_many_rejects_publish_nothing_but_the_reasons(root: Path, tmp_path: Path, photograph) -> None:
    for name in ("03.jpg", "04.jpg"):
        (root / "images" / name).write_bytes(b"<html>")
    with pytest.raises(RejectLimitError, match=r"2 of 20 images .* collection\.reject_limit 0\.05 .*rejects\.jsonl"):
        ingest(tmp_path, root)
    assert not (tmp_path / "manifest").exists()
    assert (tmp_path / "rejects.jsonl").read_text().count("not-an-image") == 2
    ingest(tmp_path, root, {"collection": {"reject_limit": 0.1}})
    assert Manifest(tmp_path / "manifest").n_shards == 1
    assert not (tmp_path / "rejects.jsonl").exists()
    (root / "images/04.jpg").write_bytes(photograph(4))
    ingest(tmp_path / "one", root, {"collection": {"reject_limit": 0.01}})
    with pytest.raises(RejectLimitError, match="1 of 20 images"):
        ingest(tmp_path / "none", root, {"collection": {"reject_limit": 0}})


def divided(count: int, silent: tuple[int, ...] = ()) -> list[str]:
    """The splits of so many images that no list puts anywhere, each with a sentence but the `silent` ones."""

    def records() -> Iterator[ImageRecord | SentenceRecord]:
        for number in range(count):
            yield ImageRecord(f"{number}.jpg", f"{number}.jpg", DIVIDED, "t.csv", number)
            if number not in silent:
                yield SentenceRecord(f"{number}.jpg", 0, "A dog .", "t.csv", number)

    with closing(Intake(200).add(records())) as intake:
        assembly = Assembly(intake)
        outcomes = (Inspection(9, 9, path) for path, *_ in assembly.locations())
        parts = assembly.collect(outcomes).parts()
        return [split for part in parts for split in part["images"]["split"].to_pylist()]


def test_images_in_no_split_are_divided() -> None:
    """The fifth and the tenth of every ten that have a sentence, up to a thousand; images at the end change nothing."""
    splits = divided(25, silent=(0, 7))
    assert [row for row, split in enumerate(splits) if split == "dev"] == [5, 16]
    assert [row for row, split in enumerate(splits) if split == "test"] == [11, 21]
    assert Counter(splits) == {"train": 19, "dev": 2, "test": 2, "gallery": 2}
    assert divided(20, silent=(0, 7)) == splits[:20]
    assert Counter(divided(11_000)) == {"train": 9_000, "dev": 1000, "test": 1000}


def test_removed_photos_and_a_takedown_list_are_obeyed_and_ids_are_not(
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
    assert "'nobody.jpg', but no photo" in caplog.text and caplog.text.count("has that name") == 2
