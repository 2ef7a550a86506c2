"""`export`: the vectors of a bundle for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FOLDER, output

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.exports import ExportedSide

KINDS = ("npy", "parquet", "clip-retrieval", "lancedb", "qdrant")


@click.command("export")
@click.argument("bundle_folder", type=FOLDER, metavar="BUNDLE")
@click.option("--to", "kind", type=click.Choice(KINDS), required=True, help="The program or format.")
@output(FOLDER, "The new folder that it writes.")
def command(bundle_folder: Path, kind: str, output: Path) -> None:
    """Write the vectors of BUNDLE, with ids, paths, texts and your own columns, as another program reads them."""
    import logging

    from pipeline.errors import UsageError
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.exports import export

    bundle = Bundle(bundle_folder)
    if bundle.card.get("kind") == "fragments":
        raise UsageError(
            f"{bundle.card['model']} has several vectors an image, which these programs do not compare; export a model"
            " with one"
        )
    sides = {name: _read(bundle, name) for name in ("images", "sentences") if bundle.card.get(name)}
    card = {key: bundle.card[key] for key in ("model", "metric", "dim", "data_root", "fingerprint")}
    card["more_roots"] = bundle.card.get("more_roots", [])
    export(kind, output, sides, card)
    counts = " and ".join(f"{len(side.vectors)} {name}" for name, side in sides.items())
    logging.getLogger(__name__).info("%s are in %s", counts, output)


def _read(bundle: "Bundle", modality: str) -> "ExportedSide":
    """The rows of a modality that were not removed."""
    import logging

    import faiss
    import numpy as np

    from pipeline.index.filtering import is_exact, reconstruct
    from pipeline.index.format import METRICS, to_bytes
    from pipeline.index.opening import open_index
    from pipeline.storage.exports import ExportedSide
    from pipeline.storage.revision import is_removed

    table, card, index = bundle.table(modality), bundle.card[modality], open_index(bundle, modality)
    rows = np.flatnonzero(~is_removed(table))
    vectors = reconstruct(index, rows)
    if not is_exact(index):
        logging.getLogger(__name__).warning(
            "the index of %s (%s) has rounded its vectors: these are the ones that it has", modality, card["factory"]
        )

    def index_bytes() -> memoryview:
        flat = faiss.IndexFlat(vectors.shape[1], METRICS[card["metric"]])
        flat.add(vectors)
        return to_bytes(flat)

    return ExportedSide(vectors, table.take(rows), index_bytes)
