"""Measures of the rankings of photos for judged queries, computed by ir-measures, and differences of the mean measures,
with intervals over the queries."""

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.errors import UsageError
from pipeline.metrics.paired import Difference, Draw, compare_draws
from pipeline.metrics.retrieval import Bootstrap

MEASURES = ("nDCG@10", "AP", "R@10")
"""The names of the measures in ir-measures. The mean of AP over the queries is MAP, and R@10 is recall@10."""


def measure_queries(
    qrels: Mapping[str, Mapping[str, int]], rankings: Mapping[str, Sequence[str]]
) -> dict[str, np.ndarray]:
    """Measure the ranking of photos for each of the q queries in `qrels`. Return measure -> values (q,), in the order
    of `qrels`. The measures are MEASURES.

    `qrels` maps a query to its judged photos, photo -> grade. `rankings` maps a query to the photos that were found,
    the best first. By the rules of TREC, a photo is relevant if its grade is at least 1, and a photo without a grade is
    not relevant. The gain of a photo in nDCG is its grade, or 0 if the grade is negative (Järvelin and Kekäläinen
    2002). All values of a query without a ranking or without a relevant photo are 0. Raises UsageError if ir-measures
    is not installed.
    """
    try:
        import ir_measures
    except ModuleNotFoundError as error:
        raise UsageError(
            "Judged queries need ir-measures. Install it with `pip install 'jointspace[judged]'`."
        ) from error
    measures = {name: ir_measures.parse_measure(name) for name in MEASURES}
    # The order is passed as scores without ties, because TREC would order photos with equal scores by their names.
    ranked = ({photo: float(-place) for place, photo in enumerate(rankings.get(query, ()))} for query in qrels)
    # The ids of queries are replaced by numbers, because TREC's program cuts an id at a character of value 0.
    scores = {str(number): ranking for number, ranking in enumerate(ranked)}
    grades = {str(number): dict(own) for number, own in enumerate(qrels.values())}
    found = ir_measures.iter_calc(measures.values(), grades, scores)
    values = {(metric.measure, metric.query_id): float(metric.value) for metric in found}
    return {name: np.array([values[measure, number] for number in scores]) for name, measure in measures.items()}


def mean_difference(values: np.ndarray, reference: np.ndarray, bootstrap: Bootstrap) -> Difference:
    """Compute the mean of `values` (q,) minus the mean of `reference` (q,), with the 95% interval of a paired bootstrap
    over the q queries. Entry i of both arrays belongs to query i."""
    queries = np.arange(len(values))
    own, other = (
        Draw(queries, lambda weights, each=each: float(weights @ each / weights.sum())) for each in (values, reference)
    )
    return compare_draws([own], [other], bootstrap)
