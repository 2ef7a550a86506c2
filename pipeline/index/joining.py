"""Two bundles of one model as one numbered set of images and sentences, so that the first can take in the second."""

from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, UsageError
from pipeline.index.format import from_bytes
from pipeline.index.vectors import ArrayVectors

REMOVED = {"images": "sha256", "sentences": "text"}
"""The column that is null in the rows of removed items."""


class JoinedBundles:
    """The rows of the bundle `first` under the ids that they have, and after them those of `second`, as a
    pipeline.storage.embeddings.Embeddings has those of a run.

    `root_column` is that of images in another folder than the card's `data_root`: in which of its `more_roots`, from 1.
    Photographs that both have (by their sha256) are those of `first`, and so are their sentences. `fresh` are the ids
    that come from `second`, by modality, and `roots` the folders of photographs beside the first's data_root. Raises
    UsageError for bundles of multi-vector models, for indices that do not give their vectors back exactly, and where
    `second` alone has sentences, and for another model's.
    """

    multi_vector = False

    def __init__(self, first: Any, second: Any, root_column: str) -> None:
        if "fragments" in (first.card.get("kind"), second.card.get("kind")):
            raise UsageError(
                f"{first.folder} has several vectors an image; add to it from a run that has grown (--run)"
            )
        self.folder, self.model = second.folder, second.card["inputs"]["model"]
        if self.model != first.card["inputs"]["model"]:
            raise UsageError(
                f"{second.folder} was made by another model than {first.folder}; apply {first.folder} to it"
            )
        self.metric = self.comparison = first.card["metric"]
        self.inputs = {"joined": second.card["fingerprint"]}
        self._bundles, self._root_column = (first, second), root_column
        given = [second.card["data_root"], *second.card.get("more_roots", [])]
        known = [first.card["data_root"], *first.card.get("more_roots", [])]
        roots = list(dict.fromkeys([*known, *given]))
        self.roots, self.fresh, self._vectors = roots[1:], {}, {}
        images = self._join_images([roots.index(root) for root in given])
        sentences = self._join_sentences()
        self.manifest = SimpleNamespace(folder=second.folder, images=images, sentences=sentences)

    def rows_of(self, modality: str, ids: np.ndarray) -> ArrayVectors:
        """The vectors of some `images` or `sentences`."""
        return ArrayVectors(self.read(modality, ids))

    def read(self, modality: str, ids: np.ndarray) -> np.ndarray:
        """(k, c) float32 of the `ids` (k,)."""
        return self._vectors[modality][ids]

    def outline(self, modality: str, ids: np.ndarray) -> None:
        """No item has several vectors."""

    def _join_images(self, places: list[int]) -> pa.Table:
        """The images by id; `places` are the numbers of the second's roots among all."""
        first, second = (one.table("images") for one in self._bundles)
        here = set(first["sha256"].to_pylist())
        digests = second["sha256"].to_pylist()
        rows = np.array([row for row, digest in enumerate(digests) if digest and digest not in here], np.int64)
        start = self._start("images", first)
        ids = np.full(len(digests), -1)
        ids[rows] = start + np.arange(len(rows))
        self._owners = dict(zip(second["image_id"].to_pylist(), ids.tolist(), strict=True))
        more = second.take(rows)
        if any(places):
            name = self._root_column
            own = [one or 0 for one in more[name].to_pylist()] if name in more.column_names else [0] * len(rows)
            if not set(own) <= set(range(len(places))):
                raise IntegrityError(f"{self.folder}/images.parquet names folders that its card does not; make it anew")
            more = _replaced(more, name, pa.array([places[one] or None for one in own], pa.int64()))
        return self._append("images", first, _replaced(more, "image_id", pa.array(ids[rows])), rows)

    def _join_sentences(self) -> pa.Table:
        first, second = (one.table("sentences") for one in self._bundles)
        texts, owners = second["text"].to_pylist(), second["image_id"].to_pylist()
        kept = [row for row, text in enumerate(texts) if text is not None and self._owners.get(owners[row], -1) >= 0]
        rows = np.array(kept, np.int64)
        if len(rows) and not self._bundles[0].card.get("sentences"):
            raise UsageError(f"{self._bundles[0].folder} has no sentences and {self.folder} has: start from the latter")
        more = _replaced(
            second.take(rows), "image_id", pa.array([self._owners[owners[row]] for row in kept], pa.int64())
        )
        ids = self._start("sentences", first) + np.arange(len(rows))
        return self._append("sentences", first, _replaced(more, "sentence_id", pa.array(ids)), rows)

    def _append(self, modality: str, first: pa.Table, more: pa.Table, rows: np.ndarray) -> pa.Table:
        """The items of a modality by id: `first`, and `more`, the `rows` (k,) of the second's table."""
        start, number = self._start(modality, first), first[f"{modality.removesuffix('s')}_id"].to_numpy()
        self.fresh[modality] = start + np.arange(len(rows))
        places = np.full(start, -1)
        places[number] = np.arange(first.num_rows)
        spread = first.take(pa.array(places, mask=places < 0))
        alive = np.flatnonzero(first[REMOVED[modality]].is_valid().to_numpy(zero_copy_only=False))
        vectors = np.zeros((start + len(rows), self._bundles[0].card["dim"]), np.float32)
        if len(alive):
            vectors[number[alive]] = exact_vectors(self._bundles[0], modality, alive)
        if len(rows):
            vectors[start:] = exact_vectors(self._bundles[1], modality, rows)
        self._vectors[modality] = vectors
        try:
            return pa.concat_tables([spread, more], promote_options="default")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UsageError(
                f"{self.folder} and {self._bundles[0].folder} have a column of one name and two types ({error}); rename"
                " it in one of the collections"
            ) from error

    @staticmethod
    def _start(modality: str, first: pa.Table) -> int:
        """The first id that is free."""
        return int(first[f"{modality.removesuffix('s')}_id"].to_numpy().max(initial=-1)) + 1


def exact_vectors(bundle: Any, modality: str, rows: np.ndarray) -> np.ndarray:
    """(k, c) float32, the vectors of the `rows` (k,) of a bundle's table. Raises UsageError where its index has rounded
    them."""
    index = from_bytes(bundle.index(modality), f"{bundle.folder}/{modality}.faiss", bundle.card[modality])
    if isinstance(index, faiss.IndexIDMap):
        ids = faiss.vector_to_array(index.id_map)
        order = np.argsort(ids)
        index, rows = faiss.downcast_index(index.index), order[np.searchsorted(ids[order], rows)]
    if isinstance(index, faiss.IndexIVFFlat):
        index.make_direct_map()
    elif not isinstance(index, faiss.IndexFlat | faiss.IndexHNSWFlat):
        raise UsageError(
            f"the index of {modality} in {bundle.folder} ({bundle.card[modality]['factory']}) has rounded its vectors,"
            " and they cannot be joined with others; build it with a greater index.exact_limit"
        )
    return index.reconstruct_batch(rows)


def _replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """`table` with this column, in the place of that of the same name, if it has one."""
    if name not in table.column_names:
        return table.append_column(name, column)
    return table.set_column(table.column_names.index(name), name, column)
