"""Which fragments of a bundle's `regions.faiss` and `words.faiss` are one image or sentence: `fragments.safetensors`.

Fragments are numbered without gaps, set after set in the order of the tables' rows, and numbered anew when some are
removed; what keeps its number is the row. A removed row has no fragments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pipeline.precision import require_boxes, require_sets
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.fragments import SIDES, StoredSets

FILE = "fragments.safetensors"


@dataclass(frozen=True)
class BundledSets:
    """Row i has the fragments [offsets[i], offsets[i + 1]); `globals` (n, g) is None where the model has none, `boxes`
    (total, 4) None for sentences."""

    offsets: np.ndarray
    globals: np.ndarray | None
    boxes: np.ndarray | None

    def fragments_of(self, rows: np.ndarray) -> np.ndarray:
        """(k,) the fragments of `rows`, ascending."""
        chosen = np.zeros(len(self.offsets) - 1, bool)
        chosen[rows] = True
        return np.flatnonzero(np.repeat(chosen, np.diff(self.offsets)))

    def without(self, rows: np.ndarray) -> "BundledSets":
        """The same rows, of which `rows` have nothing left."""
        lengths = np.diff(self.offsets)
        lengths[rows] = 0
        boxes = None if self.boxes is None else np.delete(self.boxes, self.fragments_of(rows), axis=0)
        whole = None if self.globals is None else self.globals.copy()
        if whole is not None:
            whole[rows] = 0
        return BundledSets(np.concatenate([[0], np.cumsum(lengths)]), whole, boxes)

    def followed_by(self, sets: StoredSets) -> "BundledSets":
        """These rows and, after them, one for each of `sets`."""
        pairs = ((self.globals, sets.globals), (self.boxes, sets.boxes))
        joined = [None if own is None else np.concatenate([own, more]) for own, more in pairs]
        return BundledSets(np.concatenate([self.offsets, self.offsets[-1] + sets.offsets[1:]]), *joined)


def read_bundled_sets(bundle: Bundle) -> dict[str, BundledSets]:
    """The sets of `images` and `sentences`. Raises IntegrityError where they do not fit the bundle's tables."""
    arrays, found = bundle.arrays(FILE), {}
    for modality, one in SIDES.items():
        path, offsets, whole = bundle.folder / FILE, arrays.get(f"{one}_offsets"), arrays.get(f"{one}_globals")
        require_sets(path, bundle.packed_table(modality).num_rows, None, offsets, whole)
        if modality == "images":
            require_boxes(path, int(offsets[-1]), arrays.get("boxes"))
        found[modality] = BundledSets(offsets, whole, arrays["boxes"] if modality == "images" else None)
    return found


def add_bundled_sets(writer: BundleWriter, sets: Mapping[str, BundledSets]) -> None:
    """Write the sets of `images` and `sentences` into a bundle."""
    arrays = {"boxes": sets["images"].boxes}
    for modality, one in SIDES.items():
        arrays |= {f"{one}_offsets": sets[modality].offsets, f"{one}_globals": sets[modality].globals}
    writer.add_arrays(FILE, {name: array for name, array in arrays.items() if array is not None})
