"""The tables of the papers as printed, a module a paper: what a reproduction is laid beside."""

from benchmarks.papers.printed import karpathy, kiros, niu, socher
from benchmarks.papers.printed.form import RANKING, PrintedTable

TABLES: tuple[PrintedTable, ...] = (*karpathy.TABLES, *kiros.TABLES, *niu.TABLES, *socher.TABLES)


def ranking_tables(collection: str | None) -> list[PrintedTable]:
    """The tables of image-sentence ranking that are printed of a collection."""
    return [one for one in TABLES if one.collection == collection and one.columns == RANKING]
