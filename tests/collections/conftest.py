"""Fixtures for tests of collections: tiny collections of noise images, and ingest without its command."""

import io
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from pipeline.collections.assembly import Assembly, Collection
from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats import FORMATS
from pipeline.collections.intake import Intake
from pipeline.collections.records import Options, Reject
from pipeline.compute.workers import isolated_map
from pipeline.images.decode import inspect
from pipeline.images.opening import ImageLimits
from pipeline.storage.sources import ImageSource

SOUND = {"a.jpg": "train", "b.jpg": "train", "t.jpg": "test"}
LIMITS = ImageLimits(max_pixels=1_000_000, min_side=8, max_aspect=20)


@pytest.fixture(scope="session")
def photograph() -> Callable[..., bytes]:
    def make(number: int = 0, kind: str = "JPEG", size: tuple[int, int] = (32, 24)) -> bytes:
        """Return a PNG or JPEG of noise with width and height `size`. Each number gives another image."""
        pixels = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        return buffer.getvalue()

    return make


@dataclass(frozen=True)
class IngestedCollection:
    """An ingested collection with all of its tables and rejects in memory. `unmet` has the lines of the takedown list
    that name no photo, each with the reason."""

    collection: Collection
    tables: dict[str, pa.Table]
    rejects: list[Reject]
    unmet: list[str]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.collection, name)

    def rejected(self, what: str) -> list[tuple[str, int | None, str]]:
        """Return the file, the row and the reason of each reject of the kind `what`, such as `images`."""
        return [(reject.file, reject.row, reject.reason) for reject in self.rejects if reject.what == what]

    def check_counts(self) -> None:
        fates = Counter((reject.what, reject.reason.startswith("duplicate")) for reject in self.rejects)
        for what, count in self.counts.items():
            assert count["given"] == count["kept"] + count["rejected"] + count["duplicate"], what
            assert count["kept"] == self.tables[what].num_rows
            assert (count["rejected"], count["duplicate"]) == (fates[what, False], fates[what, True])


@pytest.fixture(scope="session")
def gather() -> Callable[..., IngestedCollection]:
    def run(
        root: Path, kind: str = "folder", *, files=None, columns=None, default="train", follow_links=False,
        takedown=(), removed=(),
    ) -> IngestedCollection:  # fmt: skip
        options = Options(files or {}, columns or {}, default, follow_links)
        records = FORMATS[kind](root, options)
        look = partial(inspect, ImageSource(root, follow_links).read, LIMITS)
        folder = CollectionFolder(root, options)
        with closing(Intake(max_chars=200, folder=folder, takedown=takedown, removed=removed)) as intake:
            assembly = Assembly(intake.add(records))
            found = assembly.collect(isolated_map(look, assembly.locations(), 0))
            parts = list(found.parts())
            tables = {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]} if parts else {}
            return IngestedCollection(
                found,
                tables,
                list(found.rejects),
                [f"{line!r}{why}" for line, why in intake.takedown.unmatched.items()],
            )

    return run


@pytest.fixture
def collection(tmp_path: Path, photograph) -> Path:
    """Make a valid collection in the format `folder`, which a test may then damage, and return the path of its folder.

    It has an image in the folder `images`, a sentence in captions.tsv and a split in splits.tsv for each name in SOUND.
    """
    (tmp_path / "images").mkdir()
    for number, name in enumerate(SOUND):
        (tmp_path / "images" / name).write_bytes(photograph(number))
    (tmp_path / "captions.tsv").write_text("".join(f"{name}\t0\tA dog {name} .\n" for name in SOUND))
    (tmp_path / "splits.tsv").write_text("".join(f"{name}\t{split}\n" for name, split in SOUND.items()))
    return tmp_path
