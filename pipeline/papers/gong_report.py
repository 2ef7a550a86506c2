"""The measured tables of Gong et al. 2014 beside the printed ones, as Markdown."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.metrics.paired import paired_difference
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.linear.study import StudyCell
from pipeline.models.linear.tuning import ridges_at_edges
from pipeline.papers.gong import FULLY, OUR_SAE, OURS, GongSetting, PaperRow, Table

CUTOFF = 10
DIRECTION = "image_to_sentence"
Draws = Sequence[Mapping[str, Any]]
"""What `Study.measure` gave for a cell, one for each draw."""
Measured = Callable[[StudyCell], Draws]


def render(tables: Sequence[Table], draws: Measured, bootstrap: Bootstrap, heading: str, setting: GongSetting) -> str:
    """All `tables` as one Markdown document; `draws` gives the measurements of a cell."""
    parts = [f"# {heading}", INTRODUCTION.format(text=setting.text, encoders=", ".join(setting.encoders))]
    for table in tables:
        parts += [_table(table, draws), _orders(table, draws, bootstrap)]
        if table.number == "5":
            parts += [_eigenvalues(table.row(FULLY + OURS), draws), _choices(table.row(OUR_SAE), draws)]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
Recall@10 in percent of image-to-sentence retrieval on test, first-sentence protocol: the mean over the draws of the
target set, ± their standard deviation where there are several. Image view: {encoders}. Text view: {text}; the paper's
is lemmatised single words without stop words.

Rows of the paper's names have its settings, whatever the configuration says: lambda = 1 + rho (as in its published
code), t = 4, c = 96, c1 = 128; its random map R ~ Normal(0, sigma^2), b ~ Unif[0, 1]. Ridges, which it does not name,
are chosen on dev in each draw; so are lambda, t and c of rows that are ours. Wsabie's rate and alpha are chosen in the
first draw of the smallest target set. *Printed* are the numbers of Gong et al. on Flickr30K, with other images, sizes
and features: to be compared in their order, not in their height."""


def _table(table: Table, draws: Measured) -> str:
    printed = [f"*printed: {name}*" for name in table.printed_columns]
    lines = [f"## {_name(table)}. {table.title}", "", *_head("", *table.columns, *printed)]
    best = [max(_mean(draws(row.cells[i])) for row in table.rows) for i in range(len(table.columns))]
    for row in table.rows:
        ours = [_number(draws(cell), best[i]) for i, cell in enumerate(row.cells)]
        theirs = [f"{number:.2f}" for number in row.printed] or ["" for _ in printed]
        lines.append(_line(row.label, *ours, *theirs))
    edges = [
        f"{row.label}, {column} ({', '.join(sorted(ridges))})"
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if (ridges := {one for draw in draws(cell) for one in ridges_at_edges(draw["trials"], draw["chosen"])})
    ]
    if edges:
        lines += ["", f"Chosen at the end of the grid, beyond which values may be better: {'; '.join(edges)}."]
    return "\n".join(lines)


def _orders(table: Table, draws: Measured, bootstrap: Bootstrap) -> str:
    """Whether a row stands above another here, on the same images and draws."""
    lines = [
        f"## {_name(table)}, orders", "",
        "Points of recall@10 by which a row is above another: printed (least to most), and here with the 95% interval"
        " of a paired bootstrap over images and draws. An order holds, or not, where the interval does not contain 0.",
        "", *_head("row", "above", "printed", *table.columns),
    ]  # fmt: skip
    for one, other in ((table.row(one), table.row(other)) for one, other in table.orders):
        gaps = [a - b for a, b in zip(one.printed, other.printed, strict=False)]
        printed = f"{min(gaps):+.2f} to {max(gaps):+.2f}" if gaps else ""
        lines.append(_line(one.label, other.label, printed, *_gains(one, other, draws, bootstrap)))
    return "\n".join(lines)


def _gains(row: PaperRow, baseline: PaperRow, draws: Measured, bootstrap: Bootstrap) -> Iterator[str]:
    for ours, theirs in zip(row.cells, baseline.cells, strict=True):
        one, other = (np.array([draw["ranks"] for draw in draws(cell)]) for cell in (ours, theirs))
        if len(one) != len(other):  # the weak text alone is one set, which every draw is compared with
            count = max(len(one), len(other))
            one, other = (np.resize(ranks, (count, ranks.shape[1])) for ranks in (one, other))
        found = paired_difference(one, other, CUTOFF, bootstrap)
        low, high = found["ci95"]
        verdict = "holds" if low > 0 else "does not hold" if high < 0 else "open"
        yield f"{found['difference']:+.1f} ({low:+.1f} to {high:+.1f}): {verdict}"


def _eigenvalues(row: PaperRow, draws: Measured) -> str:
    """The best sums of recalls on dev by the form of the eigenvalues and their power, for the smallest target set."""
    best: dict[tuple[str, float], list[float]] = {}
    for draw in draws(row.cells[0]):
        found: dict[tuple[str, float], float] = {}
        for trial in draw["trials"]:
            key = trial["eigenvalues"], trial["eigenvalue_power"]
            found[key] = max(found.get(key, 0.0), trial["recall_sum"])
        for key, value in found.items():
            best.setdefault(key, []).append(value)
    kinds, powers = (list(dict.fromkeys(key[i] for key in best)) for i in (0, 1))
    lines = ["Normalized CCA of the smallest target set: sum of recalls on dev by lambda and t, mean of the draws.", ""]
    lines += _head("lambda", *(f"t = {power:g}" for power in powers))
    lines += [_line(kind, *(f"{np.mean(best[kind, power]):.1f}" for power in powers)) for kind in kinds]
    return "\n".join(lines)


def _choices(row: PaperRow, draws: Measured) -> str:
    """What dev chose for a row of ours in every draw."""
    lines = [f"Chosen on dev for {row.label}:", ""]
    for cell in row.cells:
        chosen = [draw["chosen"]["transfer"] for draw in draws(cell)]
        pairs = (f"second_beta {one['second_beta']:g} and weight {one['weight']:g}" for one in chosen)
        lines.append(f"- target set of {cell.target_folds} folds: {', '.join(pairs)}")
    return "\n".join(lines)


def _recalls(draws: Draws) -> list[float]:
    return [draw[DIRECTION][f"recall@{CUTOFF}"] for draw in draws]


def _mean(draws: Draws) -> float:
    return float(np.mean(_recalls(draws)))


def _number(draws: Draws, best: float) -> str:
    recalls = _recalls(draws)
    mean = f"{np.mean(recalls):.1f}"
    mean = f"**{mean}**" if np.mean(recalls) == best else mean
    return f"{mean} ± {np.std(recalls, ddof=1):.1f}" if len(recalls) > 1 else mean


def _name(table: Table) -> str:
    return f"Table {table.number}" if table.number.isdigit() else f"Section {table.number}"


def _head(*cells: str) -> list[str]:
    return [_line(*cells), _line(*["---"] * len(cells))]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
