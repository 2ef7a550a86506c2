"""The tables of Gong et al. 2014 with what the study measured, in the form of `pipeline.papers.page`."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.metrics.paired import Columns, Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.joint_model import read_setting
from pipeline.models.linear.study import StudyCell, draw_share
from pipeline.models.linear.tuning import choices_at_edges
from pipeline.papers import page
from pipeline.papers.gong import OURS, SUPERVISED, GongSetting, PaperRow, Table
from pipeline.papers.reproduction import Standing, verdict

if TYPE_CHECKING:
    from pydantic import JsonValue

COLUMNS: Columns = (("image_to_sentence", "recall@10"),)
Draws = Sequence[Mapping[str, Any]]
"""What `Study.measure` gave for a cell, one for each draw."""
Measured = Callable[[StudyCell], Draws]
INTRODUCTION = """\
Recall@10 in percent of image-to-sentence retrieval on test, first-sentence protocol: the mean over the draws of the
target set, ± their standard deviation where there are several. Image view: {encoders}. Text view: {text}.

Rows of the paper's names have its settings, whatever the configuration says; ridges, which it does not name, are chosen
on dev in each draw, as is all else of rows that are ours. Printed are Flickr30K, other sizes and features: to be
compared in their order. Intervals count the images of test and the draws; of one draw, images alone."""


def render(tables: Sequence[page.Result], heading: str, setting: GongSetting) -> str:
    """The measured tables as one Markdown document."""
    introduction = INTRODUCTION.format(text=setting.text, encoders=", ".join(setting.encoders))
    return "\n\n".join([f"# {heading}", introduction, *map(page.render, tables)]) + "\n"


def measure_table(table: Table, draws: Measured, bootstrap: Bootstrap, folds: int) -> Mapping[str, Any]:
    """A table with the recalls of every draw, what dev chose, and the orders; `draws` gives the measurements of a cell,
    of a training set in `folds`."""
    notes = _edges(table, draws)
    notes += [note for row in table.rows if row.label == SUPERVISED + OURS for note in _eigenvalues(row, draws)]
    orders = []
    for above, below in table.orders if bootstrap.resamples else ():
        found = _compare(table, above, below, draws, bootstrap, folds)
        orders.append({"above": above, "below": below, "systems": None, "found": found})
    rows = [_row(row, draws) for row in table.rows]
    heads = {"columns": table.columns, "printed_columns": table.printed_columns, "judged": table.columns}
    return page.table("Gong et al.", table.title, rows=rows, orders=orders, notes=notes, **heads)


def measure_time(table: Table, draws: Measured, total: float) -> Mapping[str, Any]:
    """What the methods of Table 4 cost, as the end of section 3 says it: processor seconds of the first draw, the grid
    that dev chooses from included. `total` are those of the whole study."""
    rows = [page.row(row.label, [[draws(cell)[0]["seconds"]] for cell in row.cells]) for row in table.rows]
    title = "Section 3, time. Processor seconds of a fit, with all trials on dev"
    notes = [TIME.format(total=total)]
    return page.table("Gong et al.", title, columns=table.columns, printed_columns=[], rows=rows, notes=notes)


TIME = (
    "Printed, of four cores of 2014: CCA takes 5 minutes for 5,000 images and 15 for a million, one epoch of Wsabie 15"
    " minutes for 5,000. Wsabie's first column has the choice of rate and alpha. All of the study:"
    " {total:,.0f} processor seconds."
)


def _row(row: PaperRow, draws: Measured) -> Mapping[str, Any]:
    recalls = [[round(draw["image_to_sentence"]["recall@10"], 3) for draw in draws(cell)] for cell in row.cells]
    chosen = [[_chosen(draw["chosen"]) for draw in draws(cell)] for cell in row.cells]
    return page.row(row.label, recalls, row.printed, chosen=chosen)


def _chosen(trial: "Mapping[str, JsonValue]") -> str:
    """Describe the choices of dev in short."""
    choices = {"image_ridge": trial["image_ridge"], "text_ridge": trial["text_ridge"]}
    choices |= read_setting(trial, "transfer", dict)
    return ", ".join(f"{key} {value:g}" for key, value in choices.items() if isinstance(value, int | float) and value)


def _edges(table: Table, draws: Measured) -> list[str]:
    """Which rows have a ridge that lies at the end of its grid."""
    edges = [
        f"{row.label}, {column} ({', '.join(sorted(ridges))})"
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if (ridges := {key for draw in draws(cell) for key in choices_at_edges(draw["trials"], draw["chosen"])})
    ]
    return [f"Chosen at the end of the grid, beyond which values may be better: {'; '.join(edges)}."] if edges else []


def _compare(
    table: Table, above: str, below: str, draws: Measured, bootstrap: Bootstrap, folds: int
) -> list[dict[str, Any]]:
    """By how much a row is above another in every column, on the same images and draws. Where the paper prints the
    contrary in a column, that is what is judged."""
    upper, lower = table.row(above), table.row(below)
    differences = []
    for column, cells in enumerate(zip(upper.cells, lower.cells, strict=True)):
        sets = max(cell.target_folds for cell in cells) or cells[0].auxiliary_folds or 0
        count = max(len(draws(cell)) for cell in cells)
        ours, theirs = (_resized(draws(cell), count) for cell in cells)
        compared = compare_draws(ours, theirs, bootstrap, draw_share(sets, count, folds))
        upper_print, lower_print = table.printed_beside(upper, column), table.printed_beside(lower, column)
        printed = None if upper_print is None or lower_print is None else round(upper_print - lower_print, 2)
        upper_standing = _standing(table, upper, column, upper_print, draws)
        lower_standing = _standing(table, lower, column, lower_print, draws)
        low, high = compared["ci95"]
        if printed is not None and printed < 0:
            judged = verdict((-high, -low), lower_standing, upper_standing)
        else:
            judged = verdict((low, high), upper_standing, lower_standing)
        judged = judged if count > 1 else f"one set: {judged}"
        differences.append({**compared, "printed": printed, "verdict": judged})
    return differences


def _standing(table: Table, row: PaperRow, column: int, printed: float | None, draws: Measured) -> Standing:
    peers = {
        peer.label: _mean(draws(peer.cells[column]))
        for peer in table.rows
        if peer.label.endswith(OURS) and peer.kind == row.kind
    }
    reached = _mean(draws(row.cells[column]))
    return Standing(row.label, reached, None if printed is None else (reached, printed), peers)


def _resized(draws: Draws, count: int) -> list[Draw]:
    """The draws as compare_draws has them; what was measured on one set is compared with every draw."""
    ranks = np.resize(np.array([draw["ranks"] for draw in draws]), (count, len(draws[0]["ranks"])))
    images = {"image_to_sentence": np.arange(ranks.shape[1])}
    return [draw_of_ranks({"image_to_sentence": row}, images, COLUMNS) for row in ranks]


def _mean(draws: Draws) -> float:
    return float(np.mean([draw["image_to_sentence"]["recall@10"] for draw in draws]))


def _eigenvalues(row: PaperRow, draws: Measured) -> list[str]:
    """The best sums of recalls on dev by the form of the eigenvalues and their power, for the smallest target set."""
    best: dict[tuple[str, float], list[float]] = {}
    for draw in draws(row.cells[0]):
        sums: dict[tuple[str, float], float] = {}
        for trial in draw["trials"]:
            key = trial["eigenvalues"], trial["eigenvalue_power"]
            sums[key] = max(sums.get(key, 0.0), trial["recall_sum"])
        for key, value in sums.items():
            best.setdefault(key, []).append(value)
    means = (f"{np.mean(values):.1f} by {kind}, t = {power:g}" for (kind, power), values in best.items())
    return [f"Normalized CCA of the smallest target set, sum of recalls on dev by lambda and t: {'; '.join(means)}."]
