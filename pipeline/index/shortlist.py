"""Which items of several vectors are worth an exact score: every vector first stands for the mean of its inverted list.

The products of a query with these means, some hundreds or thousands, are looked up for each vector and added up as
the exact score would be. This is the centroid interaction of PLAID (Santhanam et al., 2022), with means in place of
centroids: FAISS makes those of inner products of unit length, and how long a vector is counts as much as where it
points. In the sum over the words of a sentence the errors of means even out. A word's best region stands out from its
list, so where images are found, the regions nearest to each word have their own products.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import faiss
import numpy as np


@dataclass(frozen=True)
class Shortlist:
    """For each word of a query `nearest` regions are looked up, where images are found; the `shortlist` items, images
    or sentences, that then seem best are scored exactly."""

    nearest: int
    shortlist: int

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> "Shortlist | None":
        """The one on an index's card; None where all items are scored."""
        return None if card["shortlist"] is None else cls(card["nearest"], card["shortlist"])


class Hits(NamedTuple):
    """The products of some vectors, `rows` (k,) ascending, with some of the query's, `asked` (k,)."""

    rows: np.ndarray
    asked: np.ndarray
    products: np.ndarray

    def write(self, products: np.ndarray, first: int) -> None:
        """Put them into `products` (n, q), which are of the vectors from `first` on."""
        own = slice(*np.searchsorted(self.rows, [first, first + len(products)]))
        products[self.rows[own] - first, self.asked[own]] = self.products[own]


def look_up(index: faiss.Index, query: np.ndarray, nearest: int) -> Hits:
    """The `nearest` vectors of `index` for each of `query` (q, c)."""
    products, rows = index.search(np.ascontiguousarray(query, np.float32), min(nearest, index.ntotal))
    asked, place = np.nonzero(rows >= 0)
    order = np.argsort(rows[asked, place], kind="stable")
    asked, place = asked[order], place[order]
    return Hits(rows[asked, place], asked, products[asked, place])


class ListMeans:
    """The `means` (l, c) of the lists of an inverted file of whole vectors (IVF,Flat), and the list of each vector,
    `lists` (n,), by its id; the ids are 0 to n - 1."""

    def __init__(self, index: faiss.IndexIVFFlat) -> None:
        self.means = np.zeros((index.nlist, index.d), np.float32)
        self.lists = np.zeros(index.ntotal, np.int32)
        for number, ids in ids_of_lists(index):
            codes = faiss.rev_swig_ptr(index.invlists.get_codes(number), len(ids) * index.code_size)
            self.means[number] = codes.view(np.float32).reshape(len(ids), index.d).mean(axis=0)
            self.lists[ids] = number


def ids_of_lists(index: faiss.IndexIVF) -> Iterator[tuple[int, np.ndarray]]:
    """The number of each list that is not empty, and its ids, which are the index's own: writing to them changes it."""
    for number in range(index.nlist):
        if size := index.invlists.list_size(number):
            yield number, faiss.rev_swig_ptr(index.invlists.get_ids(number), size)
