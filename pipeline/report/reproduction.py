"""The seeds' tables again: the printed number, ours, and the difference, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.report.printed import TABLES, PrintedTable

HEADINGS = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "Med r", "mean_rank": "mean rank"}
TASKS = {"image_to_sentence": "annotation", "sentence_to_image": "search"}


def render(evaluations: Iterable[Mapping[str, Any]], collection: str | None, run: str) -> str:
    """Every table of the seeds with the rows of `evaluations` (all sentences, test) beside the printed ones.

    `collection` is what the run's images are (None for one that no seed has): tables of others are named with the
    reason why they are left out, and so is every printed row that the run has no model for.
    """
    ours = {one["model"]: one for one in evaluations if (one["split"], one["protocol"]) == ("test", "all-sentences")}
    parts = [
        f"# The seeds' tables on {run}",
        "Each cell: printed | ours | difference. Ours is of the test split with every sentence in the gallery.",
    ]
    for table in TABLES:
        parts += [f"## {table.seed}: {table.title}", _table(table, ours, collection)]
    return "\n\n".join(parts) + "\n"


def _table(table: PrintedTable, ours: Mapping[str, Mapping[str, Any]], collection: str | None) -> str:
    if table.collection != collection:
        here = f"these images are {collection}" if collection else "reproduce.collection is null"
        return f"Left out: it was measured on {table.collection}, and {here}."
    known = [model for _, model, _ in table.rows if model]
    missing = [model for model in dict.fromkeys(known) if model not in ours]
    columns = [f"{TASKS[direction]} {HEADINGS[measure]}" for direction, measure in table.columns]
    lines = ["| as printed | row | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    lines += [_row(table, name, model, numbers, ours) for name, model, numbers in table.rows]
    if missing:
        lines += ["", f"Without a row of ours: {', '.join(missing)} (not among this run's `models`)."]
    return "\n".join(lines)


def _row(
    table: PrintedTable,
    name: str,
    model: str | None,
    numbers: Sequence[float | None],
    ours: Mapping[str, Mapping[str, Any]],
) -> str:
    evaluation = ours.get(model) if model else None
    cells = []
    for (direction, measure), printed in zip(table.columns, numbers, strict=True):
        cell = "-" if printed is None else f"{printed:g}"
        if evaluation:
            value = evaluation[direction][measure]
            cell += f" \\| **{value:.1f}**" + ("" if printed is None else f" \\| {value - printed:+.1f}")
        cells.append(cell)
    return f"| {name} | {f'`{model}`' if model else ''} | " + " | ".join(cells) + " |"
