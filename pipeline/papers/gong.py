"""The tables of Gong et al. 2014, from gong.yaml: what was printed, and the cells that we measure for each row, by the
paper's settings or by ours; then the tables with what the study measured, in the form of `pipeline.papers.page`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from pipeline.config.loading import read_mapping
from pipeline.metrics.paired import Columns, Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.joint_model import read_setting
from pipeline.models.linear.study import StudyCell, draw_share
from pipeline.models.linear.tuning import choices_at_edges
from pipeline.papers import page
from pipeline.papers.printed import read_numbers, read_orders
from pipeline.papers.reproduction import Standing, verdict

SUPERVISED = "Fully Supervised Only"
"""The label of Table 5's first row."""
OURS = " (ours)"
"""The end of the label of a row by our settings."""


@dataclass(frozen=True)
class PaperRow:
    """A row: its label, the numbers printed in the paper (none where the row is ours), and a cell for each column."""

    label: str
    printed: Sequence[float | None]
    cells: tuple[StudyCell, ...]

    @property
    def kind(self) -> tuple[Any, ...]:
        """What a row by our settings has in common with that of the paper."""
        first = self.cells[0]
        return first.model, first.training, first.encoders, first.documents, first.terms


@dataclass(frozen=True)
class Table:
    """recall@10 of image-to-sentence retrieval: `columns` head our numbers, `printed_columns` the paper's. `orders` are
    pairs of rows, of which the first stands above the second in the paper, or is asked whether it does. Where our
    columns are not `sized` as the paper's are, each is laid beside the first of them."""

    title: str
    columns: Sequence[str]
    printed_columns: Sequence[str]
    rows: Sequence[PaperRow]
    orders: Sequence[tuple[str, str]]
    sized: bool = True

    def row(self, label: str) -> PaperRow:
        """Return the row of a label. Raises KeyError if there is none."""
        return {row.label: row for row in self.rows}[label]

    def printed_beside(self, row: PaperRow, column: int) -> float | None:
        """Return the printed number beside our column."""
        return row.printed[column if self.sized else 0] if row.printed else None


@dataclass(frozen=True)
class GongSetting:
    """What a collection has for the tables: encoders, sizes in folds, and how many target images a fold has.

    `sizes` are the three training-set sizes of the supervised tables, `transfer_sizes` those of Table 5; `terms` the
    dictionary sizes of Table 2, of which the middle one is used elsewhere.
    The smallest target set is drawn `draws` times, larger ones `further_draws` times.
    Methods of Table 5 have the same `weak_folds` at every size of the target set (None: all other images). `betas` and
    `weights` are those that our rows try. `lengths` are the documents' mean numbers of words, and `text`
    says what the text view is.
    """

    encoders: tuple[str, ...]
    standard: tuple[str, ...]
    sizes: tuple[int, ...]
    transfer_sizes: tuple[int, ...]
    weak_sizes: tuple[int, ...]
    weak_folds: int | None
    terms: tuple[int, ...]
    draws: int
    further_draws: int
    fold_images: int
    weak_fold_images: int
    betas: tuple[float, ...]
    weights: tuple[float, ...]
    lengths: Mapping[str, float]
    text: str

    @classmethod
    def from_dict(cls, value: "Mapping[str, JsonValue]") -> "GongSetting":
        """Restore a setting from JSON's lists."""
        values: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
        return cls(**values)

    @property
    def weak_images(self) -> list[int]:
        """The auxiliary sets of Table 6."""
        return [size * self.weak_fold_images for size in self.weak_sizes]


@cache
def _read() -> dict[str, Any]:
    return read_mapping(Path(__file__).with_name("gong.yaml"))


def tables(setting: GongSetting) -> list[Table]:
    """All tables for one collection, without the rows for which it has nothing."""
    return [_table(setting, **table) for table in _read()["tables"]]


def find_table(setting: GongSetting, name: str) -> Table:
    """The one whose title begins with `name`."""
    return next(table for table in tables(setting) if table.title.startswith(f"{name}."))


def _table(
    setting: GongSetting,
    title: str,
    sizes: str,
    rows: str,
    orders: Mapping[str, Sequence[str]],
    columns: Sequence[str] = (),
    printed_columns: Sequence[str] = (),
    sized: bool = True,
) -> Table:
    """`sizes` are those of the target sets of the columns, which these head unless `columns` do: a setting's, the
    `smallest` of transfer_sizes, or `none`."""
    smallest = setting.transfer_sizes[:1]
    folds = {"smallest": smallest, "none": (0,)}.get(sizes) or getattr(setting, sizes)
    labels, paper_rows = {}, []
    for label, system, numbers in (map(str.strip, line.split("|")) for line in rows.splitlines()):
        about_system = _read()["systems"].get(system, {"model": system})
        if "encoders" in about_system and not setting.standard:
            continue
        labels[system] = label.format(**vars(setting), weak_images=setting.weak_images)
        cells = tuple(_cells(setting, folds, **about_system))
        paper_rows.append(PaperRow(labels[system], read_numbers(numbers), cells))
    pairs = [(labels[a], labels[b]) for a, b in read_orders(orders) if a in labels and b in labels]
    heads = columns or [f"{size * setting.fold_images:,}" for size in folds]
    return Table(title, heads, printed_columns, paper_rows, pairs, sized)


def _cells(
    setting: GongSetting,
    sizes: Sequence[int],
    model: str = "ncca",
    training: str = "target",
    encoders: str = "encoders",
    documents: str = "all",
    terms: int = 1,
    auxiliary: str | int | None = None,
    transfer: Mapping[str, Sequence[float | str]] | None = None,
    ours: bool = False,
) -> Iterator[StudyCell]:
    """A system's cell for a target set of each of `sizes`, in folds; what learns from weak texts alone has none.

    A system has a `model`, a `training`, the `encoders` (or `standard`) of a setting, `documents`, the number of its
    `terms` there, and as `auxiliary` set `weak`, which is weak_folds, or the number of one of weak_sizes; without it
    all that are left. `transfer` is laid over the paper's settings, or, if it is `ours`, over the configuration's; a
    word in it stands for what the setting has of that name.
    """
    weak = setting.weak_sizes[auxiliary] if isinstance(auxiliary, int) else setting.weak_folds if auxiliary else None
    paper = _read()
    laid = dict(paper["transfer"]) if not ours and training not in ("target", "auxiliary") else {}
    for name, values in (transfer or {}).items():
        laid[name] = [number for value in values for number in getattr(setting, str(value), [value])]
    for size in sizes:
        yield StudyCell(
            model=model,
            training=training,
            encoders=getattr(setting, encoders),
            documents=documents,
            target_folds=0 if training == "auxiliary" else size,
            auxiliary_folds=weak,
            terms=setting.terms[terms],
            draws=setting.draws if size == sizes[0] else setting.further_draws,
            fit={} if ours else paper["fit"],
            transfer=laid,
            settings=paper["models"].get(model, {}),
        )


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
