"""The items of a bundle, or of two of one model, as one numbered set, so that the bundle can change without its run."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import append_rows
from pipeline.errors import UsageError
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.opening import open_index
from pipeline.index.vectors import ArrayVectors

REMOVED = {"images": "sha256", "sentences": "text"}
"""The column that is null in the rows of removed items."""


@dataclass(frozen=True)
class TableById:
    """A `table` whose rows have the `ids` (n,), ascending: it answers as a manifest's, whose row i has the id i, and is
    no larger where ids are missing."""

    ids: np.ndarray
    table: pa.Table

    @property
    def num_rows(self) -> int:
        """The first free id."""
        return int(self.ids.max(initial=-1)) + 1

    def select(self, columns: Sequence[str]) -> "TableById":
        return TableById(self.ids, self.table.select(columns))

    def take(self, ids: np.ndarray) -> pa.Table:
        """The rows of these ids, all null where there is none."""
        rows = self.rows(ids)
        return self.table.take(pa.array(rows, mask=rows < 0))

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """(k,) the rows of these ids; -1 where there is none."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[rows] == ids, rows, -1)

    def followed_by(self, table: pa.Table, ids: np.ndarray) -> "TableById":
        return TableById(np.concatenate([self.ids, ids]), append_rows(self.table, table))


