"""Which image a sentence, document, box or row of own columns belongs to, by the keys in the tables of intake.

An image is known by the `seq` of the record that named it first: its `owner` number, from here on. Keys find each other
where they are sorted, since those of an image then stand together. (Joins that hash would need memory for all keys.)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.collections.naming import GONE, Naming
from pipeline.collections.records import Reject
from pipeline.collections.reject_table import RejectTable, to_text
from pipeline.disk_tables import DiskTables

ORDER = {"sentences": ("number", "seq"), "documents": ("seq",), "boxes": ("seq",), "told": ("seq",)}
"""What images own, and its order within an image: of two sentences with the same number, or of two documents, the first
counts."""
NOBODY = np.iinfo(np.int64).max
OWNERS = pa.schema([("seq", pa.int64()), ("owner", pa.int64())])


class Ownership:
    """Of the `tables` of an intake, its `rejects` and how many of each kind are `given`."""

    def __init__(self, tables: DiskTables, rejects: RejectTable, given: Counter[str], naming: Naming) -> None:
        self._tables, self._rejects, self._given, self._naming = tables, rejects, given, naming
        self.strangers = 0
        """Rows of own columns of an unknown image."""

    def assign(self) -> "Ownership":
        """Leave out images that were named before and what belongs to no image; give the rest its `owner`, and order it
        by that.

        Images that are only implied are left out without a word, and with them their documents; they are not `given`.
        Nor are images that are taken down and what belongs to them.
        """
        self._naming.find_files()
        kinds = [what for what in ("images", *ORDER) if self._tables.has_rows(what)]
        keys = " UNION ALL ".join(f"SELECT key, seq, {what == 'images'} AS image FROM {what}" for what in kinds)
        self._tables.create("owners", OWNERS)
        for found in find_owners(self._tables.together(keys, "key", "seq") if kinds else ()):
            self._tables.insert("owners", found)
        self._tables.sort("owners", ("seq",))
        self._naming.join_files()
        self._naming.find_images([*ORDER], self._given)
        self._naming.take_down()
        for what, settle in {**dict.fromkeys(ORDER, self._own), "documents": self._own_documents}.items():
            self._settle(what, settle)
            self._tables.sort(what, ("owner", *ORDER[what]))
        self._settle("images", self._name_images)
        self._tables.drop("owners")
        return self

    def _settle(self, what: str, settle: Callable[..., pa.Table]) -> None:
        """Put the rows of a table that `settle` keeps, with their owners, in its place."""
        done = {"key"} if what == "images" else {"key", "fault"}
        fields = [field for field in self._tables.schemas[what] if field.name not in done]
        self._tables.create("owned", pa.schema([*fields, OWNERS.field("owner")]))
        for first, rows in self._tables.windows(what, "seq"):
            # From the record before the first: a document's image may be the last of the window before this one.
            owners = self._tables.window("owners", "seq", first, before=1)
            self._tables.insert("owned", settle(what, rows, *(column.to_numpy() for column in owners.columns)))
        self._tables.replace(what, "owned")

    def _name_images(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        rows = self._without_gone(what, _with_owner(rows, seqs, owners))
        again = rows.filter(pc.less(rows["owner"], rows["seq"]))
        self._given["images"] -= pc.sum(again["implied"]).as_py() or 0
        self._reject("images", again.filter(pc.invert(again["implied"])), "duplicate: {key!r} was named before")
        return rows.filter(pc.equal(rows["owner"], rows["seq"]))

    def _own_documents(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        before = np.searchsorted(seqs, rows["seq"].to_numpy()) - 1
        counted = pa.array(~rows["implied"].to_numpy() | (owners[before] == seqs[before]))
        self._given[what] -= len(rows) - len(rows := rows.filter(counted))
        return self._own(what, rows, seqs, owners)

    def _own(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        rows = self._without_gone(what, _with_owner(rows, seqs, owners))
        if "fault" in rows.column_names and rows["fault"].null_count < len(rows):
            sound = rows["fault"].is_null()
            self._reject(what, rows.filter(pc.invert(sound)), "{fault}")
            rows = rows.filter(sound)
        unknown = pc.greater(rows["owner"], rows["seq"])
        if what == "told":
            self.strangers += pc.sum(unknown).as_py() or 0
        else:
            self._reject(what, rows.filter(unknown), "unknown image: {key!r}")
        return rows.filter(pc.invert(unknown))

    def _without_gone(self, what: str, rows: pa.Table) -> pa.Table:
        """The rows but those of images that are taken down, and those of no image that the takedown list names."""
        gone = pc.equal(rows["owner"], GONE)
        unknown = pc.greater(rows["owner"], rows["seq"])
        if self._naming.takedown.lines and pc.any(unknown).as_py():
            named = {key: self._naming.takedown.names(to_text(key)) for key in rows.filter(unknown)["key"].to_pylist()}
            gone = pc.or_(gone, pa.array([named.get(key, False) for key in rows["key"].to_pylist()]))
        if not pc.any(gone).as_py():
            return rows
        if what != "told":
            self._given[what] -= pc.sum(gone).as_py()
        return rows.filter(pc.invert(gone))

    def _reject(self, what: str, rows: pa.Table, reason: str) -> None:
        for row in rows.to_pylist():
            text = reason.format(key=to_text(row["key"]), fault=row.get("fault"))
            if may_be := self._naming.ambiguous.get(row["key"]):
                text = f"ambiguous image: {to_text(row['key'])!r} {may_be}"
            self._rejects.add(row["seq"], Reject(to_text(row["file"]), row["row"], what, text))


def find_owners(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """For records (key, seq, whether it is an image), those of a key together and in their order, the `seq` of the
    first image of that key, or NOBODY. One that comes later than the record does not own it."""
    last, owner = None, NOBODY
    for keys, seq, image in (batch.columns for batch in batches):
        new = np.concatenate([[keys[0] != last], pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)])
        group, seq = np.cumsum(new), seq.to_numpy()
        firsts = np.full(group[-1] + 1, NOBODY)
        firsts[0] = owner  # of the key with which the batch before ended
        np.minimum.at(firsts, group, np.where(image.to_numpy(zero_copy_only=False), seq, NOBODY))
        last, owner = keys[-1], firsts[-1]
        yield pa.table([seq, firsts[group]], schema=OWNERS)


def _with_owner(rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
    return rows.append_column("owner", pa.array(owners[np.searchsorted(seqs, rows["seq"].to_numpy())]))
