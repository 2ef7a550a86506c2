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

    from pipeline import config
    from pipeline.evaluate.retrieval import Bootstrap
    from pipeline.linear import gong
    from pipeline.linear.study import Cell
    from pipeline.report.gong import render
    from pipeline.storage.atomic import publish_text, read_json
    from pipeline.storage.names import inside

    settings = config.load(config_path)
    list_path = study_folder / "study.json"
    study = read_json(list_path)
    setting = gong.Setting(**{name: _tuples(value) for name, value in study["setting"].items()})

    @cache
    def draws(key: str) -> list[dict]:
        return [read_json(inside(study_folder / "cells", name, list_path)) for name in study["files"][key]]

    def measured(cell: Cell) -> list[dict]:
        return draws(cell.key)[: cell.draws]

    bootstrap = Bootstrap(settings.evaluate.bootstrap, settings.seed)
    publish_text(output, render(gong.tables(setting), measured, bootstrap, f"Gong et al. on {settings.name}"))


def _tuples(value):
    return tuple(value) if isinstance(value, list) else value
