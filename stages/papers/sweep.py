"""`sweep`: what a model reaches with more target and auxiliary pairs, from moments, with every combination tried."""

from pathlib import Path

import click

from stages import options


@click.command("sweep")
@click.argument("name", metavar="MODEL")
@options.study_inputs
@options.config
@options.output("folder", "Folder of sweep.json, sweep.csv (a line for every combination) and sweep.svg.")
def command(name: str, config_path: Path | None, output: Path, **folders: Path) -> None:
    """Sweep MODEL, a registered model or variant: set sizes, ridges, dimensions, powers and what its training has."""
    import logging
    import time

    from tqdm import tqdm

    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.models.linear.study import Cell
    from pipeline.models.linear.sweep import sweep_cells, sweep_rows
    from pipeline.report.figures import draw_sweep
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.tables import to_csv
    from stages.inputs import read_study

    settings = config.load(config_path)
    model, study = settings.model(name), read_study(settings, **folders, device=find_gpu(settings.device))
    cell = Cell(model.spec.name, model.training, model.encoders, model.documents, target_folds=1)
    start = time.perf_counter()
    measured = [
        study.measure(one, draw=0)
        for one in tqdm(sweep_cells(cell, study.target.source.n_folds, study.overlap), f"sweep {name}", disable=None)
    ]
    rows, seconds = sweep_rows(measured), time.perf_counter() - start

    inputs = {f"target/{number}": digest for number, digest in study.target.source.inputs.items()}
    about = [model.hyperparameters, settings.study.model_dump(), settings.transfer.model_dump()]
    value = {"model": name, "seconds": seconds, "combinations": len(rows), "cells": measured, "inputs": inputs}
    value["fingerprint"] = fingerprint("sweep", 1, about, inputs)
    drawn = draw_sweep(rows, name, study.target.source.fold_images)
    publish_record(output / "sweep.json", value, {"sweep.csv": to_csv(rows).encode(), "sweep.svg": drawn})
    logging.getLogger(__name__).info("%s: %d combinations in %.0f s", name, len(rows), seconds)
