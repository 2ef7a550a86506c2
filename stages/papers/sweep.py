"""`sweep`: what a model reaches with more target and auxiliary pairs, from moments, with every combination tried."""

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
    from pipeline.report.figures import draw_sweep, to_svg
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
    drawn = draw_sweep(rows, model, study.target.source.fold_images)
    beside = {"sweep.csv": to_csv(rows).encode(), "sweep.svg": to_svg(drawn)}
    publish_record(job.path / "sweep.json", value, beside, job.provenance)
    logging.getLogger(__name__).info("%s: %d combinations in %.0f s", model, len(rows), seconds)
