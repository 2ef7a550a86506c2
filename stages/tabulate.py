"""`tabulate`: the tables of seed 004 as Markdown, our numbers beside the printed ones."""

from pathlib import Path

import click

from stages import options


@click.command("tabulate")
@click.option("--study", "study_folder", type=options.FOLDER, required=True, help="Folder that `study` wrote.")
@options.config
@options.output("file", "The tables, a Markdown file.")
def command(study_folder: Path, config_path: Path | None, output: Path) -> None:
    """Write Tables 1 to 6, and those of our own, from the numbers that `study` measured."""
    from functools import cache

    from benchmarks.papers import gong
    from benchmarks.papers.tables import render
    from pipeline import config
    from pipeline.metrics.retrieval import Bootstrap
    from pipeline.models.linear.study import Cell
    from pipeline.storage.atomic import TABLES, publish
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.forms import StudyFile
    from pipeline.storage.records import read_cell, read_record

    settings = config.load(config_path)
    study = read_record(study_folder / "study.json", StudyFile)
    setting = gong.Setting(**{name: _tuples(value) for name, value in study["setting"].items()})

    @cache
    def draws(key: str) -> list[dict]:
        return [read_cell(study_folder, name, key) for name in study["files"][key]]

    def measured(cell: Cell) -> list[dict]:
        return draws(cell.key)[: cell.draws]

    bootstrap = Bootstrap(settings.evaluate.bootstrap, settings.seed)
    text = render(gong.tables(setting), measured, bootstrap, f"Gong et al. on {settings.name}")
    digest = fingerprint("tables", 1, [settings.name, vars(bootstrap)], {"study": study["fingerprint"]})
    publish(output, text.encode(), kind=TABLES, rows=1, fingerprint=digest, details={"inputs": study["inputs"]})


def _tuples(value):
    return tuple(value) if isinstance(value, list) else value
