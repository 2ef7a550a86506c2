"""`export`: the vectors of an index for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FOLDER, output

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.bundles import Bundles
    from pipeline.storage.exports import ExportedSide

KINDS = ("npy", "parquet")


@click.command("export")
@click.argument("bundle_folder", type=FOLDER, metavar="INDEX")
@click.option("--to", "kind", type=click.Choice(KINDS), required=True, help="The format.")
@output("The new folder that it writes.")
def command(bundle_folder: Path, kind: str, output: Path) -> None:
    """Export the vectors of INDEX with ids, paths, captions and your own columns."""
    import logging

    from pipeline.errors import UsageError
    from pipeline.storage.bundles import open_bundle
    from pipeline.storage.exports import export

    bundle = open_bundle(bundle_folder)
    if bundle.card.get("kind") == "fragments":
        raise UsageError(
            f"{bundle.card['model']} has several vectors per image, which these programs cannot compare; export"
            " another model"
        )
    sides = {name: _read(bundle, name) for name in ("images", "sentences") if bundle.card.get(name)}
    card = {key: bundle.card[key] for key in ("model", "metric", "dim", "data_root", "fingerprint")}
    card["data_roots"] = [part.card["data_root"] for part in bundle.parts]
    export(kind, output, sides, card)
    counts = " and ".join(f"{len(side.vectors)} {name}" for name, side in sides.items())
    logging.getLogger(__name__).info("%s are in %s", counts, output)


def _read(bundle: "Bundle | Bundles", modality: str) -> "ExportedSide":
    """The rows of a modality that were not removed."""
    import logging

    import numpy as np

    from pipeline.index.filtering import is_exact
    from pipeline.index.gallery import open_gallery, open_index
    from pipeline.storage.bundles import is_removed
    from pipeline.storage.exports import ExportedSide

    table, log = bundle.table(modality), logging.getLogger(__name__)
    rows = np.flatnonzero(~is_removed(table))
    for part in bundle.parts:
        if part.card.get(modality) and not is_exact(open_index(part, modality)):
            factory = part.card[modality]["factory"]
            log.warning(
                "%s has rounded its %s (%s), so the exported vectors are rounded too", part.folder, modality, factory
            )
    return ExportedSide(open_gallery(bundle, modality).reconstruct(rows), table.take(rows))
