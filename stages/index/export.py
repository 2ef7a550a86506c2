"""`export`: the vectors of an index for other programs."""

import logging
from pathlib import Path

import click

from stages.commands import FOLDER, output


@click.command("export")
@click.argument("index_folder", type=FOLDER, metavar="INDEX")
@click.option("--to", "kind", type=click.Choice(["npy", "parquet"]), required=True, help="File format.")
@output("New folder for the files.")
def command(index_folder: Path, kind: str, output: Path) -> None:
    """Export the vectors of an index for other programs.

    The files also have the ids, paths and captions, and your own columns.
    """
    from pipeline.run.reading.exports import export

    counts = export(index_folder, kind, output)
    contents = " and ".join(f"{count} {modality}" for modality, count in counts.items())
    logging.getLogger(__name__).info("%s are in %s", contents, output)
