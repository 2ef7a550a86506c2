"""The second half of ingest: which images can be used, and the tables of a manifest.

Everything is either kept, rejected with a reason, or a duplicate. Of images with the same bytes the first is kept. What
belongs to an image shares its fate. An image without a sentence is kept, too: in the split `weak` if it has a document
and the collection names no other split, else in `gallery`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.collections import annotations
from pipeline.collections.annotations import IMAGE_DUPLICATE, IMAGE_REJECTED, Images, are_none
from pipeline.collections.collection import Collection, SplitSummary
from pipeline.collections.intake import Intake
from pipeline.collections.records import DIVIDED, Reject
from pipeline.settings.section import SPLITS
from pipeline.workers import Failure

DUPLICATE = "duplicate"  # first word of the reason to leave out any duplicate
EVERY, MOST = 10, 1000  # every tenth image to be divided goes to dev and every tenth to test, up to MOST of each
OWNED = {"sentences": annotations.sentences, "documents": annotations.documents, "boxes": annotations.boxes}


class Assembly:
    """Images between intake and manifest: inspect those at `locations()`, then pass the outcomes to `collect`."""

    def __init__(self, intake: Intake) -> None:
        self._tables, self._files = intake.tables(), list(intake.files)
        self._given, self._rejected = intake.given, intake.rejects
        self._images = self._tables["images"]
        self._own_columns = intake.own.table(self._images.num_rows)
        self._notes = list(intake.own.describe(self._own_columns))
        # (n_images,) why each is left out; None if nothing is known against it
        self._reasons = _objects(self._images["fault"])
        usable, silent = are_none(self._reasons), ~self._own("sentences")
        given, documented = _objects(self._images["split"]), self._own("documents")
        # (n_images,) each image's split according to the collection, and its actual split
        self._asked = divide(given, usable & ~silent)
        self._asked[usable & silent & (given == DIVIDED)] = "gallery"
        self._asked[usable & silent & (given == DIVIDED) & documented] = "weak"
        self._splits = self._asked.copy()
        self._splits[usable & silent & ~((self._asked == "weak") & documented)] = "gallery"
        self._wanted = np.flatnonzero(usable)

    @property
    def splits(self) -> dict[str, int]:
        """Split -> its images, if all of them turn out to be usable."""
        counts = Counter(self._splits[self._wanted])
        return {split: counts[split] for split in SPLITS if counts[split]}

    def __len__(self) -> int:
        return len(self._wanted)

    def locations(self) -> Iterator[tuple[str, int | None, int | None]]:
        """Path, offset and size of each image to inspect."""
        wanted = self._images.select(["path", "offset", "size"]).take(self._wanted)
        for batch in wanted.to_batches(max_chunksize=1024):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def collect(self, outcomes: Iterable[Any]) -> Collection:
        """The collection, given an Inspection or a Failure for each of `locations()`."""
        sizes = np.zeros((len(self._reasons), 2), np.int32)
        hashes = _objects(self._images["fault"])
        first: dict[str, int] = {}
        for row, outcome in zip(self._wanted.tolist(), outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._reasons[row] = outcome.reason
                continue
            sizes[row], hashes[row] = (outcome.width, outcome.height), outcome.sha256
            if (original := first.setdefault(outcome.sha256, row)) != row:
                self._reasons[row] = f"{DUPLICATE}: the same bytes as {self._name(original)}"
        rows = np.flatnonzero(are_none(self._reasons))
        tables = {"images": self._kept_images(rows, sizes, hashes)}
        rejects = self._rejected + self._image_rejects()
        images = self._fates(rows, sizes)
        for what, settle in OWNED.items():
            settled = settle(self._tables[what], images)
            tables[what] = settled.kept
            rejects += self._rejects(what, settled.reasons)
        return Collection(tables, rejects, _counts(self._given, tables, rejects), self._summaries(), self._notes)

    def _own(self, what: str) -> np.ndarray:
        """(n_images,) whether each image has any `what`."""
        return np.bincount(self._tables[what]["owner"].to_numpy(), minlength=self._images.num_rows) > 0

    def _name(self, row: int) -> str:
        path, member = (self._images[column][row].as_py() for column in ("path", "member"))
        return path if member is None else f"{path}/{member}"

    def _kept_images(self, rows: np.ndarray, sizes: np.ndarray, hashes: np.ndarray) -> pa.Table:
        place = self._images.select(["path", "member", "offset", "size"]).take(rows)
        columns = {"image_id": np.arange(len(rows)), **{name: place[name] for name in place.column_names}}
        columns["split"] = pa.array(self._splits[rows], pa.string())
        width, height = sizes[rows].T
        columns |= {"width": width, "height": height, "sha256": pa.array(hashes[rows], pa.string())}
        own = self._own_columns.take(rows) if self._own_columns.num_columns else self._own_columns
        return pa.table({**columns, **{name: own[name] for name in own.column_names}})

    def _fates(self, kept: np.ndarray, sizes: np.ndarray) -> Images:
        ids = np.full(len(self._reasons), -1)
        ids[kept] = np.arange(len(kept))
        fates = [r and (IMAGE_DUPLICATE if r.startswith(DUPLICATE) else IMAGE_REJECTED) for r in self._reasons]
        return Images(ids, sizes, np.array(fates, dtype=object))

    def _image_rejects(self) -> list[Reject]:
        """A rejected image is listed under its own name, or under its row in a list if that is at fault."""
        faulty = ~are_none(_objects(self._images["fault"]))
        rows = np.flatnonzero(~are_none(self._reasons) & ~faulty)
        own = [Reject(self._name(row), None, "images", self._reasons[row]) for row in rows.tolist()]
        return self._rejects("images", np.where(faulty, self._reasons, None)) + own

    def _rejects(self, what: str, reasons: np.ndarray) -> list[Reject]:
        left_out = np.flatnonzero(~are_none(reasons))
        places = self._tables[what].select(["file", "row"]).take(left_out)
        rows = zip(places["file"].to_pylist(), places["row"].to_pylist(), reasons[left_out], strict=True)
        return [Reject(self._files[file], row, what, reason) for file, row, reason in rows]

    def _summaries(self) -> dict[str, SplitSummary]:
        files = self._images["file"].to_numpy()
        summaries = {}
        for split in SPLITS:
            asked, used = self._asked == split, are_none(self._reasons)
            rows = np.flatnonzero(asked | (used & (self._splits == split)))
            if len(rows):
                silent = asked & used & (self._splits != split)
                reason = "no sentence" if silent[rows[0]] else self._reasons[rows[0]]
                kept = int((used & (self._splits == split)).sum())
                file = self._files[files[rows[0]]]
                summaries[split] = SplitSummary(int(asked.sum()), kept, int(silent.sum()), file, reason)
        return summaries


def divide(splits: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """`splits` (n,) with train, dev or test in place of DIVIDED.

    If the collection itself names images of dev or test, all others go to train. Else, of every ten `usable` images
    (n,) in order, the fifth goes to dev and the tenth to test, so that images added at the end change nothing.
    """
    divided = splits == DIVIDED
    result = np.where(divided, "train", splits)
    if np.isin(splits[~divided], ["dev", "test"]).any():
        return result
    rows = np.flatnonzero(divided & usable)
    for split, first in (("dev", EVERY // 2 - 1), ("test", EVERY - 1)):
        result[rows[first::EVERY][:MOST]] = split
    return result


def _objects(column: pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_pylist(), dtype=object)


def _counts(given: Counter[str], tables: dict[str, pa.Table], rejects: list[Reject]) -> dict[str, dict[str, int]]:
    left_out = Counter((reject.what, reject.reason.startswith(DUPLICATE)) for reject in rejects)
    counts = {}
    for what, table in tables.items():
        fates = {"kept": table.num_rows, "rejected": left_out[what, False], "duplicate": left_out[what, True]}
        counts[what] = {"given": given[what], **fates}
    return counts
