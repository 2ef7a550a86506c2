"""The tables of the papers as printed, a module a paper: what a reproduction is laid beside."""

from collections.abc import Mapping

from pipeline.papers.printed import karpathy, kiros, niu, socher
from pipeline.papers.printed.form import RANKING, PrintedTable

TABLES: tuple[PrintedTable, ...] = (*karpathy.TABLES, *kiros.TABLES, *niu.TABLES, *socher.TABLES)

ELSEWHERE: Mapping[tuple[str, str], str] = {
    ("Karpathy and Fei-Fei", "Table 4, words of large and small magnitude"): (
        "it lists words; the report lists those of a model of words and regions"
    ),
}
"""Printed tables that hold no numbers to be compared: (paper, title) -> what there is in their place."""


def ranking_tables(collection: str | None) -> list[PrintedTable]:
    """The tables of image-sentence ranking that are printed of a collection."""
    return [one for one in TABLES if one.collection == collection and one.columns == RANKING]
