"""Sentences as sparse tf-idf vectors over a vocabulary."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from scipy import sparse

from pipeline.text.tokens import make_analyzer
from pipeline.text.vocabulary import Vocabulary


def encode(texts: Iterable[str], vocabulary: Vocabulary) -> sparse.csr_array:
    """(n_texts, n_terms) float32: term count times idf, with rows of unit length if `vocabulary.normalise`.

    The row of a text without known terms is zero.
    """
    analyze, index = make_analyzer(vocabulary.settings), vocabulary.index
    found = [[index[term] for term in analyze(text) if term in index] for text in texts]
    columns = np.fromiter(chain.from_iterable(found), np.int32)
    indptr = np.cumsum([0, *map(len, found)])
    shape = (len(found), len(vocabulary.terms))
    matrix = sparse.csr_array((np.ones(len(columns), np.float32), columns, indptr), shape)
    matrix.sum_duplicates()
    matrix.data *= np.asarray(vocabulary.idf, np.float32)[matrix.indices]
    return unit_rows(matrix) if vocabulary.normalise else matrix


def unit_rows(matrix: sparse.csr_array) -> sparse.csr_array:
    """`matrix` with every nonzero row scaled to unit length."""
    lengths = np.sqrt(matrix.multiply(matrix).sum(axis=1))
    scale = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    data = matrix.data * np.repeat(scale, np.diff(matrix.indptr)).astype(np.float32)
    return sparse.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def join_fields(documents: Iterable[Mapping[str, str | None]], fields: Sequence[str]) -> list[str]:
    """One text per document: its `fields` (title, tags, description), without missing ones."""
    return [" . ".join(filter(None, (document[field] for field in fields))) for document in documents]
