"""The tables of the papers as printed, a module a paper: what a reproduction is laid beside."""

from collections.abc import Mapping

from pipeline.papers.printed import karpathy, kiros, niu, socher
from pipeline.papers.printed.form import RANKING, PrintedTable

TABLES: Mapping[str, tuple[PrintedTable, ...]] = {
    "karpathy": karpathy.TABLES, "kiros": kiros.TABLES, "niu": niu.TABLES, "socher": socher.TABLES,
}  # fmt: skip
"""Paper, as its configuration is named -> its tables."""
ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "karpathy": {
        "Table 4, words of large and small magnitude": (
            "it lists words; the report lists those of a model of words and regions"
        ),
    },
}
"""Printed tables that hold no numbers to be compared: paper -> title -> what there is in their place."""


def every_table() -> list[PrintedTable]:
    """Those of all papers."""
    return [table for tables in TABLES.values() for table in tables]


def ranking_tables(collection: str | None) -> list[PrintedTable]:
    """The tables of image-sentence ranking that are printed of a collection."""
    return [one for one in every_table() if one.collection == collection and one.columns == RANKING]
