"""`sweep`: what a model reaches with more target and auxiliary pairs, from moments, with every combination tried."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.run import Job, Run, stage
from stages.studies import read_study, study_keys, study_reads


def _keys(config, model: str) -> dict:
    return {**study_keys(config), "model": config.model(model).hyperparameters}


@stage(
    version=4,
    gpu=True,
    choices=lambda config: [(name,) for name in config.made_by("fit")],
    keys=_keys,
    reads=lambda config, layout, model: study_reads(config, layout),
    writes=lambda layout, model: layout.sweep(model),
)
def sweep(run: Run, job: Job, model: str) -> None:
    """Try every combination of training-set sizes, ridges, dimensions, powers and training settings."""
    import logging
    import time

    from tqdm import tqdm

    from pipeline.models.linear.study import StudyCell, sweep_cells, sweep_rows
    from pipeline.storage.commit import publish_record
    from pipeline.storage.tables import to_csv

    chosen, study = run.config.model(model), read_study(run)
    cell = StudyCell(
        chosen.spec.name, chosen.training, chosen.encoders, chosen.documents, 1, text_encoders=chosen.text_encoders
    )
    start = time.perf_counter()
    measured = [
        study.measure(one, draw=0)
        for one in tqdm(sweep_cells(cell, study.target.source.n_folds, study.overlap), f"sweep {model}", disable=None)
    ]
    rows, seconds = sweep_rows(measured), time.perf_counter() - start

    value = {"model": model, "seconds": seconds, "combinations": len(rows), "cells": measured}
    drawn = _draw(rows, model, study.target.source.fold_images)
    beside = {"sweep.csv": to_csv(rows).encode(), "sweep.svg": drawn}
    publish_record(job.path / "sweep.json", value, beside, job.provenance)
    logging.getLogger(__name__).info("%s: %d combinations in %.0f s", model, len(rows), seconds)


def _draw(rows: Sequence[Mapping[str, Any]], title: str, fold_images: int) -> bytes:
    """As SVG: recall@10 on test of the combinations chosen on dev, over target images, a line for each auxiliary-set
    size."""
    import io

    import matplotlib
    from matplotlib.figure import Figure

    chosen = sorted((row for row in rows if row["chosen"]), key=lambda row: row["target_folds"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, direction in zip(axes, ("image_to_sentence", "sentence_to_image"), strict=True):
        for weak in sorted({row["auxiliary_folds"] for row in chosen}):
            line = [row for row in chosen if row["auxiliary_folds"] == weak]
            sizes = [row["target_folds"] * fold_images for row in line]
            label = f"{weak} folds of weak text" if weak else None
            axis.plot(sizes, [row[f"test_{direction}_recall@10"] for row in line], "o-", label=label)
        axis.set_title(direction.replace("_", " "))
        axis.set_xlabel("target images")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("recall@10 on test, percent")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False)
    figure.suptitle(title)
    drawn = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "jointspace"}):  # else it names the parts of a file at random
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()
