"""`compare`: the models of several runs beside each other."""

from pathlib import Path

import click

from stages.commands import PATH


@click.command("compare")
@click.argument("runs", metavar="RUN [RUN|TABLE.csv]...", type=PATH, nargs=-1, required=True)
@click.option("--output", type=PATH, default="compare.html", show_default=True, help="The page to write.")
@click.option("--split", default="test", show_default=True, help="Split whose evaluations are compared.")
@click.option("--protocol", default="all-sentences", show_default=True, help="Protocol of the evaluations.")
def command(runs: tuple[Path, ...], output: Path, split: str, protocol: str) -> None:
    """Compare the models of runs, with paired intervals, and with a CSV table of other people's figures.

    All are compared with the best model of the first RUN. The table has the columns model, image_to_sentence_recall@1,
    @5 and @10 and sentence_to_image_recall@1, @5 and @10, in percent.
    """
    from pipeline.errors import InputError
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.report.compared import compare_systems, measured_system, read_figures
    from pipeline.report.page import compared_as_text, render_compared
    from pipeline.report.tables import best_model
    from pipeline.run import Run
    from pipeline.storage.batch import publish_text
    from pipeline.storage.records import read_measured, read_summary

    systems, bootstrap, best = [], None, None
    for path in runs:
        if path.suffix == ".csv":
            systems += read_figures(path)
            continue
        run = Run(path)
        summary = read_summary(run.layout.summary.path)
        wanted = [one for one in summary if (one["split"], one["protocol"]) == (split, protocol)]
        if not wanted:
            raise InputError(f"{path} has no evaluation of the {split} split by {protocol}; evaluate it first")
        if bootstrap is None:
            bootstrap = Bootstrap(run.config.evaluate.bootstrap, run.config.seed)
            best = best_model(summary, [one["model"] for one in wanted])
        photos = run.manifest.rows("images", run.pairs(split).image_id)["sha256"].to_pylist()
        for one in wanted:
            ranks = read_measured(run.layout.evaluation(one["model"], split, protocol).path, "ranks")
            systems.append(measured_system(str(path), one, ranks, photos))
    if bootstrap is None:
        raise click.UsageError("name at least one run, such as results/demo")
    systems.sort(key=lambda system: (system.name, system.source) != (best, str(runs[0])))
    rows = compare_systems(systems, bootstrap)
    publish_text(output, render_compared(rows, systems[0], split, protocol))
    click.echo(compared_as_text(rows))
