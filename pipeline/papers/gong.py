"""The tables of Gong et al. 2014, from gong.yaml.

A measured recall belongs to a `StudyCell`: a system, a number of folds of the training images, and the draws of these
folds. The tables have the form of `pipeline.papers.tables`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import JsonValue

from pipeline.config.loading import read_mapping
from pipeline.metrics.paired import Columns, Draw, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.models.joint_model import read_setting
from pipeline.models.linear.study import StudyCell
from pipeline.models.linear.tuning import choices_at_edges
from pipeline.papers import tables
from pipeline.papers.published import read_numbers, read_pairs, split_line
from pipeline.papers.reproduction import compare

if TYPE_CHECKING:
    from pipeline.config.names import Config

PAPER = "Gong et al."
SUPERVISED = "Fully Supervised Only"
"""The label of the first row of Table 5, a system that is trained on the target set alone."""
COLUMNS: Columns = (("image_to_sentence", "recall@10"),)
Draws = Sequence[Mapping[str, Any]]
"""The results of `Study.measure` for a StudyCell, one for each draw of the training images."""
Measured = Callable[[StudyCell], Draws]
"""A function that returns the results of a StudyCell, one for each draw."""


@dataclass(frozen=True)
class PaperRow:
    """A row of a table: its label, the published numbers, and the reproduced and the improved system.

    A system is a sequence with one cell for each column. The sequence is empty if there is no such system.
    """

    label: str
    published: Sequence[float | None]
    reproduced: Sequence[StudyCell]
    improved: Sequence[StudyCell]


@dataclass(frozen=True)
class Table:
    """A table with the recall@10 of image-to-sentence retrieval of several systems.

    `columns` are the headings of the measured numbers. `published_columns` are the groups of columns of the published
    numbers. `differences` are pairs of labels of rows whose reproduced systems are compared. If `sized` is true, the
    target set of column i has the same size in this table and in the table of the paper. Otherwise, each column is
    compared with the first column of the paper.
    """

    title: str
    columns: Sequence[str]
    published_columns: Sequence[tables.Result]
    rows: Sequence[PaperRow]
    differences: Sequence[tuple[str, str]]
    sized: bool = True


@dataclass(frozen=True)
class FoldFacts:
    """Facts about the images of a study that the headings of its tables state.

    A fold of the target set has `fold_images` images on average, and a fold of the auxiliary set `weak_fold_images`.
    `lengths` maps the kinds of weak text to their mean numbers of words.
    """

    fold_images: int
    weak_fold_images: int
    lengths: Mapping[str, float]


@cache
def _read() -> dict[str, Any]:
    return read_mapping(Path(__file__).with_name("gong.yaml"))


def make_tables(config: "Config", facts: FoldFacts) -> list[Table]:
    """Make all tables for a configuration. Rows of systems with standard encoders are left out if the section `study`
    names no encoders. The headings state the `facts`."""
    return [_table(config, facts, **table) for table in _read()["tables"]]


def find_table(tables: Iterable[Table], name: str) -> Table:
    """Return the table whose title begins with `name` and a full stop. Raises StopIteration if there is none."""
    return next(table for table in tables if table.title.startswith(f"{name}."))


def list_cells(table: Table) -> Iterator[StudyCell]:
    """Yield the cells of all reproduced and improved systems of a table."""
    return (cell for row in table.rows for cell in (*row.reproduced, *row.improved))


def _table(
    config: "Config",
    facts: FoldFacts,
    title: str,
    sizes: str,
    rows: str,
    differences: Mapping[str, Sequence[str]],
    columns: Sequence[str] = (),
    published_columns: Mapping[str, Sequence[str]] | None = None,
    sized: bool = True,
) -> Table:
    """Make a table from its entry in gong.yaml.

    `sizes` says which sizes the target sets have, in folds: it is the name of a list in the section `study`, `smallest`
    for the first of study.transfer_sizes, or `none` for no target set. Each line of `rows` has a label, a reproduced
    system, the published numbers and an improved system, with bars between them. `differences` maps a system to the
    systems with which it is compared. `columns` has the headings of the columns. Without `columns`, the headings are
    the numbers of images in the target sets. `published_columns` maps the title of each group of published columns to
    the headings of the group, and is None if there are no published columns. `Table` explains `sized`.
    """
    study = config.study
    folds = {"smallest": study.transfer_sizes[:1], "none": (0,)}.get(sizes) or getattr(study, sizes)
    weak_images = [size * facts.weak_fold_images for size in study.weak_sizes]
    labels = {}
    paper_rows = []
    for cells in map(split_line, rows.splitlines()):
        label, system, numbers, improved = [*cells, "", ""][:4]
        if not study.encoders and "encoders" in _settings_of(system):
            continue
        labels[system] = label.format(terms=study.terms, lengths=facts.lengths, weak_images=weak_images)
        found = [
            list(_cells(config, folds, **_settings_of(one))) if one.strip("-") else [] for one in (system, improved)
        ]
        paper_rows.append(PaperRow(labels[system], read_numbers(numbers), *found))
    pairs = [(labels[a], labels[b]) for a, b in read_pairs(differences) if a in labels and b in labels]
    heads = columns or [f"{size * facts.fold_images:,}" for size in folds]
    groups = [tables.group(name, measures) for name, measures in (published_columns or {}).items()]
    return Table(title, heads, groups, paper_rows, pairs, sized)


def _settings_of(system: str) -> dict[str, Any]:
    return _read()["systems"].get(system, {"model": system})


def _cells(
    config: "Config",
    sizes: Sequence[int],
    model: str = "ncca",
    training: str = "target",
    encoders: str = "network",
    documents: str = "all",
    terms: int = 1,
    auxiliary: str | int | None = None,
    transfer: Mapping[str, Sequence[float | str]] | None = None,
    improved: bool = False,
) -> Iterator[StudyCell]:
    """Yield the cell of a system for each of the `sizes` of the target set, in folds.

    `training` and `documents` are as in StudyCell. `encoders` is `network` for the encoders of the run, or `standard`
    for the encoders of the section `study`. `terms` is an index of the dictionary sizes study.terms. `auxiliary`
    determines the auxiliary set. A number is an index of study.weak_sizes. If auxiliary.splits contains train, `weak`
    stands for the number of folds that the largest of study.transfer_sizes leaves. In all other cases, the auxiliary
    set has all remaining images. `transfer` replaces some settings of the paper or, for an `improved` system, of the
    configuration. The values `betas` and `weights` in `transfer` stand for the values of the keys transfer.beta and
    study.weights.
    """
    study = config.study
    paper = _read()
    grids = {"betas": config.transfer.beta, "weights": study.weights}
    overlap = "train" in config.auxiliary.splits
    weak = None
    if isinstance(auxiliary, int):
        weak = study.weak_sizes[auxiliary]
    elif auxiliary and overlap:
        weak = (study.folds - max(study.transfer_sizes)) or None
    changes = dict(paper["transfer"]) if not improved and training not in ("target", "auxiliary") else {}
    for name, values in (transfer or {}).items():
        changes[name] = [number for value in values for number in grids.get(str(value), [value])]
    chosen = study.encoders if encoders == "standard" else config.encoders
    for size in sizes:
        yield StudyCell(
            model=model,
            training=training,
            encoders=tuple(encoder.name for encoder in chosen),
            documents=documents,
            target_folds=0 if training == "auxiliary" else size,
            auxiliary_folds=weak,
            terms=study.terms[terms],
            draws=study.draws if size == sizes[0] else study.further_draws,
            fit={} if improved else paper["fit"],
            transfer=changes,
            settings=paper["models"].get(model, {}),
        )


def measure_table(table: Table, draws: Measured, bootstrap: Bootstrap) -> tables.Result:
    """Return a table, in the form of `pipeline.papers.tables`, with the recalls of every draw, the parameters that were
    chosen on dev, and the differences between systems.

    `draws` returns the results of a cell, and `bootstrap` has the settings of the intervals of the differences.
    """
    rows = []
    for row in table.rows:
        reproduced, improved = ([_system(cells, draws)] if cells else [] for cells in (row.reproduced, row.improved))
        rows.append(tables.row(row.label, row.published, reproduced, improved))
    parts = {"published_columns": table.published_columns, "columns": [tables.group("", table.columns)]}
    return tables.table(
        PAPER,
        table.title,
        **parts,
        rows=rows,
        compared=table.columns,
        differences=list(_differences(table, draws, bootstrap)),
        notes=_edges(table, draws),
    )


def measure_time(table: Table, draws: Measured, total: float) -> tables.Result:
    """Return a table of the CPU seconds of each method's first draw, with all trials on dev. `table` is Table 4.

    `total` is the number of CPU seconds of the whole study, for a note.
    """

    def measure(cells: Sequence[StudyCell]) -> list[tables.Result]:
        return [tables.system("", [[draws(cell)[0]["seconds"]] for cell in cells])] if cells else []

    rows = [tables.row(row.label, (), measure(row.reproduced), measure(row.improved)) for row in table.rows]
    notes = [
        "Published, for four cores of 2014: CCA takes 5 minutes for 5,000 images and 15 minutes for a million, and one"
        " epoch of Wsabie takes 15 minutes for 5,000 images. The first column of Wsabie contains the choice of rate and"
        f" alpha. The whole study took {total:,.0f} CPU seconds."
    ]
    title = "Section 3, time. CPU seconds of a fit with all trials on dev"
    return tables.table(PAPER, title, columns=[tables.group("", table.columns)], rows=rows, notes=notes)


def _system(cells: Sequence[StudyCell], draws: Measured) -> tables.Result:
    recalls = [[round(draw["image_to_sentence"]["recall@10"], 3) for draw in draws(cell)] for cell in cells]
    chosen = [[_format_choices(draw["chosen"]) for draw in draws(cell)] for cell in cells]
    return {**tables.system("", recalls), "chosen": chosen}


def _format_choices(trial: "Mapping[str, JsonValue]") -> str:
    choices = {"image_ridge": trial["image_ridge"], "text_ridge": trial["text_ridge"]}
    choices |= read_setting(trial, "transfer", dict)
    return ", ".join(f"{key} {value:g}" for key, value in choices.items() if isinstance(value, int | float) and value)


def _edges(table: Table, draws: Measured) -> list[str]:
    """Return a list with one note that names the rows with a chosen value at an end of the grid, or [] without such
    rows.

    A chosen value of a reproduced system is at an end of the grid if it is the least or the greatest value that was
    tried.
    """
    edges = [
        f"{row.label}, {column} ({', '.join(sorted(choices))})"
        for row in table.rows
        for column, cell in zip(table.columns, row.reproduced, strict=False)
        if (choices := {key for draw in draws(cell) for key in choices_at_edges(draw["trials"], draw["chosen"])})
    ]
    named = " and ".join(edges)
    return [f"Chosen at the end of the grid, beyond which values may be better: {named}."] if edges else []


def _differences(table: Table, draws: Measured, bootstrap: Bootstrap) -> Iterator[dict[str, Any]]:
    """Yield the differences between the reproduced systems of pairs of rows, on the same test images and draws.

    Two draws that have training images in common, in the target set or in the auxiliary set, are not independent. If
    there are such draws, the interval of the difference is None.
    """
    rows = {row.label: row for row in table.rows}
    for pair in table.differences:
        above, below = (rows[label] for label in pair)
        found = []
        published = []
        for column, cells in enumerate(zip(above.reproduced, below.reproduced, strict=True)):
            count = min(len(draws(cell)) for cell in cells)
            measured = [draws(cell)[:count] for cell in cells]
            folds = [{fold for one in together for fold in one["folds"]} for together in zip(*measured, strict=True)]
            disjoint = sum(map(len, folds)) == len(set().union(*folds))
            compared = compare(_trainings(measured[0]), _trainings(measured[1]), bootstrap, same_draws=count > 1)
            found.append({**compared, "ci95": compared["ci95"] if disjoint else None})
            position = column if table.sized else 0
            has_numbers = above.published and below.published
            published.append(_subtract(above.published[position], below.published[position]) if has_numbers else None)
        yield {"above": pair[0], "below": pair[1], "published": published, "found": found}


def _subtract(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else round(above - below, 2)


def _trainings(draws: Draws) -> list[Draw]:
    ranks = [np.array(draw["ranks"]) for draw in draws]
    images = {"image_to_sentence": np.arange(len(ranks[0]))}
    return [draw_of_ranks({"image_to_sentence": one}, images, COLUMNS) for one in ranks]
