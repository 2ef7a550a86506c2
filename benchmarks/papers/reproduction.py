"""The seeds' tables again: the printed number, ours, and the difference, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.papers.printed import SYSTEMS, TABLES, PrintedTable
from pipeline.evaluate.summary import with_folds

HEADINGS = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "Med r", "mean_rank": "mean rank"}
TOLERANCE = 0.02
"""Share by which a gallery may differ from a printed one, since ingest leaves duplicates out."""
TASKS = {"image_to_sentence": "annotation", "sentence_to_image": "search"}


def render(
    evaluations: Iterable[Mapping[str, Any]], collection: str | None, run: str, systems: Mapping[str, Mapping[str, str]]
) -> str:
    """Every table of the seeds with the rows of `evaluations` (all sentences, test) beside the printed ones.

    `systems` has, by row, its settings in the words of benchmarks.papers.printed.SYSTEMS. A difference is given only
    where they are the paper's; else they are listed below the table, beside the paper's.

    `collection` is what the run's images are (None for one that no seed has): tables of others are named with the
    reason why they are left out, and so is every printed row that the run has no model for. A table that was measured
    with a gallery of a certain size is laid beside the whole split or the mean of its folds, whichever is of that size.
    """
    galleries = [
        one for one in with_folds(evaluations) if one["split"] == "test" and one["protocol"].startswith("all-sentences")
    ]
    parts = [
        f"# The seeds' tables on {run}",
        "Each cell: printed | ours, and the difference where the settings are the paper's. Ours is of the test split"
        " with every sentence in the gallery; where a table says so, it is the mean over folds of the split.",
    ]
    for table in TABLES:
        parts += [f"## {table.seed}: {table.title}", _table(table, galleries, collection, systems)]
    return "\n\n".join(parts) + "\n"


def _table(
    table: PrintedTable,
    galleries: Sequence[Mapping[str, Any]],
    collection: str | None,
    systems: Mapping[str, Mapping[str, str]],
) -> str:
    if table.collection != collection:
        here = f"these images are {collection}" if collection else "reproduce.collection is null"
        return f"Left out: it was measured on {table.collection}, and {here}."
    fitting = [one for one in galleries if _fits(table, one)]
    if galleries and not fitting:
        sizes = " and ".join(f"{count:,}" for count in sorted({one["n_images"] for one in galleries}))
        return (
            f"Left out: it was measured with {table.images:,} test images at once, and ours are {sizes}; set"
            " evaluate.folds so that the folds are of that size."
        )
    ours = {one["model"]: one for one in fitting}
    lines = [f"Ours: {ours_is}.\n" for ours_is in sorted({one["protocol"] for one in fitting} - {"all-sentences"})]
    known = [model for _, model, _ in table.rows if model]
    missing = [model for model in dict.fromkeys(known) if model not in ours]
    columns = [f"{TASKS[direction]} {HEADINGS[measure]}" for direction, measure in table.columns]
    lines += ["| as printed | row | " + " | ".join(columns) + " |", "|---" * (len(columns) + 2) + "|"]
    notes = []
    for name, model, numbers in table.rows:
        evaluation = ours.get(model) if model else None
        note = _differ(table, name, model, systems) if evaluation else None
        lines.append(_row(table, name, model, numbers, evaluation, alike=note is None))
        notes += [note] if note else []
    lines += ["", *notes] if notes else []
    if missing:
        lines += ["", f"Without a row of ours: {', '.join(missing)} (not among this run's `models`)."]
    return "\n".join(lines)


def _differ(table: PrintedTable, name: str, model: str, systems: Mapping[str, Mapping[str, str]]) -> str | None:
    """What the printed system `name` and our row `model` are, as an item of a list; None where they are the same."""
    theirs, ours = SYSTEMS.get((table.seed, name), {}), systems.get(model, {})
    if theirs and all(ours.get(what) == value for what, value in theirs.items()):
        return None
    parts = [
        f"{what} {ours.get(what, 'unknown')} (printed: {theirs.get(what, 'not given here')})"
        for what in dict.fromkeys((*theirs, *ours))
    ]
    return f"- No difference for `{model}` beside {name}: {'; '.join(parts) or 'its settings are not known'}."


def _fits(table: PrintedTable, evaluation: Mapping[str, Any]) -> bool:
    """Whether the gallery is the table's: the whole split where that does not tell its size."""
    if table.images is None:
        return evaluation["protocol"] == "all-sentences"
    return abs(evaluation["n_images"] - table.images) <= TOLERANCE * table.images


def _row(
    table: PrintedTable,
    name: str,
    model: str | None,
    numbers: Sequence[float | None],
    evaluation: Mapping[str, Any] | None,
    alike: bool,
) -> str:
    cells = []
    for (direction, measure), printed in zip(table.columns, numbers, strict=True):
        cell = "-" if printed is None else f"{printed:g}"
        if evaluation:
            value = evaluation[direction][measure]
            cell += f" \\| **{value:.1f}**" + (f" \\| {value - printed:+.1f}" if alike and printed is not None else "")
        cells.append(cell)
    return f"| {name} | {f'`{model}`' if model else ''} | " + " | ".join(cells) + " |"
