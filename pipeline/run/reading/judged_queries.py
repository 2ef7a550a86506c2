"""Answers judged queries from an index, and matches the names in the judgements to the photos of the index."""

import logging
from collections.abc import Mapping
from functools import partial

import numpy as np

from pipeline.errors import InputError
from pipeline.foreign.image_names import find_stored
from pipeline.foreign.trec import Qrels
from pipeline.index.search import Searcher
from pipeline.metrics.judged import measure_queries
from pipeline.printable import printable
from pipeline.storage.index_changes import photos_of
from pipeline.storage.stored_index import StoredIndex

DEPTH = 1000
"""Number of results for each query that are measured, as in the tracks of TREC."""
QUERIES_AT_ONCE = 64
"""Number of queries that are answered together."""
log = logging.getLogger(__name__)


def measure_index(
    index: StoredIndex, topics: Mapping[str, str], qrels: Qrels, match_text: bool
) -> dict[str, np.ndarray]:
    """Measure the results of an index for some queries. Returns measure -> values (q,), in the order of `topics`.

    `topics` maps the id of each query to its text, and `qrels` has judgements for all of them. `match_text` says
    whether the words of a query are also searched as text. A judged photo that is not in the index counts as not
    found, and a query that the index cannot answer has no results. Both cause a warning.

    Raises InputError if the index has none of the judged photos, or if a photo has two grades for a query under
    different names. Raises UsageError if ir-measures is not installed.
    """
    judged = _by_photo(index, {query: qrels[query] for query in topics})
    searcher = Searcher(index)
    rankings: dict[str, list[str]] = {}
    errors: dict[str, str] = {}
    queries = list(topics)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        part = queries[start : start + QUERIES_AT_ONCE]
        answers = searcher.batch([topics[query] for query in part], DEPTH, None, match_text)
        for query, answer in zip(part, answers, strict=True):
            rankings[query] = [f"id:{hit.row['image_id']}" for hit in answer]
            if answer.error:
                errors[query] = answer.error
    if errors:
        query, error = next(iter(errors.items()))
        log.warning(
            "The query %s counts as 0, because %s cannot answer it (queries of this kind: %d): %s",
            printable(query), index.folder, len(errors), printable(error),
        )  # fmt: skip
    return measure_queries(judged, rankings)


def _by_photo(index: StoredIndex, qrels: Qrels) -> Qrels:
    """Return the judgements with the ids of the photos in place of their names. Unknown names get numbers."""
    names = list(dict.fromkeys(name for grades in qrels.values() for name in grades))
    found, reasons = find_stored(names, partial(photos_of, index))
    keys = {name: f"id:{photos[0].image_id}" for name, photos in found.items() if len(photos) == 1}
    if unknown := [name for name in names if name not in keys]:
        keys |= {name: f"unknown {number}" for number, name in enumerate(unknown)}
        example = f"{unknown[0]!r}{reasons.get(unknown[0]) or ' is not the name of one photo'}"
        if len(unknown) == len(names):
            raise InputError(
                f"{index.folder} has none of the {len(names)} judged photos: {example}. Write the names of the photos"
                " as `jointspace search` prints them, or their ids, such as id:12."
            )
        log.warning(
            "%s: judged photos that are unknown, and count as not found: %d of %d, such as %s",
            index.folder, len(unknown), len(names), printable(example),
        )  # fmt: skip
    judged: Qrels = {}
    for query, grades in qrels.items():
        of_query = judged.setdefault(query, {})
        for name, grade in grades.items():
            if of_query.setdefault(keys[name], grade) != grade:
                raise InputError(
                    f"The photo {name!r} has two grades for the query {query!r}, under different names. Keep one."
                )
    return judged
