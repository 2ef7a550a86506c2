"""The second half of ingest: which images can be used, the tables of a manifest, and when these are of no use.

Everything is either kept, rejected with a reason, or a duplicate. Of images with the same bytes the first is kept, and
with it the sentences of the others that it has not. What else belongs to an image shares its fate.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.collections.intake import LARGEST_NUMBER, Intake
from pipeline.collections.records import DIVIDED, Reject
from pipeline.collections.tables import BOXES, DOCUMENTS, FAULTY, SENTENCES, UNUSABLE, RejectSummary, to_text
from pipeline.compute.workers import Failure
from pipeline.config.section import SPLITS
from pipeline.errors import InputError, RejectLimitError, too_many

DUPLICATE = "duplicate"  # first word of the reason to leave out any duplicate
OUTCOMES = pa.schema(
    [("seq", pa.int64()), ("width", pa.int32()), ("height", pa.int32()), ("sha256", pa.string())]
    + [("failure", pa.string()), ("seen", pa.string())]
)
"""What the inspection of an image gave; `seen` are its columns, packed."""
WINDOW = 1 << 15
"""Images of which the rows of all tables are in memory together."""
MOST_HELD_OUT = 1000
HARMLESS = ("empty", "duplicate")
"""First words of the reasons for rejected sentences that do not count towards the limit."""
FOLDER_OF = "CASE WHEN member IS NULL THEN coalesce(nullif(regexp_replace(path, '/?[^/]*$', ''), ''), '.') END"
"""The folder that a photograph lies in; none for one within a file."""

PLACE = f"""
    CREATE OR REPLACE TABLE placed AS
    WITH known AS (
        SELECT seq, split, fault IS NULL AS usable, failure, coalesce(sha256, seq::VARCHAR) AS bytes, {{hash}} AS hash,
            seq IN (SELECT owner FROM sentences) AS said, seq IN (SELECT owner FROM documents) AS documented
        FROM images LEFT JOIN outcomes USING (seq)
    ), distinct_bytes AS (
        SELECT seq, split, hash FROM known WHERE usable AND failure IS NULL AND said
        QUALIFY row_number() OVER (PARTITION BY bytes ORDER BY seq) = 1
    ), ranked AS (
        SELECT seq, row_number() OVER (ORDER BY hash, seq) AS rank,
            CASE WHEN 'test' IN {{drawn}} THEN least(count(*) OVER () // 10, {MOST_HELD_OUT}) ELSE 0 END AS tests,
            CASE WHEN 'dev' IN {{drawn}} THEN least((count(*) OVER () + 5) // 10, {MOST_HELD_OUT}) ELSE 0 END AS devs
        FROM distinct_bytes WHERE split IN {{sources}}
    ), divided AS (
        SELECT known.*, CASE
            WHEN rank <= tests THEN 'test'
            WHEN rank <= tests + devs THEN 'dev'
            WHEN split IS DISTINCT FROM '{DIVIDED}' THEN split
            WHEN usable AND NOT said AND documented THEN 'weak'
            WHEN usable AND NOT said THEN 'gallery'
            ELSE 'train' END AS asked
        FROM known LEFT JOIN ranked USING (seq)
    )
    SELECT seq, usable, split = '{DIVIDED}' AS drawn, asked,
        CASE WHEN usable AND NOT said AND NOT (asked = 'weak' AND documented) THEN 'gallery' ELSE asked END AS split
    FROM divided
"""
"""The split of each image according to the collection (`asked`), and the actual one. The usable images with sentences
in the splits `sources` are sorted by `hash`. The first tenth is test and the next tenth is dev, as far as these are
`drawn`, so that an image that comes or goes moves few others. Images of the same bytes count once. An image without a
sentence is kept, too: in `weak` if it has a document and the collection names no other split, else in `gallery`."""

TWINS = """
    CREATE TABLE twins AS SELECT seq, original FROM (
        SELECT seq, min(seq) OVER (PARTITION BY sha256) AS original FROM outcomes WHERE sha256 IS NOT NULL
    ) WHERE original < seq
"""
"""Images whose bytes are those of one before: the same bytes have the same hash."""
CAPTIONS_TAKEN = """
    WITH groups AS (SELECT seq, coalesce(original, seq) AS original FROM images LEFT JOIN twins USING (seq))
    SELECT line, sentences.seq, text FROM captions_taken JOIN groups AS named ON named.seq = captions_taken.image
    JOIN groups AS owners ON owners.original = named.original JOIN sentences ON sentences.owner = owners.seq
"""
"""Lines of the takedown list with each caption of their image and of its copies."""
SPLIT_OF_COPY = """
    UPDATE placed SET asked = copy.asked, split = copy.split FROM (
        SELECT twins.original, arg_min(placed.asked, twins.seq) AS asked, arg_min(placed.split, twins.seq) AS split
        FROM twins JOIN placed ON placed.seq = twins.seq
        WHERE twins.seq IN (SELECT owner FROM sentences) GROUP BY twins.original
    ) AS copy
    WHERE placed.seq = copy.original AND placed.seq NOT IN (SELECT owner FROM sentences)
"""
"""The split of an image without sentences whose copy has some."""
SENTENCES_OF_COPY = f"""
    UPDATE sentences SET owner = moved.original, number = moved.number FROM (
        SELECT said.seq, twins.original, {LARGEST_NUMBER + 1} + said.seq AS number
        FROM sentences AS said JOIN twins ON said.owner = twins.seq
        WHERE NOT EXISTS (FROM sentences AS before WHERE before.owner = twins.original AND before.text = said.text)
        QUALIFY row_number() OVER (PARTITION BY twins.original, said.text ORDER BY said.seq) = 1
    ) AS moved
    WHERE sentences.seq = moved.seq
"""
"""The owner of sentences that only a copy has; their numbers come after all that a collection gives."""
JUDGE = f"""
    CREATE TABLE judged AS
    WITH named AS (SELECT seq, path || coalesce('/' || member, '') AS name FROM images),
    reasons AS (
        SELECT images.seq, coalesce(
            fault, failure, CASE WHEN first.seq IS NOT NULL THEN '{DUPLICATE}: the same bytes as ' || first.name END
        ) AS reason, asked, placed.split, drawn, width, height, sha256
        FROM images JOIN placed USING (seq) LEFT JOIN outcomes USING (seq) LEFT JOIN twins USING (seq)
        LEFT JOIN named AS first ON first.seq = twins.original
    )
    SELECT seq, reason, asked, split, drawn, width, height, sha256,
        CASE WHEN reason LIKE '{DUPLICATE}%' THEN 'duplicate image' WHEN reason IS NOT NULL THEN 'image rejected' END
            AS fate,
        CASE WHEN reason IS NULL THEN row_number() OVER (PARTITION BY reason IS NULL ORDER BY seq) - 1 END AS image_id
    FROM reasons
"""
"""For each image its split, the `reason` to leave it out, or its `image_id`, and the `fate` of what belongs to it."""
JOIN_IMAGES = (
    """
    CREATE TABLE located AS SELECT judged.*, path, member, "offset", size
    FROM judged JOIN images USING (seq) WHERE image_id IS NOT NULL
    """,
    """
    CREATE TABLE described AS SELECT located.*, packed
    FROM located LEFT JOIN own_columns ON own_columns.owner = located.seq
    """,
    "DROP TABLE located",
)
"""One join after the other: several at once keep all but one of their tables in memory."""
KEEP_IMAGES = """
    CREATE TABLE kept_images AS SELECT image_id, path, member, "offset", size, described.split, described.width,
        described.height, described.sha256, packed, seen
    FROM described JOIN outcomes USING (seq) ORDER BY image_id
"""
REJECT_IMAGES = f"""
    INSERT INTO rejects SELECT
        seq + CASE WHEN fault IS NULL THEN {UNUSABLE} ELSE {FAULTY} END, 'images', reason, NULL,
        CASE WHEN fault IS NULL THEN encode(path || coalesce('/' || member, '')) ELSE file END,
        CASE WHEN fault IS NOT NULL THEN "row" END
    FROM judged JOIN images USING (seq) WHERE reason IS NOT NULL
"""
"""A rejected image is listed under its own name, or under its row in a list if that is at fault."""
SUMMARISE = f"""
    WITH told AS (
        SELECT seq, file, reason, reason IS NULL AS used, split,
            -- No list asks for dev or test where images were drawn: these may be without them.
            CASE WHEN drawn AND reason IS NOT NULL AND asked <> 'train' THEN '' ELSE asked END AS asked
        FROM judged JOIN (SELECT seq, file FROM images) USING (seq)
    ), counted AS (
        SELECT name, told.*, asked = name AS given, used AND split = name AS kept,
            asked = name AND used AND split <> name AS silent
        FROM (SELECT unnest({list(SPLITS)}) AS name) JOIN told ON asked = name OR (used AND split = name)
    )
    SELECT name, count(*) FILTER (given), count(*) FILTER (kept), count(*) FILTER (silent), first(file ORDER BY seq),
        first(CASE WHEN silent THEN 'no sentence' ELSE reason END ORDER BY seq)
    FROM counted GROUP BY name
"""


class OwnedRows(NamedTuple):
    """What belongs to images: its first `place` among the rejects, its `order` within an image, the query that finds
    the `reason` to leave each out, and its `columns` in the manifest."""

    place: int
    order: str
    judge: str
    columns: str


OWNED = {
    "sentences": OwnedRows(
        SENTENCES,
        "number, seq",
        """WITH repeated AS (
            SELECT seq FROM sentences QUALIFY row_number() OVER (PARTITION BY owner, number ORDER BY seq) > 1
        ) SELECT seq, file, "row", image_id, number, text, coalesce(fate, CASE WHEN seq IN (FROM repeated)
            THEN 'repeated: this image has another sentence of this number' END) AS reason""",
        "image_id, text",
    ),
    "documents": OwnedRows(
        DOCUMENTS,
        "seq",
        """WITH repeated AS (
            SELECT seq FROM documents QUALIFY row_number() OVER (PARTITION BY owner ORDER BY seq) > 1
        ) SELECT seq, file, "row", image_id, title, tags, description, coalesce(fate, CASE WHEN seq IN (FROM repeated)
            THEN 'repeated: this image has another document' END) AS reason""",
        "image_id, title, tags, description",
    ),
    "boxes": OwnedRows(
        BOXES,
        "seq",
        f"""SELECT seq, file, "row", image_id, label, score,
            TRY_CAST(greatest(least(x1, width), 0) AS FLOAT) AS left_x,
            TRY_CAST(greatest(least(y1, height), 0) AS FLOAT) AS top_y,
            TRY_CAST(greatest(least(x2, width), 0) AS FLOAT) AS right_x,
            TRY_CAST(greatest(least(y2, height), 0) AS FLOAT) AS bottom_y,
            coalesce(fate, CASE
                WHEN NOT (isfinite(x1) AND isfinite(y1) AND isfinite(x2) AND isfinite(y2)
                    AND abs(score) <= {np.finfo(np.float32).max}::DOUBLE) THEN 'not finite'
                WHEN x2 <= x1 OR y2 <= y1 THEN 'no area: x2 and y2 must exceed x1 and y1'
                WHEN right_x <= left_x OR bottom_y <= top_y THEN 'outside of the image'
            END) AS reason""",
        "image_id, left_x AS x1, top_y AS y1, right_x AS x2, bottom_y AS y2, score::FLOAT AS score, label",
    ),
}
"""Of two sentences of an image with the same number, and of two documents, the first counts; boxes are clipped."""


@dataclass(frozen=True)
class SplitSummary:
    """The number of images that the collection gives a split, that it has, and that are in `gallery` instead because
    they have no sentence; the file that names its first image, and why that is left out."""

    given: int
    kept: int
    silent: int
    file: str
    reason: str | None


@dataclass(frozen=True)
class Collection:
    """Tables `images`, `sentences`, `documents` and `boxes` in the manifest's order, in the `parts` of an iterator that
    can be made again, and what was left out.

    `counts` has {given, kept, rejected, duplicate} of each table; `rejects` has one entry for each thing not kept.
    """

    parts: Callable[[], Iterator[Mapping[str, pa.Table]]]
    rejects: Iterable[Reject]
    left_out: RejectSummary
    counts: Mapping[str, Mapping[str, int]]
    splits: Mapping[str, SplitSummary]
    notes: Sequence[str] = ()
    """How images were read that are out of the ordinary, and what became of the user's own columns, in lines."""

    def check(self, reject_limit: float, report: str, learned_from: bool = True) -> None:
        """Raises InputError if there is no image, or, where some have sentences and are to be `learned_from`, if these
        are of no use for it; and RejectLimitError if more than the share `reject_limit` of the images, or of the
        non-empty sentences, was rejected. `report` is the file of rejects."""
        reasons = f"; {report} lists the reasons" if self.left_out.counts else ""
        images, sentences = self.counts["images"], self.counts["sentences"]
        if not images["given"]:
            raise InputError(f"no image was found{reasons}; set data_root to the folder of your collection")
        if not images["kept"]:
            reason, count = self.left_out.images
            raise InputError(f"none of the {images['given']} images can be used; of {count}: {reason}{reasons}")
        if learned_from and (sentences["kept"] or sentences["given"]):
            self._require_pairs(reasons)
        broken = self.left_out.of("sentences", "") - self.left_out.of("sentences", *HARMLESS)
        for what, count, given in (
            ("images", images["rejected"], images["given"]), ("sentences", broken, sentences["given"]),
        ):  # fmt: skip
            if too_many(count, given, reject_limit):
                reason, most = self.left_out.most_frequent(what)
                raise RejectLimitError(
                    f"{count} of {given} {what} are rejected, more than collection.reject_limit {reject_limit:g} allows"
                    f" ({most}: {reason}); {report} lists them: repair them or raise that key"
                )

    def _require_pairs(self, reasons: str) -> None:
        images, sentences = self.counts["images"], self.counts["sentences"]
        if not sentences["kept"]:
            raise InputError(
                f"none of the {images['kept']} images has a sentence that can be used, of {sentences['given']} given"
                f"{reasons}"
            )
        for split, summary in self.splits.items():
            if not summary.kept and split != "gallery":
                raise InputError(
                    f"split {split} is empty: none of the {summary.given} images that {summary.file} gives it can be "
                    f"used ({summary.reason}){reasons}"
                )
        if "train" not in self.splits:
            file = next(iter(self.splits.values())).file
            raise InputError(f"split train is empty: {file} gives it no image; name some, or set default_split")

    def describe(self) -> Iterator[str]:
        """What was kept and left out, in lines for the user."""
        splits = ", ".join(f"{split} {summary.kept}" for split, summary in self.splits.items())
        for what, count in self.counts.items():
            if count["given"]:
                left_out = ", ".join(f"{count[fate]} {fate}" for fate in ("rejected", "duplicate") if count[fate])
                line = f"{count['kept']} {what}" + (f" ({splits})" if what == "images" else "")
                yield line + (f"; {left_out}" if left_out else "")
        yield from self.notes
        for (what, reason), count in Counter(self.left_out.counts).most_common(10):
            yield f"  {count} {what} left out: {reason}"
        if silent := {split: summary.silent for split, summary in self.splits.items() if summary.silent}:
            count = " and ".join(f"{count} of {split}" for split, count in silent.items())
            yield f"{count} have no sentence: they are in the split gallery, to be found but not learned from"


class Assembly:
    """Images between intake and manifest: inspect those at `locations()`, then pass the outcomes to `collect`.

    Splits are drawn by the hash of the images' bytes, or of their names if `by_name`.
    """

    def __init__(self, intake: Intake, by_name: bool = False, draw: Sequence[str] = ()) -> None:
        self._intake = intake
        self._tables = intake.tables
        self._tables.create({"outcomes": OUTCOMES})
        self._hash = "sha256(path)" if by_name else "sha256"
        self.place(draw)

    def place(self, draw: Sequence[str]) -> None:
        """Give each image its split. If the collection names neither dev nor test, both are drawn from the images
        without a split. Splits in `draw` that the collection does not name are drawn from these and from train."""
        named = {split for (split,) in self._tables.rows("SELECT DISTINCT split FROM images")}
        drawn = {*draw, *(() if {"dev", "test"} & named else ("dev", "test"))} - named
        sources = [DIVIDED, "train"] if draw else [DIVIDED]
        self._place = PLACE.format(hash=self._hash, drawn=sorted(drawn), sources=sources)
        self._tables.run(self._place)
        counts = dict(self._tables.rows("SELECT split, count(*) FROM placed WHERE usable GROUP BY split"))
        self.splits = {split: counts[split] for split in SPLITS if split in counts}
        """Split -> its number of images, if all images turn out to be usable and different."""

    def __len__(self) -> int:
        return sum(self.splits.values())

    def locations(self) -> Iterator[tuple[str, int | None, int | None]]:
        """Path, offset and size of each image to inspect."""
        return self._tables.rows('SELECT path, "offset", size FROM images WHERE fault IS NULL ORDER BY seq')

    def collect(self, outcomes: Iterable[Any]) -> Collection:
        """The collection, given an Inspection or a Failure for each of `locations()`."""
        read_as: Counter[str] = Counter()
        own = self._intake.own
        several = self._tables.value(f"SELECT count(DISTINCT {FOLDER_OF}) > 1 FROM images WHERE fault IS NULL")
        wanted = self._tables.rows(f"SELECT seq, {FOLDER_OF} FROM images WHERE fault IS NULL ORDER BY seq")
        for (seq, folder), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, Failure):
                reason = outcome.reason.encode("utf-8", "backslashreplace").decode()
                self._tables.append("outcomes", (seq, None, None, None, reason, None))
            else:
                taken = outcome.taken and datetime.fromisoformat(outcome.taken)
                seen = {"folder": folder if several else None, "taken": taken, "camera": outcome.camera}
                packed = own.pack({name: value for name, value in seen.items() if value and name not in own})
                size = outcome.width, outcome.height
                self._tables.append("outcomes", (seq, *size, outcome.sha256, None, packed))
                read_as.update(outcome.notes)
        self._tables.run(TWINS)
        taken_down = self._take_down_captions()
        self._tables.run(self._place)
        self._tables.run(SPLIT_OF_COPY)
        shared = self._tables.run(SENTENCES_OF_COPY)
        self._tables.run(JUDGE)
        for sql in JOIN_IMAGES:
            self._tables.run(sql)
        counts_kept = {"images": self._tables.run(KEEP_IMAGES)}
        self._tables.run("DROP TABLE described")
        own.see(seen for (seen,) in self._tables.rows("SELECT seen FROM kept_images ORDER BY image_id"))
        self._tables.run(REJECT_IMAGES)
        splits = {
            name: SplitSummary(given, kept, silent, to_text(file), reason)
            for name, given, kept, silent, file, reason in self._tables.rows(SUMMARISE)
        }
        for what, owned in OWNED.items():
            counts_kept[what] = self._keep(what, owned)
        left_out = self._intake.rejects.summarise(not counts_kept["images"])
        counts = {}
        for what, number in counts_kept.items():
            twice = left_out.of(what, DUPLICATE)
            fates = {"kept": number, "rejected": left_out.of(what, "") - twice, "duplicate": twice}
            counts[what] = {"given": self._intake.given[what], **fates}
        notes = [f"{count} images {note}" for note, count in read_as.most_common()]
        notes += [*self._intake.notes, *own.describe()]
        if taken_down:
            notes.append(f"{taken_down} captions are left out, which the takedown list names")
        if shared:
            notes.append(f"{shared} sentences of exact copies are kept, with the photo of which they are copies")
        return Collection(
            self._parts,
            self._intake.rejects,
            left_out,
            counts,
            {split: splits[split] for split in SPLITS if split in splits},
            notes,
        )

    def _take_down_captions(self) -> int:
        """Remove the captions that the takedown list names, as if they had never been there; returns how many."""
        meets = self._intake.takedown.meets_caption
        taken = sorted({seq for line, seq, text in self._tables.rows(CAPTIONS_TAKEN) if meets(line, text)})
        count = self._tables.run(f"DELETE FROM sentences WHERE seq IN (SELECT unnest({taken}::BIGINT[]))")
        self._intake.given["sentences"] -= count
        return count

    def _keep(self, what: str, owned: OwnedRows) -> int:
        """Make the table of what is kept of a kind, in the manifest's order, and list the rest; returns its rows."""
        self._tables.run(
            f"CREATE VIEW judged_{what} AS {owned.judge} FROM {what}"
            " JOIN (SELECT seq AS owner, image_id, fate, width, height FROM judged) USING (owner)"
        )
        self._tables.run(
            f"""INSERT INTO rejects SELECT {owned.place} + seq, '{what}', reason, NULL, file, "row" FROM judged_{what}
            WHERE reason IS NOT NULL"""
        )
        return self._tables.run(
            f"CREATE TABLE kept_{what} AS SELECT {owned.columns}, {owned.order} FROM judged_{what}"
            f" WHERE reason IS NULL ORDER BY image_id, {owned.order}"
        )

    def _parts(self) -> Iterator[dict[str, pa.Table]]:
        """The tables of the manifest, in parts."""
        count = 0
        for first in range(0, max(1, self._tables.value("SELECT count(*) FROM kept_images")), WINDOW):
            window = f"WHERE image_id >= {first} AND image_id < {first + WINDOW} ORDER BY image_id"
            images = self._tables.fetch(f"FROM kept_images {window}")
            part = {
                what: self._tables.fetch(f"SELECT * EXCLUDE ({owned.order}) FROM kept_{what} {window}, {owned.order}")
                for what, owned in OWNED.items()
            }
            sentence_id = count + np.arange(len(part["sentences"]))
            count += len(sentence_id)
            part["sentences"] = part["sentences"].add_column(0, "sentence_id", pa.array(sentence_id))
            own = self._intake.own.table(images["packed"].to_pylist(), images["seen"].to_pylist())
            images = images.drop_columns(["packed", "seen"])
            for field in own.schema:
                images = images.append_column(field, own[field.name])
            yield {"images": images, **part}
