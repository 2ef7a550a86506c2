"""The second half of ingest: which images can be used, and the tables of a manifest.

Everything is either kept, rejected with a reason, or a duplicate. Of images with the same bytes the first is kept, and
with it the sentences of the others that it has not. What else belongs to an image shares its fate. Images are settled
some thousand at a time, each time with what belongs to them, so that nothing here grows with the collection.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.collections import annotations
from pipeline.collections.annotations import IMAGE_DUPLICATE, IMAGE_REJECTED, Belongings, Images, are_none
from pipeline.collections.collection import Collection, Summaries
from pipeline.collections.intake import LARGEST_NUMBER, Intake
from pipeline.collections.ownership import ORDER, OWNERS, find_owners
from pipeline.collections.records import DIVIDED, Reject
from pipeline.collections.reject_table import BOXES, DOCUMENTS, FAULTY, SENTENCES, UNUSABLE, to_bytes, to_text
from pipeline.collections.splits import Division, place
from pipeline.config.section import SPLITS
from pipeline.disk_tables import WINDOW
from pipeline.workers import Failure

DUPLICATE = "duplicate"  # first word of the reason to leave out any duplicate
OWNED = {
    "sentences": (annotations.sentences, SENTENCES),
    "documents": (annotations.documents, DOCUMENTS),
    "boxes": (annotations.boxes, BOXES),
}
"""How each is settled, and its stage among the rejects."""
MADE = {
    "placed": pa.schema([("seq", pa.int64()), ("asked", pa.string()), ("split", pa.string())]),
    "outcomes": pa.schema(
        [("seq", pa.int64()), ("width", pa.int32()), ("height", pa.int32())]
        + [("sha256", pa.string()), ("failure", pa.binary())]
    ),
    "duplicates": pa.schema([("seq", pa.int64()), ("original", pa.string())]),
}
"""The split of each image according to the collection, and the actual one; what its inspection gave; the images whose
bytes are those of one before, and the name of the first of these."""


SPLIT_OF_COPY = """
    UPDATE placed SET asked = copy.asked, split = copy.split FROM (
        SELECT twins.owner, arg_min(placed.asked, twins.seq) AS asked, arg_min(placed.split, twins.seq) AS split
        FROM twins JOIN placed ON placed.seq = twins.seq
        WHERE twins.seq IN (SELECT owner FROM sentences) GROUP BY twins.owner
    ) AS copy
    WHERE placed.seq = copy.owner AND placed.seq NOT IN (SELECT owner FROM sentences)
"""
SENTENCES_OF_COPY = f"""
    UPDATE sentences SET owner = moved.owner, number = moved.number FROM (
        SELECT said.seq, twins.owner, {LARGEST_NUMBER + 1} + said.seq AS number
        FROM sentences AS said JOIN twins ON said.owner = twins.seq
        WHERE NOT EXISTS (FROM sentences AS before WHERE before.owner = twins.owner AND before.text = said.text)
        QUALIFY row_number() OVER (PARTITION BY twins.owner, said.text ORDER BY said.seq) = 1
    ) AS moved
    WHERE sentences.seq = moved.seq
