"""Text of the nearest auxiliary images: the baseline `text-feature` of Gong et al. 2014, section 4.2."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pipeline.models.linear.accumulation import sum_by_owner
from pipeline.models.linear.feature_maps import from_sparse_parts, sparse_parts
from pipeline.models.linear.mapped import ViewBlock
from pipeline.models.linear.views import Rows, as_sparse


class NeighbourText:
    """`weight` * T^(x) beside x: T^ is the mean vector of the documents of the k auxiliary images nearest to x.

    FAISS finds the nearest by exact Euclidean distance in the image view. The model holds the auxiliary images
    `gallery` (n, D) float16 and their `texts` (n, d) sparse, so that it can embed new images.
    """

    kind: ClassVar[str] = "neighbours"
    keep = True

    def __init__(self, gallery: np.ndarray, texts: sparse.csr_array, neighbours: int, weight: float = 1.0) -> None:
        self.gallery, self.texts, self.weight = gallery, texts, weight
        self.neighbours, self.dim = min(neighbours, len(gallery)), texts.shape[1]

    @classmethod
    def build(cls, blocks: Iterable[ViewBlock], neighbours: int) -> "NeighbourText":
        """With the images of `blocks` as the gallery; several documents of one image are summed."""
        galleries, texts = [], []
        for block in blocks:
            galleries.append(block.x.astype(np.float16))
            texts.append(as_sparse(sum_by_owner(block.y, block.owners, len(block.x))))
        return cls(np.concatenate(galleries), sparse.vstack(texts, format="csr"), neighbours)

    def weighted(self, weight: float) -> "NeighbourText":
        """The same map with another weight."""
        return NeighbourText(self.gallery, self.texts, self.neighbours, weight)

    def __call__(self, rows: Rows) -> np.ndarray:
        import faiss

        _, nearest = faiss.knn(np.ascontiguousarray(rows, np.float32), self.gallery.astype(np.float32), self.neighbours)
        pointers = np.arange(0, nearest.size + 1, self.neighbours)
        weights = np.full(nearest.size, self.weight / self.neighbours, np.float32)
        mean = sparse.csr_array((weights, nearest.ravel(), pointers), shape=(len(nearest), len(self.gallery)))
        return (mean @ self.texts).toarray()

    def settings(self) -> dict[str, Any]:
        return {"neighbours": self.neighbours, "terms": self.dim, "weight": float(self.weight)}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"gallery": self.gallery, **sparse_parts(self.texts)}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "NeighbourText":
        texts = from_sparse_parts(tensors, (len(tensors["gallery"]), settings["terms"]))
        return cls(tensors["gallery"], texts, settings["neighbours"], settings["weight"])
