"""`evaluate-queries`: measures indexes by queries whose relevant photos people have judged."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError
from pipeline.printable import printable, printable_json
from stages.commands import FILE, FOLDER, json_option

if TYPE_CHECKING:
    import numpy as np

    from pipeline.foreign.trec import Qrels
    from pipeline.storage.stored_index import StoredIndex

log = logging.getLogger(__name__)
RESAMPLES = 1000
"""Number of resamples of the queries from which a 95% interval is computed."""
DEPTH = 1000
"""Number of results of each query that are measured, as in the tracks of TREC."""
QUERIES_AT_ONCE = 64
"""Number of queries that are answered together."""


@click.command("evaluate-queries")
@click.argument("indexes", metavar="INDEX...", type=FOLDER, nargs=-1, required=True)
@click.option("--queries", "queries_path", type=FILE, required=True, metavar="FILE", help="Lines: QUERY-ID TAB TEXT.")
@click.option(
    "--qrels", "qrels_path", type=FILE, required=True, metavar="FILE",
    help="Judgements in the format of TREC, with lines: QUERY-ID 0 PHOTO GRADE. PHOTO is a file name or an id.",
)  # fmt: skip
@click.option(
    "--match-text/--no-match-text", default=True, show_default=True,
    help="Find the words of the query in captions, file names and columns too, as `search` does.",
)  # fmt: skip
@json_option
def command(
    indexes: tuple[Path, ...],
    queries_path: Path,
    qrels_path: Path,
    match_text: bool,
    as_json: bool,
) -> None:
    """Measure indexes by queries with judged photos.

    A grade of at least 1 says that a photo is relevant to a query, and greater grades are better. The command searches
    each INDEX with each query. It prints the means of nDCG@10, MAP and recall over the queries with 95% intervals, and
    compares all indexes with the first INDEX. Needs the extra `judged`.
    """
    import numpy as np

    from pipeline.foreign.trec import read_qrels, read_topics
    from pipeline.metrics.judged import mean_difference
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.storage.stored_index import open_index

    topics = read_topics(queries_path)
    qrels = read_qrels(qrels_path)
    judged = {query: text for query, text in topics.items() if query in qrels}
    if not judged:
        raise InputError(f"No query of {queries_path} is in {qrels_path}. Use the same ids of queries in both files.")
    bootstrap = Bootstrap(RESAMPLES, 0)
    first: dict[str, np.ndarray] = {}
    results = []
    for folder in indexes:
        values = _measure_index(open_index(folder), judged, qrels, match_text)
        result = {
            "index": str(folder),
            "measures": {},
            "queries": {name: each.tolist() for name, each in values.items()},
        }
        for name, each in values.items():
            alone = mean_difference(each, np.zeros(len(each)), bootstrap)
            minus = mean_difference(each, first[name], bootstrap) if first else None
            result["measures"][name] = {"mean": alone["difference"], "ci95": alone["ci95"], "minus_first": minus}
        first = first or values
        results.append(result)
    if as_json:
        click.echo(printable_json({"queries": list(judged), "results": results}))
        return
    click.echo(
        f"{len(judged):,} of {len(topics):,} queries have judgements. The means over these queries, with 95%"
        " intervals, are:"
    )
    for result in results:
        click.echo(printable(result["index"]))
        for name, value in result["measures"].items():
            line = f"    {name:8} {value['mean']:.3f} ({value['ci95'][0]:.3f} to {value['ci95'][1]:.3f})"
            if minus := value["minus_first"]:
                low, high = minus["ci95"]
                line += f"   {minus['difference']:+.3f} ({low:+.3f} to {high:+.3f}) compared with the first index"
            click.echo(line)


def _measure_index(
    index: "StoredIndex", topics: Mapping[str, str], qrels: "Qrels", match_text: bool
) -> "dict[str, np.ndarray]":
    """Measure the results of an index for some queries. Returns measure -> values (q,), in the order of `topics`.

    `topics` maps the id of each query to its text, and `qrels` has judgements for all of these queries. `match_text`
    says whether the words of a query are also searched as text. A judged photo that is not in the index counts as not
    found, and a query that the index cannot answer has no results. Both cause a warning.

    Raises InputError if the index has none of the judged photos, or if a photo has two grades for a query under
    different names. Raises UsageError if ir-measures is not installed.
    """
    from pipeline.index.search import Searcher
    from pipeline.metrics.judged import measure_queries

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
            "The query %s counts as 0, because %s cannot answer it (number of such queries: %d): %s",
            printable(query), index.folder, len(errors), printable(error),
        )  # fmt: skip
    return measure_queries(judged, rankings)


def _by_photo(index: "StoredIndex", qrels: "Qrels") -> "Qrels":
    """Return the judgements with the ids of photos in the index, such as `id:12`, in place of their names. A name that
    does not mean exactly one photo of the index becomes `unknown N`.

    Raises InputError if no name means one photo, or if a photo has two grades for a query under different names.
    """
    from pipeline.foreign.image_names import find_stored
    from pipeline.storage.index_changes import photos_of

    names = list(dict.fromkeys(name for grades in qrels.values() for name in grades))
    found, reasons = find_stored(names, partial(photos_of, index))
    keys = {name: f"id:{photos[0].image_id}" for name, photos in found.items() if len(photos) == 1}
    if unknown := [name for name in names if name not in keys]:
        keys |= {name: f"unknown {number}" for number, name in enumerate(unknown)}
        example = f"{unknown[0]!r}{reasons.get(unknown[0]) or ' is not the name of one photo'}"
        if len(unknown) == len(names):
            raise InputError(
                f"{index.folder} has none of the {len(names)} judged photos. For example, {example}. Write the names of"
                " the photos as `jointspace search` prints them, or their ids, such as id:12."
            )
        log.warning(
            "%d of %d judged photos are treated as not found, because each of these names means no photo or several"
            " photos of %s. For example, %s. Correct these names.",
            len(unknown), len(names), index.folder, printable(example),
        )  # fmt: skip
    judged: Qrels = {}
    for query, grades in qrels.items():
        of_query = judged.setdefault(query, {})
        for name, grade in grades.items():
            if of_query.setdefault(keys[name], grade) != grade:
                raise InputError(
                    f"The photo {name!r} has two grades for the query {query!r}, under different names. Keep one of the"
                    " two lines in the file of judgements."
                )
    return judged
