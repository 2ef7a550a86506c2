"""`index-remove`: a bundle without some images and their sentences."""

from pathlib import Path

import click

from stages import options


@click.command("index-remove")
@options.bundle
@options.manifest
@options.embeddings
@click.option("--image", "images", type=click.IntRange(min=0), multiple=True, help="An image_id; may be repeated.")
@click.option("--list", "list_path", type=options.FILE, help="File with an image_id on each line.")
@options.config
@options.output("folder", "Folder of the new bundle; the old one stays as it is.")
def command(
    bundle_folder: Path,
    manifest_folder: Path,
    embeddings_folder: Path,
    images: tuple[int, ...],
    list_path: Path | None,
    config_path: Path | None,
    output: Path,
) -> None:
    """Remove images and their sentences from the indices of a bundle, and measure how far they have drifted."""
    import logging
    from dataclasses import replace

    import numpy as np

    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.index.build import QUERIES
    from pipeline.index.format import from_bytes, to_bytes
    from pipeline.index.upkeep import examine, factory_without, remove, report_drift, setting_of
    from pipeline.storage.bundle import forget
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.revision import Revision
    from pipeline.storage.tables import read_numbers

    gone = np.unique([*images, *(read_numbers(list_path) if list_path else [])]).astype(np.int64)
    settings, log = config.load(config_path).index, logging.getLogger(__name__)
    revision = Revision(bundle_folder, Embeddings(Manifest(manifest_folder), embeddings_folder), output)
    metric, found = revision.embeddings.metric, revision.parts[0].ids[revision.parts[0].alive]
    if len(unknown := np.setdiff1d(gone, found)) or not len(gone):
        raise InputError(
            f"image {unknown[0] if len(unknown) else '(none)'} is not in {bundle_folder}; name one that is"
        )
    for part in revision.parts:
        rows, queries = part.alive[np.isin(part.owners[part.alive], gone)], revision.queries(part, QUERIES)
        index = from_bytes(revision.bundle.index(part.modality), f"{part.modality}.faiss", part.card)
        before = examine(index, revision.vectors(part, part.alive), part.alive, queries, metric)
        less, factory = replace(part, table=forget(part.table, rows)), part.card["factory"]
        rest = revision.vectors(less, less.alive)
        index = remove(index, rows, factory, setting_of(part.card), rest, less.alive, metric)
        after = examine(index, rest, less.alive, queries, metric)
        log.info("%d %s removed; %s", len(rows), part.modality, report_drift(before, after, settings.recall_floor))
        changed = {"factory": factory_without(factory), **after.to_dict(), "before": before.to_dict()}
        revision.put(less, to_bytes(index), changed)
    revision.commit()
