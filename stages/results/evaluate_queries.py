"""`evaluate-queries`: measures indexes by queries whose relevant photos people have judged."""

from pathlib import Path

import click

from pipeline.errors import InputError
from pipeline.printable import printable, printable_json
from stages.commands import FILE, FOLDER, json_option

RESAMPLES = 1000
"""Number of resamples of the queries for the intervals."""


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
    compares all indexes with the first one. Needs the extra `judged`.
    """
    import numpy as np

    from pipeline.foreign.trec import read_qrels, read_topics
    from pipeline.metrics.judged import mean_difference
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.run.reading.judged_queries import measure_index
    from pipeline.storage.stored_index import open_index

    topics, qrels = read_topics(queries_path), read_qrels(qrels_path)
    judged = {query: text for query, text in topics.items() if query in qrels}
    if not judged:
        raise InputError(f"No query of {queries_path} is in {qrels_path}. Use the same ids of queries in both files.")
    bootstrap = Bootstrap(RESAMPLES, 0)
    first: dict[str, np.ndarray] = {}
    results = []
    for folder in indexes:
        values = measure_index(open_index(folder), judged, qrels, match_text)
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
    click.echo(f"Queries with judgements: {len(judged):,} of {len(topics):,}. Means over them, with 95% intervals:")
    for result in results:
        click.echo(printable(result["index"]))
        for name, value in result["measures"].items():
            line = f"    {name:8} {value['mean']:.3f} ({value['ci95'][0]:.3f} to {value['ci95'][1]:.3f})"
            if minus := value["minus_first"]:
                low, high = minus["ci95"]
                line += f"   {minus['difference']:+.3f} ({low:+.3f} to {high:+.3f}) compared with the first index"
            click.echo(line)
