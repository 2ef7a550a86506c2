"""`tabulate`: the tables of Gong et al. 2014 as Markdown, our numbers beside the printed ones."""

from pipeline.run import Job, Run, stage


@stage(
    version=6,
    keys=lambda config: {
        "seed": config.seed,
        "name": config.name,
        "bootstrap": config.evaluate.bootstrap,
        "folds": config.study.folds,
    },
    reads=lambda config, layout: [layout.study],
    writes=lambda layout: layout.tables,
)
def tabulate(run: Run, job: Job) -> None:
    """Write Tables 1 to 6 of Gong et al., and ours, from the numbers of `study`."""
    from functools import cache

    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.models.linear.study import StudyCell
    from pipeline.papers import gong
    from pipeline.papers.gong_report import measure_table, measure_time, render
    from pipeline.storage.commit import TABLES, publish, read_record
    from pipeline.storage.records import read_cell

    config, folder = run.config, run.layout.study.path
    study = read_record(run.layout.study.commit)
    setting = gong.GongSetting.from_dict(study["setting"])

    @cache
    def draws(key: str) -> list[dict]:
        return [read_cell(folder, name, key) for name in study["cells"][key]]

    def measured(cell: StudyCell) -> list[dict]:
        return draws(cell.key)[: cell.draws]

    bootstrap = Bootstrap(config.evaluate.bootstrap, config.seed)
    tables = [measure_table(table, measured, bootstrap, config.study.folds) for table in gong.tables(setting)]
    total = sum(one["seconds"] for key in study["cells"] for one in draws(key))
    tables.append(measure_time(gong.find_table(setting, "Table 4"), measured, total))
    text = render(tables, f"Gong et al. on {config.name}", setting)
    publish(
        job.path, text.encode(), kind=TABLES, rows=len(tables), provenance=job.provenance, details={"tables": tables}
    )