"""
"""What `_share_sentences` changes: the split of an image without sentences whose copy has some, and the owner of
sentences; their numbers come after all that a collection gives."""


@dataclass(frozen=True)
class _Settled:
    """Some images in order: their rows of the tables `given` and `placed`, the `reasons` why each is left out (n,) or
    None, their sha256, and `owned` by table with the rows that are given (`belongings`) and what became of them."""

    given: pa.Table
    placed: pa.Table
    images: Images
    reasons: np.ndarray
    sha256: np.ndarray
    belongings: dict[str, pa.Table]
    owned: dict[str, Belongings]

    @property
    def kept(self) -> np.ndarray:
        return np.flatnonzero(are_none(self.reasons))


class Assembly:
    """Images between intake and manifest: inspect those at `locations()`, then pass the outcomes to `collect`."""

    def __init__(self, intake: Intake) -> None:
        self._intake, self._tables = intake, intake.tables
        for name, schema in MADE.items():
            self._tables.create(name, schema)
        self._counts: Counter[str] = Counter()
        self._read_as: Counter[str] = Counter()
        self._place()

    @property
    def splits(self) -> dict[str, int]:
        """Split -> its images, if all of them turn out to be usable."""
        return {split: self._counts[split] for split in SPLITS if self._counts[split]}

    def __len__(self) -> int:
        return self._counts.total()

    def locations(self) -> Iterator[tuple[str, int | None, int | None]]:
        """Path, offset and size of each image to inspect."""
        for _, given in self._tables.windows("images", "seq"):
            wanted = given.filter(given["fault"].is_null())
            yield from zip(*(wanted[name].to_pylist() for name in ("path", "offset", "size")), strict=True)

    def collect(self, outcomes: Iterable[Any]) -> Collection:
        """The collection, given an Inspection or a Failure for each of `locations()`."""
        for seq, outcome in zip(self._wanted(), outcomes, strict=True):
            if isinstance(outcome, Failure):
                self._tables.append("outcomes", (seq, None, None, None, to_bytes(outcome.reason)))
            else:
                self._tables.append("outcomes", (seq, outcome.width, outcome.height, outcome.sha256, None))
                self._read_as.update(outcome.notes)
        self._find_duplicates()
        shared = self._share_sentences()
        kept, summaries, tars = Counter(images=0, **dict.fromkeys(OWNED, 0)), Summaries(), set()
        for settled in self._settle():
            self._list_rejects(settled)
            used = are_none(settled.reasons)
            asked, split = (to_objects(settled.placed[name]) for name in ("asked", "split"))
            drawn = to_objects(settled.given["split"]) == DIVIDED
            asked[drawn & ~used & (asked != "train")] = ""  # no list asks for dev or test, which may be without it
            summaries.add(asked, split, settled.reasons, settled.given["file"])
            kept["images"] += int(used.sum())
            kept.update({what: belongings.kept.num_rows for what, belongings in settled.owned.items()})
            in_tars = settled.given.filter(pa.array(used)).filter(pc.field("offset").is_valid())
            tars.update(in_tars["path"].unique().to_pylist())
        left_out, counts = self._intake.rejects.summarise(not kept["images"]), {}
        for what, number in kept.items():
            twice = left_out.of(what, DUPLICATE)
            fates = {"kept": number, "rejected": left_out.of(what, "") - twice, "duplicate": twice}
            counts[what] = {"given": self._intake.given[what], **fates}
        notes = [f"{count} images {note}" for note, count in self._read_as.most_common()]
        notes += [*self._intake.naming.notes, *self._intake.own.describe()]
        if shared:
            notes.append(f"{shared} sentences of exact copies are kept, with the photograph of which they are copies")
        return Collection(self._parts, self._intake.rejects, left_out, counts, summaries.by_split(), tars, notes)

    def _find_duplicates(self) -> None:
        """Fill the table `duplicates`: the same bytes have the same hash."""
        hashes = "SELECT sha256, seq, true AS image FROM outcomes WHERE sha256 IS NOT NULL"
        rows = self._tables.together(hashes, "sha256", "seq") if self._tables.has_rows("outcomes") else ()
        self._tables.create("twins", OWNERS)
        for found in find_owners(rows):
            self._tables.insert("twins", found.filter(pc.less(found["owner"], found["seq"])))
        self._tables.sort("twins", ("owner",))
        for first, twins in self._tables.windows("twins", "owner"):
            images = self._tables.window("images", "seq", first)
            originals = images.take(np.searchsorted(images["seq"], twins["owner"].to_numpy())).to_pylist()
            names = pa.array(map(_name, originals), pa.string())
            self._tables.insert("duplicates", pa.table([twins["seq"], names], schema=MADE["duplicates"]))
        self._tables.sort("duplicates", ("seq",))

    def _share_sentences(self) -> int:
        """Give the first of some images with the same bytes the sentences of the others that it has not, and where it
        had none, their split; returns the number of these sentences."""
        if not (self._tables.has_rows("twins") and self._tables.has_rows("sentences")):
            return 0
        self._tables.update(SPLIT_OF_COPY)
        return self._tables.update(SENTENCES_OF_COPY)

    def _place(self) -> None:
        """Fill the table `placed`."""
        held_out = "SELECT 1 FROM images WHERE split IN ('dev', 'test') LIMIT 1"
        division = Division(self._tables.has_rows("images") and len(self._tables.ask(held_out)) > 0)
        for first, given in self._tables.windows("images", "seq"):
            has = {
                what: np.isin(given["seq"], self._tables.window(what, "owner", first)["owner"])
                for what in ("sentences", "documents")
            }
            usable = given["fault"].is_null().to_numpy()
            asked, split = place(division, to_objects(given["split"]), usable, has["sentences"], has["documents"])
            self._counts.update(split[usable])
            columns = [given["seq"], pa.array(asked, pa.string()), pa.array(split, pa.string())]
            self._tables.insert("placed", pa.table(columns, schema=MADE["placed"]))

    def _wanted(self) -> Iterator[int]:
        """The numbers of the images at `locations()`."""
        for _, given in self._tables.windows("images", "seq"):
            yield from given["seq"].filter(given["fault"].is_null()).to_pylist()

    def _settle(self) -> Iterator[_Settled]:
        """All images, some thousand at a time, and what belongs to them."""
        count = 0
        for first, given in self._tables.windows("images", "seq"):
            owners, reasons = given["seq"].to_numpy(), to_objects(given["fault"])
            wanted, outcomes = are_none(reasons), self._tables.window("outcomes", "seq", first)
            reasons[wanted] = [reason and to_text(reason) for reason in outcomes["failure"].to_pylist()]
            for again in self._tables.window("duplicates", "seq", first).to_pylist():
                same = f"{DUPLICATE}: the same bytes as {again['original']}"
                reasons[np.searchsorted(owners, again["seq"])] = same
            sizes, sha256 = np.zeros((len(owners), 2), np.int32), np.full(len(owners), None, object)
            sizes[wanted] = np.stack([outcomes[side].fill_null(0).to_numpy() for side in ("width", "height")], axis=1)
            sha256[wanted] = to_objects(outcomes["sha256"])
            ids = np.full(len(owners), -1)
            kept = are_none(reasons)
            ids[kept] = count + np.arange(kept.sum())
            count += kept.sum()
            fates = [r and (IMAGE_DUPLICATE if r.startswith(DUPLICATE) else IMAGE_REJECTED) for r in reasons]
            images = Images(owners, ids, sizes, np.array(fates, dtype=object))
            belongings = {what: self._tables.window(what, "owner", first, ORDER[what]) for what in OWNED}
            owned = {what: OWNED[what][0](rows, images) for what, rows in belongings.items()}
            yield _Settled(
                given, self._tables.window("placed", "seq", first), images, reasons, sha256, belongings, owned
            )

    def _parts(self) -> Iterator[dict[str, pa.Table]]:
        """The tables of the manifest, in parts."""
        count = 0
        for settled in self._settle():
            tables = {what: belongings.kept for what, belongings in settled.owned.items()}
            sentence_id = count + np.arange(len(tables["sentences"]))
            count += len(sentence_id)
            tables["sentences"] = tables["sentences"].add_column(0, "sentence_id", pa.array(sentence_id))
            yield {"images": self._kept_images(settled), **tables}

    def _kept_images(self, settled: _Settled) -> pa.Table:
        rows, owners = settled.kept, settled.images.owners
        said = self._tables.window("own", "owner", int(owners[0]) // WINDOW * WINDOW, ("place",))
        own = self._intake.own.restore(owners, said).take(rows)
        width, height = settled.images.sizes[rows].T
        columns = {
            "image_id": settled.images.ids[rows],
            **{name: settled.given[name].take(rows) for name in ("path", "member", "offset", "size")},
            "split": settled.placed["split"].take(rows),
            "width": width,
            "height": height,
            "sha256": pa.array(settled.sha256[rows], pa.string()),
        }
        return pa.table({**columns, **{name: own[name] for name in own.column_names}})

    def _list_rejects(self, settled: _Settled) -> None:
        """A rejected image is listed under its own name, or under its row in a list if that is at fault."""
        left_out = settled.given.take(np.flatnonzero(~are_none(settled.reasons))).to_pylist()
        for image, reason in zip(left_out, settled.reasons[~are_none(settled.reasons)], strict=True):
            faulty = image["fault"] is not None
            file, row = (to_text(image["file"]), image["row"]) if faulty else (_name(image), None)
            self._reject(image["seq"], FAULTY if faulty else UNUSABLE, file, row, "images", reason)
        for what, (_, stage) in OWNED.items():
            left_out = ~are_none(settled.owned[what].reasons)
            rows = settled.belongings[what].take(np.flatnonzero(left_out))
            for row, reason in zip(rows.to_pylist(), settled.owned[what].reasons[left_out], strict=True):
                self._reject(row["seq"], stage, to_text(row["file"]), row["row"], what, reason)

    def _reject(self, seq: int, stage: int, *reject: Any) -> None:
        self._intake.rejects.add(seq, Reject(*reject), stage=stage)


def _name(image: Mapping[str, Any]) -> str:
    return image["path"] if image["member"] is None else f"{image['path']}/{image['member']}"


def to_objects(column: pa.ChunkedArray) -> np.ndarray:
    return np.array(column.to_pylist(), dtype=object)
