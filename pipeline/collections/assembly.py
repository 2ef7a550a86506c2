"""The second half of ingest: it decides which records are used, and makes and checks the tables of a manifest.

Every record is kept, rejected with a reason, or a duplicate. Among several images with the same bytes, the first is
kept, and it gets the additional sentences of its copies. If an image is rejected, all other records that belong to the
image are rejected too. The SQL of each step is in `ingest_sql`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pipeline.collections import ingest_sql
from pipeline.collections.ingest_sql import DUPLICATE, OWNED
from pipeline.collections.intake import Intake
from pipeline.collections.records import DIVIDED, KIND_NAMES, Reject
from pipeline.collections.tables import OUTCOMES, RejectSummary, to_text
from pipeline.compute.workers import Failure
from pipeline.config.section import SPLITS
from pipeline.errors import InputError, RejectLimitError, too_many

if TYPE_CHECKING:
    from pipeline.images.decode import Inspection

BLOCK_IMAGES = 1 << 15
"""Largest number of images whose rows in all tables of the manifest are in memory at once."""
HARMLESS_REASONS = ("empty", "duplicate")
"""First words of some reasons for rejecting a sentence. A sentence that is rejected for such a reason does not count
towards `collection.reject_limit`."""


@dataclass(frozen=True)
class SplitSummary:
    """The images of a split.

    `given` is the number of images that the collection or the draw assigns to the split. `kept` is the number of images
    that are kept in the split. `silent` is the number of images that are moved from the split to `gallery` because they
    have no sentence. `file` and `reason` are about one image: the image that was read first among all images that are
    assigned to the split or kept in the split. `file` is the file that names this image. `reason` says why the image is
    not kept in the split, and is None if the image is kept.
    """

    given: int
    kept: int
    silent: int
    file: str
    reason: str | None


@dataclass(frozen=True)
class Collection:
    """The tables `images`, `sentences`, `documents` and `boxes` of a manifest, and the rejected records.

    `parts()` yields the tables in blocks of images, in the order of the manifest. `counts` has, for each table, the
    numbers of records that were read (`given`), `kept`, `rejected` and `duplicate`. `rejects` has one entry for each
    record that is not kept, and `left_out` counts these records by kind and reason. Records that the takedown list
    removes are in none of these numbers. `splits` has the summary of each split by its name.
    """

    parts: Callable[[], Iterator[Mapping[str, pa.Table]]]
    rejects: Iterable[Reject]
    left_out: RejectSummary
    counts: Mapping[str, Mapping[str, int]]
    splits: Mapping[str, SplitSummary]
    notes: Sequence[str] = ()
    """Lines for the user about images, names and texts that were read in an unusual way, about the user's own columns,
    and about captions that were removed or moved."""

    def check(self, reject_limit: float, report: str, learned_from: bool = True) -> None:
        """Check that the collection can be used. `report` is the path of the list of rejects, for messages.

        Raises InputError if there is no usable image. If models learn from the captions (`learned_from`), and the
        collection has captions, InputError is also raised if no caption is usable, if images are assigned to a split
        other than gallery and none of them is kept in it, or if no image is assigned to train. Raises RejectLimitError
        if more than one image was rejected, and more than the share `reject_limit` (0 to 1) of all images. The limit
        for sentences is the same. If `reject_limit` is 0, a single rejected image or sentence is enough. Empty and
        duplicate sentences do not count as rejected.
        """
        reasons = f" {report} lists the reasons." if self.left_out.counts else ""
        images = self.counts["images"]
        sentences = self.counts["sentences"]
        if not images["given"]:
            raise InputError(f"No photo was found.{reasons} Set data_root to the folder of your collection.")
        if not images["kept"]:
            assert self.left_out.images is not None
            reason, count = self.left_out.images
            raise InputError(
                f"None of the {images['given']} photos can be used. The most frequent reason, for {count} of them, is:"
                f" {reason.rstrip('.')}.{reasons} Repair the photos, or set data_root to another folder."
            )
        if learned_from and (sentences["kept"] or sentences["given"]):
            self._require_pairs(reasons)
        broken = self.left_out.count_rejects("sentences", "") - self.left_out.count_rejects(
            "sentences", *HARMLESS_REASONS
        )
        for kind, word, count in (("images", "photos", images["rejected"]), ("sentences", "captions", broken)):
            given = self.counts[kind]["given"]
            if too_many(count, given, reject_limit):
                reason, most = self.left_out.most_frequent(kind)
                raise RejectLimitError(
                    f"{count} of {given} {word} are rejected, which is more than the share of {reject_limit:g} that"
                    f" collection.reject_limit allows. The most frequent reason, for {most} of them, is: {reason}."
                    f" {report} lists all of them. Repair these {word}, or raise collection.reject_limit."
                )

    def _require_pairs(self, reasons: str) -> None:
        images = self.counts["images"]
        sentences = self.counts["sentences"]
        if not sentences["kept"]:
            raise InputError(
                f"None of the {images['kept']} photos has a usable caption. {sentences['given']} captions were read."
                f"{reasons} Repair the captions, or set collection.default_split to gallery to index the photos without"
                " captions."
            )
        for split, summary in self.splits.items():
            if not summary.kept and split != "gallery":
                raise InputError(
                    f"The split {split} is empty, because none of the {summary.given} photos that {summary.file}"
                    " assigns to it can be used. The reason for the first of them is:"
                    f" {summary.reason}.{reasons} Repair these photos, or assign others to the split."
                )
        if "train" not in self.splits:
            file = next(iter(self.splits.values())).file
            raise InputError(
                f"The split train is empty, because {file} does not assign any photo to it. Assign photos to train, or"
                " set collection.default_split to train."
            )

    def format_summary(self) -> Iterator[str]:
        """Yield lines for the user: the numbers of kept, rejected and duplicate records of each kind that was read, and
        of the kept images of each split. The notes, the ten most frequent reasons for records that are not kept, and
        the number of images that are moved to `gallery` follow."""
        splits = ", ".join(f"{split} {summary.kept}" for split, summary in self.splits.items())
        for kind, counts in self.counts.items():
            if counts["given"]:
                line = f"{counts['kept']} {KIND_NAMES[kind]}" + (f" ({splits})" if kind == "images" else "")
                not_kept = [f"{counts[fate]} {fate}" for fate in ("rejected", "duplicate") if counts[fate]]
                yield "; ".join(filter(None, (line, ", ".join(not_kept))))
        yield from self.notes
        for (kind, reason), count in Counter(self.left_out.counts).most_common(10):
            yield f"  {count} {KIND_NAMES.get(kind, kind)} not kept: {reason}"
        if silent := {split: summary.silent for split, summary in self.splits.items() if summary.silent}:
            count = " and ".join(f"{count} of {split}" for split, count in silent.items())
            yield f"{count} have no caption. They are moved to the split gallery, which is only indexed."


class Assembly:
    """A builder of the tables of a manifest from the records of a collection.

    The caller inspects the images at `locations()` and passes the outcomes to `collect`. `draw` has the splits whose
    images are to be drawn, as the method `assign_splits` explains. The images of a drawn split are chosen by the hash
    of the bytes of each image, or of its path if `by_name` is true.
    """

    def __init__(self, intake: Intake, by_name: bool = False, draw: Sequence[str] = ()) -> None:
        self._intake = intake
        self._tables = intake.tables
        self._tables.create(OUTCOMES)
        self._by_name = by_name
        self.assign_splits(draw)

    def assign_splits(self, draw: Sequence[str]) -> None:
        """Assign each image to a split.

        Images with a caption keep the split that the collection gives them, unless they are drawn. The splits in
        `draw`, which may be dev and test, are drawn unless the collection has images of them. If the collection has
        neither dev nor test, both are drawn in any case. Each drawn split gets a tenth of the images with a usable
        caption and without a split, but at most MAX_DRAWN_IMAGES images. If `draw` is not empty, images that the
        collection assigns to train can be drawn too, and count for the tenth. Other images with a caption and without
        a split get train. An image without a caption gets weak if it has weak text and the collection gives it no other
        split, and else gallery, even if the collection gives it another split, such as train.
        """
        named = {split for (split,) in self._tables.rows("SELECT DISTINCT split FROM images")}
        self._drawn = {*draw, *(() if {"dev", "test"} & named else ("dev", "test"))} - named
        self._sources = [DIVIDED, "train"] if draw else [DIVIDED]
        self._place()
        counts = dict(self._tables.rows("SELECT split, count(*) FROM placed WHERE usable GROUP BY split"))
        self.splits = {split: counts[split] for split in SPLITS if split in counts}
        """The number of images of each split that has images, by its name. Images that the inspection will reject, and
        copies, are included. Images with a fault in a list are not."""

    def _place(self) -> None:
        ingest_sql.place_images(self._tables, self._by_name, self._drawn, self._sources)

    def __len__(self) -> int:
        return sum(self.splits.values())

    def locations(self) -> Iterator[tuple[str, int | None, int | None]]:
        """Yield the location of each image to inspect, in the order of reading.

        A location is the path of a file relative to the collection, and the offset (or row) and the size of the photo
        in this file, as ImageRecord explains. Offset and size are None for a file that is itself a photo. Images with a
        fault in a list are not inspected.
        """
        return self._tables.rows('SELECT path, "offset", size FROM images WHERE fault IS NULL ORDER BY seq')

    def collect(self, outcomes: "Iterable[Inspection | Failure]") -> Collection:
        """Make the tables of the manifest, and return them with the rejects as a Collection. `outcomes` has the result
        of the inspection for each of `locations()`, in order.

        This method must be called only once.
        """
        tables = self._tables
        intake = self._intake
        image_notes = self._add_outcomes(outcomes)
        ingest_sql.find_copies(tables)
        taken_down = self._take_down_captions()
        self._place()
        ingest_sql.place_originals(tables)
        moved = ingest_sql.move_sentences_of_copies(tables)
        ingest_sql.judge_images(tables)
        kept = {"images": ingest_sql.keep_images(tables)}
        intake.own.see(seen for (seen,) in tables.rows("SELECT seen FROM kept_images ORDER BY image_id"))
        ingest_sql.reject_images(tables)
        splits = {
            name: SplitSummary(given, kept_images, silent, to_text(file), reason)
            for name, given, kept_images, silent, file, reason in ingest_sql.summarise_splits(tables)
        }
        kept |= {kind: ingest_sql.keep_owned(tables, kind) for kind in OWNED}
        rejected = intake.rejects.summarise(not kept["images"])
        counts = {}
        for kind, number in kept.items():
            duplicates = rejected.count_rejects(kind, DUPLICATE)
            fates = {"kept": number, "rejected": rejected.count_rejects(kind, "") - duplicates, "duplicate": duplicates}
            counts[kind] = {"given": intake.given[kind], **fates}
        notes = [f"{count} photos {note}" for note, count in image_notes.most_common()]
        notes += [*intake.notes, *intake.own.format_summary()]
        if taken_down:
            notes.append(f"{taken_down} captions in the takedown list are removed")
        if moved:
            notes.append(f"{moved} captions of exact copies of a photo are kept with the first copy")
        in_order = {split: splits[split] for split in SPLITS if split in splits}
        return Collection(self._parts, intake.rejects, rejected, counts, in_order, notes)

    def _add_outcomes(self, outcomes: "Iterable[Inspection | Failure]") -> Counter[str]:
        """Add the outcomes to the table `outcomes`. Return the number of images for each note about unusual images."""
        notes: Counter[str] = Counter()
        own = self._intake.own
        for (seq, folder), outcome in zip(ingest_sql.image_folders(self._tables), outcomes, strict=True):
            if isinstance(outcome, Failure):
                reason = outcome.reason.encode("utf-8", "backslashreplace").decode()
                self._tables.append("outcomes", (seq, None, None, None, reason, None))
                continue
            taken = datetime.fromisoformat(outcome.taken) if outcome.taken else None
            seen = {"folder": folder, "taken": taken, "camera": outcome.camera}
            packed = own.pack({name: value for name, value in seen.items() if value and name not in own})
            self._tables.append("outcomes", (seq, outcome.width, outcome.height, outcome.sha256, None, packed))
            notes.update(outcome.notes)
        return notes

    def _take_down_captions(self) -> int:
        """Remove the captions in the takedown list, also from copies of their photos, and return their number.

        These captions are neither reported as rejects nor counted as read.
        """
        meets = self._intake.takedown.meets_caption
        captions = ingest_sql.captions_to_take_down(self._tables)
        taken = sorted({seq for line, seq, text in captions if meets(line, text)})
        count = self._tables.run(f"DELETE FROM sentences WHERE seq IN (SELECT unnest({taken}::BIGINT[]))")
        self._intake.given["sentences"] -= count
        return count

    def _parts(self) -> Iterator[dict[str, pa.Table]]:
        """Yield the tables of the manifest by kind, for BLOCK_IMAGES images at a time.

        Without images, empty tables are yielded once.

        The images get the user's own columns, and the sentences are numbered from 0 in the column `sentence_id`.
        """
        count = 0
        for first in range(0, max(1, self._tables.value("SELECT count(*) FROM kept_images")), BLOCK_IMAGES):
            part = ingest_sql.read_kept(self._tables, first, first + BLOCK_IMAGES)
            sentence_id = count + np.arange(len(part["sentences"]))
            count += len(sentence_id)
            part["sentences"] = part["sentences"].add_column(0, "sentence_id", pa.array(sentence_id))
            images = part["images"]
            own = self._intake.own.table(images["packed"].to_pylist(), images["seen"].to_pylist())
            images = images.drop_columns(["packed", "seen"])
            for field in own.schema:
                images = images.append_column(field, own[field.name])
            yield {**part, "images": images}
