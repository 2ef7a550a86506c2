"""Which image a sentence, document, box or row of own columns belongs to, by the keys in the tables of intake.

An image is known by the `seq` of the record that named it first: its `owner` number, from here on. Keys find each other
where they are sorted, since those of an image then stand together. (Joins that hash would need memory for all keys.)
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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

    def __init__(self, tables: DiskTables, rejects: RejectTable, given: Counter[str]) -> None:
        self._tables, self._rejects, self._given = tables, rejects, given
        self.strangers = 0
        """Rows of own columns of an unknown image."""

    def assign(self) -> "Ownership":
        """Leave out images that were named before and what belongs to no image; give the rest its `owner`, and order it
        by that.

        Images that are only implied are left out without a word, and with them their documents; they are not `given`.
        """
        kinds = [what for what in ("images", *ORDER) if self._tables.has_rows(what)]
        keys = " UNION ALL ".join(f"SELECT key, seq, {what == 'images'} AS image FROM {what}" for what in kinds)
        self._tables.create("owners", OWNERS)
        for found in find_owners(self._tables.together(keys, "key", "seq") if kinds else ()):
            self._tables.insert("owners", found)
        self._tables.sort("owners", ("seq",))
        for what, settle in {**dict.fromkeys(ORDER, self._own), "documents": self._own_documents}.items():
            self._settle(what, settle)
            self._tables.sort(what, ("owner", *ORDER[what]))
        self._settle("images", self._name_images)
        self._tables.drop("owners")
        return self

    def _settle(self, what: str, settle: Callable[..., pa.Table]) -> None:
        """Put the rows of a table that `settle` keeps, with their owners, in its place."""
        fields = [field for field in self._tables.schemas[what] if field.name != "key"]
        self._tables.create("owned", pa.schema([*fields, OWNERS.field("owner")]))
        for first, rows in self._tables.windows(what, "seq"):
            # From the record before the first: a document's image may be the last of the window before this one.
            owners = self._tables.window("owners", "seq", first, before=1)
            self._tables.insert("owned", settle(what, rows, *(column.to_numpy() for column in owners.columns)))
        self._tables.replace(what, "owned")

    def _name_images(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        rows = _with_owner(rows, seqs, owners)
        again = rows.filter(pc.less(rows["owner"], rows["seq"]))
        self._given["images"] -= pc.sum(again["implied"]).as_py() or 0
        self._reject("images", again.filter(pc.invert(again["implied"])), "duplicate: {!r} was named before")
        return rows.filter(pc.equal(rows["owner"], rows["seq"]))

    def _own_documents(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        before = np.searchsorted(seqs, rows["seq"].to_numpy()) - 1
        counted = pa.array(~rows["implied"].to_numpy() | (owners[before] == seqs[before]))
        self._given[what] -= len(rows) - len(rows := rows.filter(counted))
        sound = rows["fault"].is_null()
        for row in rows.filter(pc.invert(sound)).to_pylist():
            self._rejects.add(row["seq"], Reject(to_text(row["file"]), row["row"], what, row["fault"]))
        return self._own(what, rows.filter(sound), seqs, owners)

    def _own(self, what: str, rows: pa.Table, seqs: np.ndarray, owners: np.ndarray) -> pa.Table:
        rows = _with_owner(rows, seqs, owners)
        unknown = pc.greater(rows["owner"], rows["seq"])
        if what == "told":
            self.strangers += pc.sum(unknown).as_py() or 0
        else:
            self._reject(what, rows.filter(unknown), "unknown image: {!r}")
        return rows.filter(pc.invert(unknown))

    def _reject(self, what: str, rows: pa.Table, reason: str) -> None:
        for row in rows.to_pylist():
            reject = Reject(to_text(row["file"]), row["row"], what, reason.format(to_text(row["key"])))
            self._rejects.add(row["seq"], reject)


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
