"""Measures of rankings by judged queries, such as nDCG@10, computed by ir-measures, and their paired comparison."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from pipeline.errors import UsageError
from pipeline.metrics.paired import Difference, Draw, compare_draws
from pipeline.metrics.retrieval import Bootstrap


class Measured(TypedDict):
    """The mean of a measure over the queries, and its 95% interval [low, high].

    `minus` is the difference from the first system, or None for the first system itself.
    """

    mean: float
    ci95: list[float]
    minus: Difference | None


def measure_queries(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]], measures: Sequence[str]
) -> dict[str, np.ndarray]:
    """Measure the ranking of each query of `qrels`. Returns measure -> values (q,), in the order of `qrels`.

    A measure is written as ir-measures writes it: the mean of AP over the queries is MAP, and R@10 is recall@10.
    `qrels` maps a query and a photo to a grade, and `rankings` has the photos that were found for a query, the best
    first. By the rules of TREC, a photo is relevant if its grade is at least 1, a photo without a grade is not
    relevant, and nDCG has the grade as its gain and no gain for negative grades (Järvelin and Kekäläinen 2002). A query
    without a ranking or without a relevant photo has the value 0.

    Raises UsageError if ir-measures is not installed or does not know a measure.
    """
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise UsageError(
            "Judged queries need ir-measures. Install it with `pip install 'jointspace[judged]'`."
        ) from error
    wanted = {}
    for name in measures:
        try:
            wanted[name] = ir_measures.parse_measure(name)
            wanted[name].validate_params()
        except (NameError, ValueError, AssertionError, SyntaxError, TypeError) as error:
            raise UsageError(
                f"ir-measures does not know the measure {name} ({error}). Measures are written as in nDCG@10, AP, R@100"
                " or AP(rel=2). Its documentation at https://ir-measur.es lists them."
            ) from error
    # The order is passed as scores without ties, because TREC would order photos with equal scores by their names.
    scores = {query: {photo: float(-place) for place, photo in enumerate(rankings.get(query, ()))} for query in qrels}
    found = ir_measures.iter_calc(wanted.values(), {query: dict(grades) for query, grades in qrels.items()}, scores)
    values = {(metric.measure, metric.query_id): float(metric.value) for metric in found}
    return {name: np.array([values.get((measure, query), 0.0) for query in qrels]) for name, measure in wanted.items()}


def compare_measured(systems: Sequence[Mapping[str, np.ndarray]], bootstrap: Bootstrap) -> list[dict[str, Measured]]:
    """Compute the means of each system over the same queries, and their differences from the first system.

    A system has the values (q,) that `measure_queries` returns. The intervals come from a paired bootstrap over the
    queries (see pipeline.metrics.paired.compare_draws). Returns measure -> its mean, for each system.
    """
    zero = _draw(np.zeros_like(next(iter(systems[0].values()))))
    rows: list[dict[str, Measured]] = []
    for number, system in enumerate(systems):
        row: dict[str, Measured] = {}
        for name, values in system.items():
            alone = compare_draws([_draw(values)], [zero], bootstrap)
            minus = compare_draws([_draw(values)], [_draw(systems[0][name])], bootstrap) if number else None
            row[name] = {"mean": alone["difference"], "ci95": alone["ci95"], "minus": minus}
        rows.append(row)
    return rows


def _draw(values: np.ndarray) -> Draw:
    """Return the values (q,) of the queries as a Draw, whose units are the queries in place of images."""
    return Draw(np.arange(len(values)), lambda weights: float(weights @ values / weights.sum()))
