"""The measured tables of Gong et al. 2014 beside the printed ones, as Markdown."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.papers.gong import PaperRow, Table
from pipeline.metrics.retrieval import Bootstrap, paired_difference
from pipeline.models.linear.study import StudyCell

CUTOFF = 10
DIRECTION = "image_to_sentence"
Draws = Sequence[Mapping[str, Any]]
"""What `Study.measure` gave for a cell, one for each draw."""


def render(tables: Sequence[Table], draws: Callable[[StudyCell], Draws], bootstrap: Bootstrap, heading: str) -> str:
    """All `tables` as one Markdown document; `draws` gives the measurements of a cell."""
    parts = [f"# {heading}", INTRODUCTION]
    parts += [_table(table, draws) for table in tables]
    parts += [_differences(table, draws, bootstrap) for table in tables if table.number in ("5", "noise")]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
Recall@10 in percent of image-to-sentence retrieval on test, first-sentence protocol: the mean over the draws of the
target set, ± their standard deviation where there are several. Ridges, dimension and eigenvalue power, and every other
choice, are made on dev in each draw (Wsabie's learning rate and alpha in the first). *Printed* are the numbers of Gong
et al. on Flickr30K, with other images, sizes and features: to be compared in their order, not in their height."""


def _table(table: Table, draws: Callable[[StudyCell], Draws]) -> str:
    printed = [f"*printed: {name}*" for name in table.printed_columns]
    head = ["", *table.columns, *printed]
    lines = [f"## Table {table.number}. {table.title}", "", _line(head), _line(["---"] * len(head))]
    best = [max(_mean(draws(row.cells[i])) for row in table.rows) for i in range(len(table.columns))]
    for row in table.rows:
        ours = [_number(draws(cell), best[i]) for i, cell in enumerate(row.cells)]
        theirs = [f"{number:.2f}" for number in row.printed] or ["" for _ in printed]
        lines.append(_line([row.label, *ours, *theirs]))
    return "\n".join(lines)


def _differences(table: Table, draws: Callable[[StudyCell], Draws], bootstrap: Bootstrap) -> str:
    """Of every row of `table` the gain over its first row, column by column, on the same images and draws."""
    head = ["gain over " + table.rows[0].label, *table.columns]
    title = (
        "Paired bootstrap over images and draws: points of recall@10, 95% interval, share of resamples without a gain"
    )
    lines = [f"## Table {table.number}, differences", "", title + ".", "", _line(head), _line(["---"] * len(head))]
    for row in table.rows[1:]:
        lines.append(_line([row.label, *_gains(row, table.rows[0], draws, bootstrap)]))
    return "\n".join(lines)


def _gains(row: PaperRow, baseline: PaperRow, draws: Callable[[StudyCell], Draws], bootstrap: Bootstrap) -> list[str]:
    gains = []
    for ours, theirs in zip(row.cells, baseline.cells, strict=True):
        one, other = (np.array([draw["ranks"] for draw in draws(cell)]) for cell in (ours, theirs))
        count = min(len(one), len(other))
        found = paired_difference(one[:count], other[:count], CUTOFF, bootstrap)
        low, high = found["ci95"]
        gains.append(f"{found['difference']:+.1f} ({low:+.1f} to {high:+.1f}; {found['p']:.3f})")
    return gains


def _recalls(draws: Draws) -> list[float]:
    return [draw[DIRECTION][f"recall@{CUTOFF}"] for draw in draws]


def _mean(draws: Draws) -> float:
    return float(np.mean(_recalls(draws)))


def _number(draws: Draws, best: float) -> str:
    recalls = _recalls(draws)
    mean = f"{np.mean(recalls):.1f}"
    mean = f"**{mean}**" if np.mean(recalls) == best else mean
    return f"{mean} ± {np.std(recalls, ddof=1):.1f}" if len(recalls) > 1 else mean


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
