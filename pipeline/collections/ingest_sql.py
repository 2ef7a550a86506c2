"""The steps of `ingest` in SQL, in the order in which they run.

`Intake` fills the tables in RECORD_TABLES with the records of a collection, and then runs the steps up to
`drop_repeated_images`. `Assembly` runs the other steps, most of them after every photo was inspected. Each function is
one step. The docstring of a function says which tables the function makes or changes. A function reads only tables that
functions above it have made.

Each record of an image, or of something that belongs to an image, is a row of a table. Its `seq` is the number of the
record in the order of reading, and its `owner` is the `seq` of the record that named its image first.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.collections.records import DIVIDED
from pipeline.collections.tables import OWNED_KINDS, RejectPosition, Tables
from pipeline.config.section import SPLITS
from pipeline.foreign.image_names import WHOLE_PATH, Reading

ReadingCounts = list[tuple[int, int]]
"""Pairs of a Reading and the number of names that match in this reading."""


# --- Steps of `Intake`


def respell_files(tables: Tables) -> tuple[ReadingCounts, int]:
    """Replace the paths of images for which the table `respelt` has a file, and set the fault of images for which this
    table has a fault. Rows of `respelt` that cannot be right, because a list also names the file exactly, are deleted
    first.

    Return the number of replaced paths for each reading, and the number of different paths in lists.
    """
    # If a list names a photo exactly, a name in another case or without an ending means another photo.
    tables.run(
        f"""DELETE FROM respelt WHERE reading >= {Reading.CASE:d}
        AND file IN (SELECT path FROM images WHERE there AND "row" IS NOT NULL AND path IS NOT NULL)"""
    )
    # Two whole paths of another machine cannot mean the same file.
    slashed = r"replace(path, '\', '/')"
    whole = f"""reading = {Reading.OTHER_FOLDER:d}
        AND regexp_matches({slashed}, '^({WHOLE_PATH.pattern})', 'is')"""
    tables.run(
        f"""UPDATE respelt SET file = NULL, fault = 'ambiguous: several names of the list may mean the photo ' || file
        WHERE {whole} AND file IN (
            SELECT file FROM respelt WHERE {whole} GROUP BY file HAVING count(DISTINCT lower({slashed})) > 1
        )"""
    )
    counts = "SELECT reading, count(*) FROM respelt WHERE file IS NOT NULL GROUP BY reading ORDER BY reading"
    readings = list(tables.rows(counts))
    total = tables.value('SELECT count(DISTINCT path) FROM images WHERE "row" IS NOT NULL')
    tables.run(
        """UPDATE images SET path = coalesce(respelt.file, images.path), there = respelt.file IS NOT NULL,
            fault = coalesce(images.fault, respelt.fault)
        FROM respelt WHERE images.path = respelt.path"""
    )
    return readings, total


def assign_owners(tables: Tables) -> None:
    """Add the column `owner` to the images and to the records that belong to images, by their keys.

    Keys of the same file have the same owner. The owner is null if no earlier record has named the image.
    """
    tables.run("CREATE TABLE owners AS SELECT key, min(seq) AS image FROM images GROUP BY key")
    tables.run(
        """UPDATE owners SET image = files.image
        FROM images, (
            SELECT path, min(seq) AS image FROM images WHERE path IN (SELECT file FROM respelt) GROUP BY path
        ) AS files
        WHERE owners.image = images.seq AND images.path = files.path"""
    )
    for kind in ("images", *OWNED_KINDS):
        tables.run(
            f"""CREATE OR REPLACE TABLE {kind} AS SELECT {kind}.*, owners.image AS owner
            FROM {kind} LEFT JOIN owners ON {kind}.key = owners.key AND owners.image <= {kind}.seq"""
        )
    tables.run("DROP TABLE owners")


def unknown_keys(tables: Tables) -> list[bytes]:
    """Return the keys of all sentences, documents, boxes and rows of own columns that have no `owner` so far."""
    keys = " UNION ".join(f"SELECT key FROM {kind} WHERE owner IS NULL" for kind in OWNED_KINDS)
    return [key for (key,) in tables.rows(keys)]


def image_names(tables: Tables) -> Iterator[tuple[bytes, str | None, str | None, int]]:
    """Yield the key, the path (or None), the name in a shard (or None), and the `owner` of each record of an image, in
    the order of reading."""
    return tables.rows("SELECT key, path, member, owner FROM images ORDER BY seq")


def apply_renamed(tables: Tables, kind: str) -> ReadingCounts:
    """Assign records of the table `kind` without an owner to the image that the table `renamed` has for their key, if
    the record of this image precedes them.

    Return the number of assigned records for each reading in which their key matches.
    """
    means = f"{kind}.key = renamed.key AND owner IS NULL AND image < seq"
    counts = f"SELECT reading, count(*) FROM {kind} JOIN renamed ON {means} GROUP BY reading ORDER BY reading"
    readings = list(tables.rows(counts))
    tables.run(f"UPDATE {kind} SET owner = image FROM renamed WHERE {means}")
    return readings


def reject_unusable_records(tables: Tables) -> None:
    """Move sentences, documents and boxes that have a fault, or belong to no image, to `rejects`."""
    for kind in OWNED:
        tables.run(
            f"""INSERT INTO rejects
            SELECT seq, '{kind}',
                coalesce(ambiguous.reason, fault, 'unknown image: {{!r}} is not a photo of the collection'),
                CASE WHEN ambiguous.reason IS NULL AND fault IS NULL THEN key END, file, "row"
            FROM {kind} LEFT JOIN ambiguous USING (key) WHERE fault IS NOT NULL OR owner IS NULL"""
        )
        tables.run(f"DELETE FROM {kind} WHERE fault IS NOT NULL OR owner IS NULL")


def drop_repeated_images(tables: Tables) -> int:
    """Delete each record of an image that an earlier record has named, and add it to `rejects` unless it is implied.

    Also delete all but the first row of own columns of each image. Return the number of implied records of images that
    are deleted.
    """
    implied = tables.run("DELETE FROM images WHERE owner < seq AND implied")
    tables.run(
        """INSERT INTO rejects SELECT seq, 'images', 'duplicate: {!r} was named before', key, file, "row"
        FROM images WHERE owner < seq"""
    )
    tables.run("DELETE FROM images WHERE owner < seq")
    tables.run("DELETE FROM own_columns WHERE seq NOT IN (SELECT min(seq) FROM own_columns GROUP BY owner)")
    return implied


# --- Steps of `Assembly`

DUPLICATE = "duplicate"
"""The first word of the reason for rejecting an image with the same bytes as another, or the second record of an
image."""
MAX_SENTENCE_NUMBER = (1 << 31) - 1
"""Largest number of a sentence in a collection. A sentence with a larger number is rejected. Sentences of copies get
larger numbers."""
MAX_DRAWN_IMAGES = 1000
"""Largest number of images in a drawn split."""
FOLDER_OF = "CASE WHEN member IS NULL THEN coalesce(nullif(regexp_replace(path, '/?[^/]*$', ''), ''), '.') END"
"""An SQL expression for the folder of a photo, which is null for a photo in a shard."""


def place_images(tables: Tables, by_name: bool, drawn: Collection[str], sources: Sequence[str]) -> None:
    """Make the table `placed`, with the split requested for each image (`asked`) and the split that it gets
    (`split`).

    The usable images with sentences in the splits `sources` are sorted by the hash of their bytes, or of their paths if
    `by_name` is true. The first tenth becomes test and the next tenth becomes dev, if these splits are in `drawn`. Each
    drawn split gets at most MAX_DRAWN_IMAGES images. With this rule, an added or removed image moves few other images.
    Images with the same bytes count once. An image without a sentence gets the split `weak` if it has weak text and the
    collection gives it no other split, and else `gallery`. All other images without a split are assigned to train.
    """
    names = sorted(drawn)
    tables.run(
        f"""CREATE OR REPLACE TABLE placed AS
        WITH known AS (
            SELECT seq, split, fault IS NULL AS usable, failure, coalesce(sha256, seq::VARCHAR) AS bytes,
                {"sha256(path)" if by_name else "sha256"} AS hash,
                seq IN (SELECT owner FROM sentences) AS described, seq IN (SELECT owner FROM documents) AS documented
            FROM images LEFT JOIN outcomes USING (seq)
        ), distinct_bytes AS (
            SELECT seq, split, hash FROM known WHERE usable AND failure IS NULL AND described
            QUALIFY row_number() OVER (PARTITION BY bytes ORDER BY seq) = 1
        ), ranked AS (
            SELECT seq, row_number() OVER (ORDER BY hash, seq) AS rank,
                CASE WHEN 'test' IN {names} THEN least(count(*) OVER () // 10, {MAX_DRAWN_IMAGES}) ELSE 0 END AS tests,
                CASE WHEN 'dev' IN {names} THEN least((count(*) OVER () + 5) // 10, {MAX_DRAWN_IMAGES}) ELSE 0 END
                    AS devs
            FROM distinct_bytes WHERE split IN {list(sources)}
        ), divided AS (
            SELECT known.*, CASE
                WHEN rank <= tests THEN 'test'
                WHEN rank <= tests + devs THEN 'dev'
                WHEN split IS DISTINCT FROM '{DIVIDED}' THEN split
                WHEN usable AND NOT described AND documented THEN 'weak'
                WHEN usable AND NOT described THEN 'gallery'
                ELSE 'train' END AS asked
            FROM known LEFT JOIN ranked USING (seq)
        )
        SELECT seq, usable, split = '{DIVIDED}' AS drawn, asked,
            CASE WHEN usable AND NOT described AND NOT (asked = 'weak' AND documented) THEN 'gallery' ELSE asked END
                AS split
        FROM divided"""
    )


def image_folders(tables: Tables) -> Iterator[tuple[int, str | None]]:
    """Yield the `seq` and folder of each image to inspect, in the order of `seq`.

    The folder is None for an image in a shard, and for all images if they are all in the same folder.
    """
    several = tables.value(f"SELECT count(DISTINCT {FOLDER_OF}) > 1 FROM images WHERE fault IS NULL")
    folder = FOLDER_OF if several else "NULL::VARCHAR"
    return tables.rows(f"SELECT seq, {folder} FROM images WHERE fault IS NULL ORDER BY seq")


def find_copies(tables: Tables) -> None:
    """Make the table `twins`, with the `seq` of each image that has the same bytes as an earlier image. `original` is
    the `seq` of the first image with these bytes."""
    tables.run(
        """CREATE TABLE twins AS SELECT seq, original FROM (
            SELECT seq, min(seq) OVER (PARTITION BY sha256) AS original FROM outcomes WHERE sha256 IS NOT NULL
        ) WHERE original < seq"""
    )


def captions_to_take_down(tables: Tables) -> Iterator[tuple[str, int, str]]:
    """Yield (line, `seq` of a sentence, text of the sentence) for each line of the table `captions_taken` and each
    sentence of the image that the line names, or of an image with the same bytes."""
    return tables.rows(
        """WITH groups AS (SELECT seq, coalesce(original, seq) AS original FROM images LEFT JOIN twins USING (seq))
        SELECT line, sentences.seq, text
        FROM captions_taken JOIN groups AS named ON named.seq = captions_taken.image
        JOIN groups AS owners ON owners.original = named.original JOIN sentences ON sentences.owner = owners.seq"""
    )


def place_originals(tables: Tables) -> None:
    """Assign each original without sentences, in `placed`, to the split of its first copy with sentences."""
    tables.run(
        """UPDATE placed SET asked = copy.asked, split = copy.split FROM (
            SELECT twins.original, arg_min(placed.asked, twins.seq) AS asked, arg_min(placed.split, twins.seq) AS split
            FROM twins JOIN placed ON placed.seq = twins.seq
            WHERE twins.seq IN (SELECT owner FROM sentences) GROUP BY twins.original
        ) AS copy
        WHERE placed.seq = copy.original AND placed.seq NOT IN (SELECT owner FROM sentences)"""
    )


def move_sentences_of_copies(tables: Tables) -> int:
    """Move the sentences of copies of an image to the original image, except sentences that the original also has. A
    sentence that several copies have is moved once. The new numbers of the sentences are larger than all numbers in the
    collection.

    Return the number of moved sentences.
    """
    return tables.run(
        f"""UPDATE sentences SET owner = moved.original, number = moved.number FROM (
            SELECT own.seq, twins.original, {MAX_SENTENCE_NUMBER + 1} + own.seq AS number
            FROM sentences AS own JOIN twins ON own.owner = twins.seq
            WHERE NOT EXISTS (FROM sentences AS before WHERE before.owner = twins.original AND before.text = own.text)
            QUALIFY row_number() OVER (PARTITION BY twins.original, own.text ORDER BY own.seq) = 1
        ) AS moved
        WHERE sentences.seq = moved.seq"""
    )


def judge_images(tables: Tables) -> None:
    """Make the table `judged`, with a row for each image. A row has the split of the image, and either the `reason` for
    rejecting the image or its `image_id`. `fate` is the reason for rejecting the records that belong to the image, or
    null."""
    tables.run(
        f"""CREATE TABLE judged AS
        WITH named AS (SELECT seq, path || coalesce('/' || member, '') AS name FROM images),
        reasons AS (
            SELECT images.seq, coalesce(
                fault, failure, CASE WHEN first.seq IS NOT NULL THEN '{DUPLICATE}: the same bytes as ' || first.name END
            ) AS reason, asked, placed.split, drawn, width, height, sha256
            FROM images JOIN placed USING (seq) LEFT JOIN outcomes USING (seq) LEFT JOIN twins USING (seq)
            LEFT JOIN named AS first ON first.seq = twins.original
        )
        SELECT seq, reason, asked, split, drawn, width, height, sha256,
            CASE WHEN reason LIKE '{DUPLICATE}%' THEN 'duplicate image'
                WHEN reason IS NOT NULL THEN 'image rejected: its photo cannot be used' END AS fate,
            CASE WHEN reason IS NULL THEN row_number() OVER (PARTITION BY reason IS NULL ORDER BY seq) - 1 END
                AS image_id
        FROM reasons"""
    )


def keep_images(tables: Tables) -> int:
    """Make the table `kept_images`, with the images of the manifest in its order. Return their number."""
    # Each statement has only one join, because a statement with several joins has several tables in memory at once.
    tables.run(
        """CREATE TABLE located AS SELECT judged.*, path, member, "offset", size
        FROM judged JOIN images USING (seq) WHERE image_id IS NOT NULL"""
    )
    tables.run(
        """CREATE TABLE described AS SELECT located.*, packed
        FROM located LEFT JOIN own_columns ON own_columns.owner = located.seq"""
    )
    tables.run("DROP TABLE located")
    count = tables.run(
        """CREATE TABLE kept_images AS SELECT image_id, path, member, "offset", size, described.split, described.width,
            described.height, described.sha256, packed, seen
        FROM described JOIN outcomes USING (seq) ORDER BY image_id"""
    )
    tables.run("DROP TABLE described")
    return count


def reject_images(tables: Tables) -> None:
    """Add the rejected images to `rejects`.

    An image with a fault in a list is reported with the file and row of the list, and any other image with its name.
    """
    tables.run(
        f"""INSERT INTO rejects SELECT
            seq + CASE WHEN fault IS NULL THEN {RejectPosition.UNUSABLE:d} ELSE {RejectPosition.FAULTY:d} END,
            'images', reason, NULL,
            CASE WHEN fault IS NULL THEN encode(path || coalesce('/' || member, '')) ELSE file END,
            CASE WHEN fault IS NOT NULL THEN "row" END
        FROM judged JOIN images USING (seq) WHERE reason IS NOT NULL"""
    )


def summarise_splits(tables: Tables) -> Iterator[tuple[str, int, int, int, bytes, str | None]]:
    """Yield the name of each split and the fields of its SplitSummary: `given`, `kept`, `silent`, `file`, and `reason`,
    which may be null."""
    # An image whose `drawn` is true has no split in the collection. If it is rejected and was placed in dev or test, it
    # is not counted as given to any split.
    return tables.rows(
        f"""WITH asked AS (
            SELECT seq, file, reason, reason IS NULL AS used, split,
                CASE WHEN drawn AND reason IS NOT NULL AND asked <> 'train' THEN '' ELSE asked END AS asked
            FROM judged JOIN (SELECT seq, file FROM images) USING (seq)
        ), counted AS (
            SELECT name, asked.*, asked = name AS given, used AND split = name AS kept,
                asked = name AND used AND split <> name AS silent
            FROM (SELECT unnest({list(SPLITS)}) AS name) JOIN asked ON asked = name OR (used AND split = name)
        )
        SELECT name, count(*) FILTER (given), count(*) FILTER (kept), count(*) FILTER (silent),
            first(file ORDER BY seq), first(CASE WHEN silent THEN 'no sentence' ELSE reason END ORDER BY seq)
        FROM counted GROUP BY name"""
    )


class OwnedKind(NamedTuple):
    """A kind of records that belong to images.

    `position` is where the rejects of this kind begin in the report. `order` has the columns by which the records of an
    image are sorted. `judge` is the beginning of a query for all records with the `reason` for rejecting each, or null.
    `columns` are the columns of the kind in the manifest.
    """

    position: RejectPosition
    order: str
    judge: str
    columns: str


OWNED = {
    "sentences": OwnedKind(
        RejectPosition.SENTENCES,
        "number, seq",
        """WITH repeated AS (
            SELECT seq FROM sentences QUALIFY row_number() OVER (PARTITION BY owner, number ORDER BY seq) > 1
        ) SELECT seq, file, "row", image_id, number, text, coalesce(fate, CASE WHEN seq IN (FROM repeated)
            THEN 'repeated: this image has another caption of this number' END) AS reason""",
        "image_id, text",
    ),
    "documents": OwnedKind(
        RejectPosition.DOCUMENTS,
        "seq",
        """WITH repeated AS (
            SELECT seq FROM documents QUALIFY row_number() OVER (PARTITION BY owner ORDER BY seq) > 1
        ) SELECT seq, file, "row", image_id, title, tags, description, coalesce(fate, CASE WHEN seq IN (FROM repeated)
            THEN 'repeated: this image has another weak text' END) AS reason""",
        "image_id, title, tags, description",
    ),
    "boxes": OwnedKind(
        RejectPosition.BOXES,
        "seq",
        f"""SELECT seq, file, "row", image_id, label, score,
            TRY_CAST(greatest(least(x1, width), 0) AS FLOAT) AS left_x,
            TRY_CAST(greatest(least(y1, height), 0) AS FLOAT) AS top_y,
            TRY_CAST(greatest(least(x2, width), 0) AS FLOAT) AS right_x,
            TRY_CAST(greatest(least(y2, height), 0) AS FLOAT) AS bottom_y,
            coalesce(fate, CASE
                WHEN NOT (isfinite(x1) AND isfinite(y1) AND isfinite(x2) AND isfinite(y2)
                    AND abs(score) <= {np.finfo(np.float32).max}::DOUBLE)
                THEN 'not finite: a number is NaN, infinite or too large'
                WHEN x2 <= x1 OR y2 <= y1 THEN 'no area: x2 must be larger than x1, and y2 larger than y1'
                WHEN right_x <= left_x OR bottom_y <= top_y
                THEN 'outside of the image: the box does not overlap the photo'
            END) AS reason""",
        "image_id, left_x AS x1, top_y AS y1, right_x AS x2, bottom_y AS y2, score::FLOAT AS score, label",
    ),
}
"""The kinds of records that belong to images and have a table in the manifest. Among several sentences of an image
with the same number, and among several documents of an image, the first is kept. Boxes are clipped to the image."""


def keep_owned(tables: Tables, kind: str) -> int:
    """Make the table `kept_<kind>`, with the kept records in the order of the manifest, and add the others to
    `rejects`.

    Return the number of records that are kept.
    """
    owned = OWNED[kind]
    tables.run(
        f"""CREATE VIEW judged_{kind} AS {owned.judge} FROM {kind}
        JOIN (SELECT seq AS owner, image_id, fate, width, height FROM judged) USING (owner)"""
    )
    tables.run(
        f"""INSERT INTO rejects SELECT {owned.position:d} + seq, '{kind}', reason, NULL, file, "row"
        FROM judged_{kind} WHERE reason IS NOT NULL"""
    )
    return tables.run(
        f"""CREATE TABLE kept_{kind} AS SELECT {owned.columns}, {owned.order}
        FROM judged_{kind} WHERE reason IS NULL ORDER BY image_id, {owned.order}"""
    )


def read_kept(tables: Tables, first: int, last: int) -> dict[str, pa.Table]:
    """Return the tables of the manifest by kind, for the images with an `image_id` from `first` to `last` - 1."""
    window = f"WHERE image_id >= {first} AND image_id < {last} ORDER BY image_id"
    kept = {"images": tables.fetch(f"FROM kept_images {window}")}
    for kind, owned in OWNED.items():
        kept[kind] = tables.fetch(f"SELECT * EXCLUDE ({owned.order}) FROM kept_{kind} {window}, {owned.order}")
    return kept
