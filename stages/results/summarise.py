"""`summarise`: all evaluations of a run in one list, and as a table to read."""

from pathlib import Path

import click

from stages import options


@click.command("summarise")
@click.argument("evaluations", type=options.FILE, nargs=-1, required=True)
@options.output("file", "The list, a JSON file; a Markdown table of the same name is written beside it.")
def command(evaluations: tuple[Path, ...], output: Path) -> None:
    """Put EVALUATIONS, files that `evaluate` wrote, into one list and one table."""
    from pipeline.evaluate.summary import markdown
    from pipeline.storage.evaluations import read_evaluations, write_summary

    values = read_evaluations(evaluations)

    write_summary(output, values, markdown(values))
