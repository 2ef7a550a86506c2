"""Where the vectors of an index are while it is built, and afterwards."""

from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from pipeline.index.candidates import Built, Progress, build
from pipeline.index.exact import Neighbours, search_exact
from pipeline.index.format import to_bytes
from pipeline.index.vectors import Vectors

if TYPE_CHECKING:
    import torch


class Memory:
    """In the memory of this process, and in the index's own bytes."""

    any_kind = True
    """Whether every kind of index can be there."""
    counted = True
    """Whether what it takes counts as memory."""
    beside = 0
    """Bytes of the index that are in other files than its own, once it is built."""

    def suits(self, factory: str) -> bool:
        """Whether an index of this factory string can be there."""
        return True

    def build(self, factory: str, vectors: Vectors, metric: str, progress: Progress) -> Built:
        """The index of all `vectors`. Raises IntegrityError naming a row that is not finite."""
        return build(factory, vectors, metric, progress=progress)

    def to_bytes(self, index: faiss.Index) -> memoryview:
        """The index as bytes, without what is `beside` it."""
        return to_bytes(index)

    def nearest(
        self, queries: np.ndarray, vectors: Vectors, k: int, metric: str, progress: Progress, gpu: "torch.device | None"
    ) -> Neighbours:
        """The `k` nearest of the `queries` (q, c) by exact search."""
        return search_exact(queries, progress(vectors.blocks(), "exact search"), k, metric, gpu)

    def deliver(self, writer: Any, name: str) -> dict[str, Any]:
        """Have a pipeline.storage.bundle.BundleWriter take over what is `beside` the index `name`, and say what its
        card says of that."""
        return {}