class BundleItems:
    """The items of a bundle by id, with the vectors that its indices hold, as a pipeline.storage.embeddings.Embeddings
    has those of a run.

    Raises UsageError for a bundle of a multi-vector model, and for indices that do not give their vectors back exactly.
    """

    multi_vector = False

    def __init__(self, bundle: Any) -> None:
        if bundle.card.get("kind") == "fragments":
            raise UsageError(f"{bundle.folder} has several vectors an image; change it by its run (--run)")
        self.folder, self.model = bundle.folder, bundle.card["inputs"]["model"]
        self.metric = self.comparison = bundle.card["metric"]
        self.inputs: dict[str, str] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self.manifest = SimpleNamespace(folder=bundle.folder)
        for modality in REMOVED:
            setattr(self.manifest, modality, self._by_id(bundle, modality))

    def rows_of(self, modality: str, ids: np.ndarray) -> ArrayVectors:
        """The vectors of some `images` or `sentences`."""
        return ArrayVectors(self.read(modality, ids))

    def read(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """(k, c) float32 of the `ids` (k,)."""
        return self._vectors[modality][getattr(self.manifest, modality).rows(ids)]

    def outline(self, modality: str, ids: np.ndarray) -> None:
        """No item has several vectors."""

    def _by_id(self, bundle: Any, modality: str) -> TableById:
        """The table of a modality by its ids."""
        table = bundle.table(modality)
        order = np.argsort(ids := table[f"{modality.removesuffix('s')}_id"].to_numpy())
        alive = np.flatnonzero(table[REMOVED[modality]].is_valid().to_numpy())
        vectors = np.zeros((len(ids), bundle.card["dim"]), np.float32)
        if len(alive):
            vectors[alive] = exact_vectors(bundle, modality, alive)
        self._vectors[modality] = vectors[order]
        return TableById(ids[order], table.take(pa.array(order)))


class JoinedBundles(BundleItems):
    """The items of the bundle `first` under the ids that they have, and after them those of `second`.

    `root_column` is that of images in another folder than the card's `data_root`: in which of its `more_roots`, from 1.
    Photographs that both have (by their sha256) are those of `first`, and so are their sentences. `fresh` are the ids
    that come from `second`, by modality, and `roots` the folders of photographs beside the first's data_root. Raises
    as BundleItems, and UsageError where `second` alone has sentences or is of another model.
    """

    def __init__(self, first: Any, second: Any, root_column: str) -> None:
        super().__init__(first)
        here = set(self.manifest.images.table["sha256"].to_pylist())
        ends = {modality: getattr(self.manifest, modality).num_rows for modality in REMOVED}
        added = AddedItems(first, second, root_column, lambda digests: here.intersection(digests), ends)
        self.inputs, self.roots, self.fresh = added.inputs, added.roots, {}
        for modality, more in added.tables.items():
            table, vectors = getattr(self.manifest, modality), added.items.read(modality, added.ids[modality])
            self.fresh[modality] = table.num_rows + np.arange(more.num_rows)
            setattr(self.manifest, modality, table.followed_by(more, self.fresh[modality]))
            self._vectors[modality] = np.concatenate([self._vectors[modality], vectors])
        self.folder = self.manifest.folder = second.folder


class AddedItems:
    """What the bundle `first` lacks of the bundle `second`, of the same model: the `tables` by modality, under the ids
    that it has there, and the `ids` (k,) that these have among the `items` of `second`.

    `known(digests)` are those of some sha256 whose photographs `first` has, and `ends` the first free id of each
    modality; for the rest see JoinedBundles.
    """

    def __init__(
        self, first: Any, second: Any, root_column: str, known: Callable[[list[str]], Set[str]], ends: Mapping[str, int]
    ) -> None:
        if first.card["inputs"]["model"] != second.card["inputs"]["model"]:
            raise UsageError(
                f"{second.folder} was made by another model than {first.folder}; apply {first.folder} to it"
            )
        self.items, self.inputs = BundleItems(second), {"joined": second.card["fingerprint"]}
        self.tables: dict[str, pa.Table] = {}
        self.ids: dict[str, np.ndarray] = {}
        given, before = ([one.card["data_root"], *one.card.get("more_roots", [])] for one in (second, first))
        roots = list(dict.fromkeys([*before, *given]))
        self.roots = roots[1:]
        owners = self._take_images(root_column, [roots.index(root) for root in given], known, ends["images"])
        self._take_sentences(owners, ends["sentences"])
        if len(self.ids["sentences"]) and not ends["sentences"]:
            raise UsageError(f"{first.folder} has no sentences and {second.folder} has: start from the latter")

    def _take_images(
        self, root_column: str, places: list[int], known: Callable[[list[str]], Set[str]], end: int
    ) -> np.ndarray:
        """(n,) int64: the id that each row of `second` gets, -1 for those that are not taken.

        `places` are the numbers of its folders of photographs among all.
        """
        images = self.items.manifest.images
        digests = images.table["sha256"].to_pylist()
        here = known([digest for digest in digests if digest])
        rows = np.array([row for row, digest in enumerate(digests) if digest and digest not in here], np.int64)
        more = images.table.take(rows)
        if any(places) or root_column in more.column_names:
            own = more[root_column].to_pylist() if root_column in more.column_names else [0] * len(rows)
            more = _replaced(more, root_column, pa.array([places[number or 0] or None for number in own], pa.int64()))
        owners = np.full(len(digests), -1)
        owners[rows] = ids = end + np.arange(len(rows))
        self.ids["images"], self.tables["images"] = images.ids[rows], _replaced(more, "image_id", pa.array(ids))
        return owners

    def _take_sentences(self, owners: np.ndarray, end: int) -> None:
        sentences = self.items.manifest.sentences
        known = sentences.table["text"].is_valid().to_numpy()
        image = self.items.manifest.images.rows(sentences.table["image_id"].to_numpy())
        owner = np.where(image >= 0, owners[image], -1) if len(owners) else np.full(len(image), -1)
        rows = np.flatnonzero(known & (owner >= 0))
        more = _replaced(sentences.table.take(rows), "image_id", pa.array(owner[rows]))
        ids = pa.array(end + np.arange(len(rows)))
        self.ids["sentences"], self.tables["sentences"] = sentences.ids[rows], _replaced(more, "sentence_id", ids)


def exact_vectors(bundle: Any, modality: str, rows: np.ndarray) -> np.ndarray:
    """(k, c) float32, the vectors of the `rows` (k,) of a bundle's table. Raises UsageError where its index has rounded
    them."""
    index = open_index(bundle, modality)
    if not is_exact(index):
        raise UsageError(
            f"the index of {modality} in {bundle.folder} ({bundle.card[modality]['factory']}) has rounded its vectors;"
            " change it by its run (--run), or build it with a greater index.exact_limit"
        )
    return reconstruct(index, rows)


def _replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """`table` with this column, in the place of that of the same name, if it has one."""
    if name not in table.column_names:
        return table.append_column(name, column)
    return table.set_column(table.column_names.index(name), name, column)
