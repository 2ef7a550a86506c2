"""Sparse tf-idf shards, and reading the texts of a split."""

from pathlib import Path

import numpy as np
from scipy import sparse

from pipeline.storage.shards import TFIDF, Shard, write_shard


def write_tfidf(
    path: Path,
    matrix: sparse.csr_array,
    sentence_id: np.ndarray,
    image_id: np.ndarray,
    *,
    fingerprint: str,
    inputs: dict,
    documents: str | None = None,
) -> None:
    """Publish sentence vectors (m, d) with the id of each sentence and of its image, both (m,).

    Of weak texts, `documents` is their name in the configuration.
    """
    arrays = {
        "data": matrix.data,
        "indices": matrix.indices,
        "indptr": matrix.indptr.astype(np.int64),
        "sentence_id": sentence_id,
        "image_id": image_id,
    }
    details = {"dim": matrix.shape[1], "inputs": inputs, **({"documents": documents} if documents else {})}
    write_shard(path, TFIDF, arrays, rows=matrix.shape[0], fingerprint=fingerprint, details=details)


class TfidfShard(Shard):
    """`matrix` (m, d) sparse, `sentence_id` (m,), `image_id` (m,), and the `vocabulary`'s fingerprint."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, TFIDF)
        parts = (self["data"], self["indices"], self["indptr"])
        self.matrix = sparse.csr_array(parts, shape=(self.rows, self.details["dim"]))
        self.sentence_id = self["sentence_id"]
        self.image_id = self["image_id"]
        self.vocabulary: str = self.details["inputs"]["vocabulary"]
