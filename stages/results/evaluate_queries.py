"""`evaluate-queries`: measures indexes by queries whose relevant photos people have judged."""

from pathlib import Path

import click

from pipeline.printable import printable, printable_json
from stages.commands import FILE, FOLDER, json_option, verify_option

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
    "-m", "--measure", "measures", multiple=True, default=("nDCG@10", "AP", "R@10"), show_default=True,
    metavar="MEASURE",
    help="Measure of ir-measures, such as R@100. Repeat it for several measures.",
)  # fmt: skip
@click.option(
    "--match-text/--no-match-text", default=True, show_default=True,
    help="Find the words of the query in captions, file names and columns too, as `search` does.",
)  # fmt: skip
@json_option
@verify_option
def command(
    indexes: tuple[Path, ...],
    queries_path: Path,
    qrels_path: Path,
    measures: tuple[str, ...],
    match_text: bool,
    as_json: bool,
    verify: bool,
) -> None:
    """Measure indexes by queries with judged photos: nDCG@10, MAP and recall.

    A grade of at least 1 says that a photo is relevant to a query, and greater grades are better. The command searches
    each INDEX with each query. It prints the mean of each measure over the queries with its 95% interval, and compares
    all indexes with the first one. Needs the extra `judged`.
    """
    from pipeline.foreign.trec import read_qrels, read_topics
    from pipeline.metrics.judged import compare_measured
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.run.reading.judged_queries import measure_index, select_judged
    from pipeline.storage.stored_index import open_index

    topics, qrels = read_topics(queries_path), read_qrels(qrels_path)
    judged = select_judged(topics, qrels, queries_path, qrels_path)
    topics = {query: topics[query] for query in judged}
    opened = [open_index(folder, skip_verified=not verify) for folder in indexes]
    values = [measure_index(index, topics, qrels, measures, match_text) for index in opened]
    rows = compare_measured(values, Bootstrap(RESAMPLES, 0))
    if as_json:
        results = [
            {"index": str(folder), "measures": row, "queries": {name: each.tolist() for name, each in system.items()}}
            for folder, row, system in zip(indexes, rows, values, strict=True)
        ]
        click.echo(printable_json({"queries": judged, "results": results}))
        return
    count = f"{len(judged):,} judged {'query' if len(judged) == 1 else 'queries'}"
    click.echo(f"{count}: means, with 95% intervals over the queries")
    for folder, row in zip(indexes, rows, strict=True):
        click.echo(printable(folder))
        for name, value in row.items():
            line = f"    {name:10} {value['mean']:.3f} ({value['ci95'][0]:.3f} to {value['ci95'][1]:.3f})"
            if minus := value["minus"]:
                low, high = minus["ci95"]
                line += f"   {minus['difference']:+.3f} ({low:+.3f} to {high:+.3f}) compared with the first index"
            click.echo(line)
