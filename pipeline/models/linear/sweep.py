"""A sweep: what one row reaches as its target and auxiliary sets grow, and every combination tried on the way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.models.linear.study import StudyCell


def sweep_cells(cell: StudyCell, folds: int, overlap: bool) -> list[StudyCell]:
    """`cell` at 1 to `folds` folds of target pairs and, where it learns from auxiliary pairs, 1 to `folds` of these."""
    cells = []
    for size in [0] if cell.training == "auxiliary" else range(1, folds + 1):
        most = folds - size if overlap else folds
        weak = [None] if cell.training == "target" else range(1, most + 1)
        cells += [replace(cell, target_folds=size, auxiliary_folds=count) for count in weak]
    return cells


def sweep_rows(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A flat row for every trial of every measurement; those chosen on dev say what they reach on test."""
    rows = []
    for one in measured:
        for trial in one["trials"]:
            row = {"target_folds": one["target_folds"], "auxiliary_folds": one["auxiliary_folds"], **trial}
            row |= {"dev_recall_sum": row.pop("recall_sum"), "chosen": trial == one["chosen"], **row.pop("transfer")}
            for direction in ("image_to_sentence", "sentence_to_image"):
                for name, value in one[direction].items():
                    row[f"test_{direction}_{name}"] = value if row["chosen"] else None
            rows.append(row)
    return rows
