"""`index-add`: a bundle with the images and sentences that a grown manifest has and it has not."""

from pathlib import Path

import click

from stages import options


@click.command("index-add")
@options.bundle
@options.manifest
@options.embeddings
@options.config
@options.output("folder", "Folder of the new bundle; the old one stays as it is.")
def command(
    bundle_folder: Path, manifest_folder: Path, embeddings_folder: Path, config_path: Path | None, output: Path
) -> None:
    """Add what is new in the manifest to the indices of a bundle, and measure how far they have drifted."""
    import logging
    from dataclasses import replace

    import numpy as np
    import pyarrow as pa

    from pipeline import config
    from pipeline.index.build import QUERIES
    from pipeline.index.format import from_bytes, to_bytes
    from pipeline.index.upkeep import add, examine, report_drift
    from pipeline.storage.embeddings import Embeddings, split_ids
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.revision import Revision

    settings, manifest = config.load(config_path).index, Manifest(manifest_folder)
    revision = Revision(bundle_folder, Embeddings(manifest, embeddings_folder), output)
    wanted, metric, log = split_ids(manifest, settings.splits), revision.embeddings.metric, logging.getLogger(__name__)
    for part in revision.parts:
        fresh, queries = np.setdiff1d(wanted[part.modality], part.ids), revision.queries(part, QUERIES)
        index = from_bytes(revision.bundle.index(part.modality), f"{part.modality}.faiss", part.card)
        before = examine(index, revision.vectors(part, part.alive), part.alive, queries, metric)
        add(index, revision.embeddings.rows_of(part.modality, fresh), len(part.ids))
        grown = replace(part, table=pa.concat_tables([part.table, getattr(manifest, part.modality).take(fresh)]))
        after = examine(index, revision.vectors(grown, grown.alive), grown.alive, queries, metric)
        log.info("%d %s added; %s", len(fresh), part.modality, report_drift(before, after, settings.recall_floor))
        revision.put(grown, to_bytes(index), {**after.to_dict(), "before": before.to_dict()})
    revision.commit()
