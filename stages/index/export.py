"""`export`: writes the vectors of an index, or the recipe for its queries, for other programs."""

import logging
from pathlib import Path

import click

from pipeline.errors import UsageError
from stages.commands import FOLDER

log = logging.getLogger(__name__)


@click.command("export")
@click.argument("index_folder", type=FOLDER, metavar="INDEX")
@click.option("--to", "kind", type=click.Choice(["npy", "parquet", "faiss"]), help="Format of the vectors.")
@click.option("-o", "--output", type=FOLDER, metavar="FOLDER", help="New folder for the vectors.")
@click.option(
    "--type", "code", type=click.Choice(["int8", "pq64", "pq32", "pq16"]),
    help="Code of a vector with --to faiss: a byte per dimension, or 64, 32 or 16 bytes. [default: pq32]",
)  # fmt: skip
@click.option(
    "--dims", type=click.IntRange(min=1), metavar="N",
    help="Number of dimensions to which vectors are reduced before coding, with --to faiss."
    " [default: all for int8, and 128, 96 and 64 for the others]",
)  # fmt: skip
@click.option(
    "--recipe", type=FOLDER, metavar="FOLDER", help="New folder for a recipe with which a program embeds queries."
)
def command(
    index_folder: Path, kind: str | None, output: Path | None, code: str | None, dims: int | None, recipe: Path | None
) -> None:
    """Export vectors, or a recipe for queries, for other programs.

    Give --to and --output for the vectors, or --recipe, or all three. The files next to the vectors, or the Parquet
    table itself, have the ids, paths and captions, and your own columns.
    """
    from pipeline.storage.locks import hold

    if (kind is None) != (output is None) or (output is None and recipe is None):
        raise UsageError("Pass --to and --output for the vectors, or --recipe, or all three.")
    if (code or dims) and kind != "faiss":
        raise UsageError(
            "The options --type and --dims need --to faiss. Add --to faiss, or leave out --type and --dims."
        )
    if recipe is not None:
        from pipeline.run.reading.recipe import export_recipe

        with hold(recipe):
            export_recipe(index_folder, recipe)
        log.info("The program that embeds queries is in %s", recipe)
    if kind is not None and output is not None:
        from pipeline.run.reading.exports import export

        with hold(output):
            counts = export(index_folder, kind, output, code or "pq32", dims)
        contents = " and ".join(f"{count} {modality}" for modality, count in counts.items())
        log.info("The vectors of %s are in %s", contents, output)
