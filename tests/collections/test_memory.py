"""What ingest holds does not grow with the collection."""

import hashlib
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from pipeline.collections.assembly import Assembly
from pipeline.collections.intake import Intake
from pipeline.collections.records import ImageRecord, Record, SentenceRecord
from pipeline.images.decode import Inspection
from pipeline.storage.manifest_writer import write_manifest


def records(count: int) -> Iterator[Record]:
    """A list of images and a list of a sentence for each, scattered."""
    for row in range(count):
        yield ImageRecord(f"{row}.jpg", f"images/{row}.jpg", "divided", "splits.tsv", row)
    for row in range(count):
        number = row * 1_000_003 % count
        yield SentenceRecord(f"{number}.jpg", 0, f"dog {number} runs over the green grass by the sea", "t.tsv", row)


def ingest(count: int, folder: Path, look: Callable[[], None] = lambda: None) -> None:
    """A collection of so many made-up images, of which one in a thousand is a duplicate; `look` now and then."""

    def looking(items: Iterable) -> Iterator:
        for number, item in enumerate(items):
            if number % 500 == 0:
                look()
            yield item

    def outcomes(locations: Iterable[tuple[str, int | None, int | None]]) -> Iterator[Inspection]:
        for number, (path, *_) in enumerate(locations):
            yield Inspection(500, 375, hashlib.sha256(path.encode() if number % 1000 else b"same").hexdigest())

    folder.mkdir()
    with closing(Intake(2000, None, folder / "tables")) as intake:
        assembled = Assembly(intake.add(looking(records(count))))
        found = assembled.collect(looking(outcomes(assembled.locations())))
        parts = map(lambda part: look() or part, found.parts())
        rejects = (reject._asdict() for reject in found.rejects)
        write_manifest(folder / "manifest", Path("data"), parts, rejects, found.counts, 1024)
        duplicates = -(-count // 1000) - 1
        assert found.counts["images"] == {
            "given": count, "kept": count - duplicates, "rejected": 0, "duplicate": duplicates,
        }  # fmt: skip


def peak(count: int, folder: Path) -> int:
    """MB of a process that ingests so many images."""
    ingest(count, folder)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.slow
def test_a_process_stays_as_large(tmp_path: Path) -> None:
    """Four times the images take 54 MB more at 300,000, where DuckDB's memory is not full yet."""
    spawn = get_context("spawn")
    most = []
    for count in (300_000, 1_200_000):
        with spawn.Pool(1) as pool:
            most.append(pool.apply(peak, (count, tmp_path / str(count))))
    assert most[1] < most[0] + 120, most
