"""The items of a bundle, or of two of one model, as one numbered set, so that the bundle can change without its run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.arrow_tables import append_rows
from pipeline.errors import IntegrityError, UsageError
from pipeline.index.filtering import is_exact, reconstruct
from pipeline.index.opening import open_index
from pipeline.index.vectors import ArrayVectors

REMOVED = {"images": "sha256", "sentences": "text"}
"""The column that is null in the rows of removed items."""


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
        return self._vectors[modality][ids]

    def outline(self, modality: str, ids: np.ndarray) -> None:
        """No item has several vectors."""

    def _by_id(self, bundle: Any, modality: str) -> pa.Table:
        """The table of a modality whose row i has the id i, all null where there is no such item."""
        table = bundle.table(modality)
        number = table[f"{modality.removesuffix('s')}_id"].to_numpy()
        if number.min(initial=0) < 0 or len(np.unique(number)) < len(number):
            raise IntegrityError(f"{bundle.folder}/{modality}.parquet has ids that are not distinct; make it anew")
        places = np.full(int(number.max(initial=-1)) + 1, -1)
        places[number] = np.arange(len(number))
        alive = np.flatnonzero(table[REMOVED[modality]].is_valid().to_numpy())
        vectors = np.zeros((len(places), bundle.card["dim"]), np.float32)
        if len(alive):
            vectors[number[alive]] = exact_vectors(bundle, modality, alive)
        self._vectors[modality] = vectors
        return table.take(pa.array(places, mask=places < 0))


class JoinedBundles(BundleItems):
    """The items of the bundle `first` under the ids that they have, and after them those of `second`.

    `root_column` is that of images in another folder than the card's `data_root`: in which of its `more_roots`, from 1.
    Photographs that both have (by their sha256) are those of `first`, and so are their sentences. `fresh` are the ids
    that come from `second`, by modality, and `roots` the folders of photographs beside the first's data_root. Raises
    as BundleItems, UsageError where `second` alone has sentences or is of another model, and IntegrityError where
    images are in folders that their card does not name.
    """

    def __init__(self, first: Any, second: Any, root_column: str) -> None:
        if first.card["inputs"]["model"] != second.card["inputs"]["model"]:
            raise UsageError(
                f"{second.folder} was made by another model than {first.folder}; apply {first.folder} to it"
            )
        super().__init__(first)
        added = BundleItems(second)
        self.inputs = {"joined": second.card["fingerprint"]}
        given = [second.card["data_root"], *second.card.get("more_roots", [])]
        known = [first.card["data_root"], *first.card.get("more_roots", [])]
        roots = list(dict.fromkeys([*known, *given]))
        self.roots, self.fresh = roots[1:], {}
        _folders(self, root_column, len(known))
        owners = self._join_images(added, root_column, [roots.index(root) for root in given])
        self._join_sentences(added, owners)
        self.folder = self.manifest.folder = second.folder

    def _join_images(self, added: BundleItems, root_column: str, places: list[int]) -> np.ndarray:
        """(n,) int64: the id that each image of `added` has here, -1 for those that are not taken.

        `places` are the numbers of its folders of photographs among all.
        """
        images, here = added.manifest.images, set(self.manifest.images["sha256"].to_pylist())
        digests = images["sha256"].to_pylist()
        rows = np.array([row for row, digest in enumerate(digests) if digest and digest not in here], np.int64)
        more = images.take(rows)
        own = _folders(added, root_column, len(places))
        if any(places) or root_column in more.column_names:
            numbers = pa.array([places[own[row]] or None for row in rows], pa.int64())
            more = _replaced(more, root_column, numbers)
        owners = np.full(len(digests), -1)
        owners[rows] = self._append("images", "image_id", more, added.read("images", rows))
        return owners

    def _join_sentences(self, added: BundleItems, owners: np.ndarray) -> None:
        sentences = added.manifest.sentences
        known = sentences["text"].is_valid().to_numpy()
        image_id = sentences["image_id"].fill_null(-1).to_numpy()
        rows = np.flatnonzero(known & (image_id >= 0) & (image_id < len(owners)))
        rows = rows[owners[image_id[rows]] >= 0]
        if len(rows) and not self.manifest.sentences.num_rows:
            raise UsageError(f"{self.folder} has no sentences and {added.folder} has: start from the latter")
        more = _replaced(sentences.take(rows), "image_id", pa.array(owners[image_id[rows]]))
        self._append("sentences", "sentence_id", more, added.read("sentences", rows))

    def _append(self, modality: str, number: str, more: pa.Table, vectors: np.ndarray) -> np.ndarray:
        """The ids that the items in the table `more` get, which have these `vectors` (k, c)."""
        table = getattr(self.manifest, modality)
        self.fresh[modality] = ids = table.num_rows + np.arange(more.num_rows)
        setattr(self.manifest, modality, append_rows(table, _replaced(more, number, pa.array(ids))))
        self._vectors[modality] = np.concatenate([self._vectors[modality], vectors])
        return ids


def _folders(items: BundleItems, column: str, count: int) -> list[int]:
    """Which of `count` folders each image is in. Raises IntegrityError where it is in another."""
    images = items.manifest.images
    if column not in images.column_names:
        return [0] * images.num_rows
    numbers = [number or 0 for number in images[column].to_pylist()]
    if not set(numbers) <= set(range(count)):
        raise IntegrityError(f"{items.folder}/images.parquet names folders that its card does not; make it anew")
    return numbers


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
