"""Tests that the memory of ingest does not grow with the collection."""

import hashlib
import resource
from collections.abc import Iterable, Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.collections.assembly import Assembly
from pipeline.collections.intake import Intake
from pipeline.collections.records import ImageRecord, Record, SentenceRecord
from pipeline.collections.tables import TEMPORARY, Tables
from pipeline.images.decode import Inspection
from pipeline.storage.manifest import write_manifest

WORDS = "a brown dog runs over the green grass by the sea and a child throws it a red ball"


def test_tables_larger_than_memory_are_sorted_on_disk(tmp_path: Path) -> None:
    """Checks that tables with a limit of 50 MB of memory sort half a million rows, which need more memory, that they
    use temporary files for this, and that they remove these files."""
    count = 500_000
    owners = np.random.default_rng(7).integers(0, count // 2, count)
    schema = pa.schema([("seq", pa.int64()), ("owner", pa.int64()), ("text", pa.string())])
    with closing(Tables(tmp_path / "tables", {"given": schema}, gigabytes=0.05)) as tables:
        for seq, owner in enumerate(owners.tolist()):
            tables.append("given", (seq, owner, f"{WORDS} {seq}"))
        assert tables.run("CREATE TABLE sorted AS FROM given ORDER BY owner, seq") == count
        spilled = [path.name for path in (tmp_path / "tables").iterdir()]
        assert spilled and all(map(TEMPORARY.fullmatch, spilled))
        found = list(tables.rows("SELECT seq, text FROM sorted ORDER BY owner, seq"))
        assert [seq for seq, _ in found] == np.lexsort([np.arange(count), owners]).tolist()
        assert all(text == f"{WORDS} {seq}" for seq, text in found)
    assert not list(tmp_path.rglob("*.*"))


def records(count: int) -> Iterator[Record]:
    """Yield the records of `count` images, and then of one sentence for each image, in another order of the images."""
    for row in range(count):
        yield ImageRecord(f"{row}.jpg", f"images/{row}.jpg", "divided", "splits.tsv", row)
    for row in range(count):
        number = row * 1_000_003 % count
        yield SentenceRecord(f"{number}.jpg", 0, f"dog {number} runs over the green grass by the sea", "t.tsv", row)


def peak(count: int, folder: Path) -> int:
    """Ingest `count` synthetic images and return the peak memory of this process in MiB. Every thousandth image has the
    same bytes, so all of these images but the first are duplicates. The function must run in a process of its own."""

    def outcomes(locations: Iterable[tuple[str, int | None, int | None]]) -> Iterator[Inspection]:
        for number, (path, *_) in enumerate(locations):
            yield Inspection(500, 375, hashlib.sha256(path.encode() if number % 1000 else b"same").hexdigest())

    folder.mkdir()
    with closing(Intake(2000, None, folder / "tables", gigabytes=0.1)) as intake:
        assembly = Assembly(intake.add(records(count)))
        collection = assembly.collect(outcomes(assembly.locations()))
        rejects = (reject._asdict() for reject in collection.rejects)
        write_manifest(folder / "manifest", Path("data"), collection.parts(), rejects, collection.counts, 1024)
    duplicates = -(-count // 1000) - 1
    images = {"given": count, "kept": count - duplicates, "rejected": 0, "duplicate": duplicates}
    assert collection.counts["images"] == images
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.slow
def test_memory_of_a_process_does_not_grow_with_the_collection(tmp_path: Path) -> None:
    spawn = get_context("spawn")
    most = []
    for count in (100_000, 400_000):
        with spawn.Pool(1) as pool:
            most.append(pool.apply(peak, (count, tmp_path / str(count))))
    assert most[1] < most[0] + 150, most
