"""`study`: every number of the tables of Gong et al. 2014, each measured on test in several draws of the target set."""

from pipeline.run import Job, Run, Stage
from stages.studies import describe_text, measure_lengths, read_study, study_keys, study_reads


def study(run: Run, job: Job) -> None:
    """Measure the tables; numbers that are there already are not measured again."""
    from dataclasses import asdict

    from tqdm import tqdm

    from benchmarks.papers import gong
    from pipeline.models.linear.study import StudyCell, count_draws, pinned
    from pipeline.specs.models import model_spec
    from pipeline.storage.commit import Provenance, describe_file, publish_record
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.reading import is_there
    from pipeline.storage.records import read_cell

    config, layout = run.config, run.layout
    chosen, study = config.study, read_study(run)
    target, count = study.target.source, study.target.source.n_folds

    def recorded(key: str, cell: StudyCell, draw: int) -> dict:
        """The measurement in its file, made now unless it is there."""
        inputs = {"target": target.digest}
        if cell.training != "target":
            inputs["auxiliary"] = study.auxiliary(cell.documents).source.digest
        own = study.own(cell.model)
        grids = [chosen.fit.model_dump(), config.transfer.model_dump(), own and own.model_dump()]
        digest = fingerprint("study", 3, [cell.key, draw, chosen.protocol, config.seed, *grids], inputs)
        name = f"{digest[:20]}.json"
        if not is_there(job.path / "cells" / name):
            of = Provenance(run.root, job.provenance.stage, job.provenance.version, {"cell": digest})
            publish_record(job.path / "cells" / name, {"key": key, **study.measure(cell, draw)}, provenance=of)
        return {"file": name, **read_cell(job.path, name, key)}

    setting = gong.GongSetting(
        encoders=tuple(encoder.name for encoder in config.encoders),
        standard=tuple(encoder.name for encoder in chosen.encoders),
        fold_images=target.fold_images,
        weak_fold_images=study.auxiliary("all").source.fold_images,
        betas=config.transfer.beta,
        lengths=measure_lengths(run, gong.FIELDS),
        text=describe_text(config),
        **chosen.model_dump(
            include={"sizes", "transfer_sizes", "weak_sizes", "terms", "noise", "draws", "further_draws", "weights"}
        ),
    )
    cells: dict[str, StudyCell] = {}
    for cell in (cell for table in gong.tables(setting) for row in table.rows for cell in row.cells):
        cells[cell.key] = max(cells.get(cell.key, cell), cell, key=lambda one: one.draws)
    # What is trained by gradient takes the longest and comes last.
    cells = dict(sorted(cells.items(), key=lambda item: not model_spec(item[1].model).grid))
    todo = [(draw, key) for draw in range(count) for key, cell in cells.items() if draw < count_draws(cell, count)]
    files: dict[str, list[str]] = {key: [] for key in cells}
    first: dict[str, dict] = {}
    for draw, key in tqdm(todo, "study", unit="number", disable=None):
        cell = cells[key]
        made = recorded(key, pinned(cell, first[cell.model]) if cell.model in first else cell, draw)
        first.setdefault(cell.model, made["chosen"])
        files[key].append(made["file"])
    about = {"setting": asdict(setting), "study": chosen.model_dump()}
    names = sorted({f"cells/{name}" for listed in files.values() for name in listed})
    vouched = {name: describe_file(job.path / name) for name in names}
    publish_record(layout.study.commit, {"cells": files, **about}, provenance=job.provenance, files=vouched)


STAGE = Stage(
    study,
    version=4,
    gpu=True,
    keys=study_keys,
    reads=study_reads,
    writes=lambda layout: layout.study,
)
