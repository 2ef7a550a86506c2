"""Text transferred from the nearest auxiliary images: the baseline `text-feature` of Gong et al. 2014, section 4.2."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from pipeline.models.linear.accumulation import sum_by_owner
from pipeline.models.linear.feature_maps import Rows
from pipeline.models.linear.mapped import ViewBlock


class NeighbourText:
    """`weight` * T^(x) beside x: T^ is the mean tf-idf vector of the documents of the k auxiliary images nearest to x.

    Nearest by Euclidean distance of the image view, exactly, through FAISS. The model carries the auxiliary images
    `gallery` (n, D) float16 and their `texts` (n, d) sparse, so that it can embed images it has never seen.
    """

    kind: ClassVar[str] = "neighbours"
    keep = True

    def __init__(self, gallery: np.ndarray, texts: sparse.csr_array, neighbours: int, weight: float = 1.0) -> None:
        self.gallery = gallery
        self.texts = texts
        self.neighbours = min(neighbours, len(gallery))
        self.weight = weight

    @classmethod
    def build(cls, blocks: Iterable[ViewBlock], neighbours: int) -> "NeighbourText":
        """The feature map whose gallery is the images of `blocks`; several documents of one image are added up."""
        galleries, texts = [], []
        for block in blocks:
            galleries.append(block.x.astype(np.float16))
            texts.append(sum_by_owner(block.y, block.owners, len(block.x)))
        return cls(np.concatenate(galleries), sparse.vstack(texts, format="csr"), neighbours)

    def weighted(self, weight: float) -> "NeighbourText":
        """The same with another weight."""
        return NeighbourText(self.gallery, self.texts, self.neighbours, weight)

    @property
    def dim(self) -> int:
        return self.texts.shape[1]

    def __call__(self, rows: Rows) -> np.ndarray:
        import faiss

        _, nearest = faiss.knn(np.ascontiguousarray(rows, np.float32), self.gallery.astype(np.float32), self.neighbours)
        pointers = np.arange(0, nearest.size + 1, self.neighbours)
        weights = np.full(nearest.size, self.weight / self.neighbours, np.float32)
        mean = sparse.csr_array((weights, nearest.ravel(), pointers), shape=(len(nearest), len(self.gallery)))
        return (mean @ self.texts).toarray()

    def settings(self) -> dict[str, Any]:
        return {"neighbours": self.neighbours, "terms": self.texts.shape[1], "weight": float(self.weight)}

    def tensors(self) -> dict[str, np.ndarray]:
        texts = self.texts
        return {"gallery": self.gallery, "data": texts.data, "indices": texts.indices, "indptr": texts.indptr}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "NeighbourText":
        shape = (len(tensors["gallery"]), settings["terms"])
        texts = sparse.csr_array((tensors["data"], tensors["indices"], tensors["indptr"]), shape=shape)
        return cls(tensors["gallery"], texts, settings["neighbours"], settings["weight"])
