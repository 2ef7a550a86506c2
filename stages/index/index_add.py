"""`index-add`: a bundle with the images and sentences that were added to the manifest."""

from pathlib import Path

import click

from pipeline.run import Run
from stages.commands import FOLDER, bundle, on_run, output


@click.command("index-add")
@bundle
@on_run
@output(FOLDER, "Folder of the new bundle; the old one stays as it is.")
def command(run: Run, bundle_folder: Path, output: Path) -> None:
    """Add what is new in the run's manifest to a bundle's indices, and measure how far these have drifted."""
    import logging
    from functools import partial

    import numpy as np

    from pipeline.index.build_gallery import queries_of
    from pipeline.index.upkeep import add, revise
    from pipeline.storage.embeddings import split_ids
    from pipeline.storage.revision import Revision
    from stages.inputs import read_bundled_embeddings

    settings, manifest, embeddings = run.config.index, run.manifest, read_bundled_embeddings(run, bundle_folder)
    revision = Revision(bundle_folder, embeddings, output)
    wanted, log = split_ids(manifest, settings.splits), logging.getLogger(__name__)
    for part in revision.parts:
        fresh = np.setdiff1d(wanted[part.modality], part.ids)
        table = getattr(manifest, part.modality).take(fresh)
        grown = part.followed_by(table, embeddings.outline(part.modality, fresh))
        first = len(part.ids) if part.outline is None else len(part.numbers)
        change = partial(add, vectors=embeddings.rows_of(part.modality, fresh), first=first)
        data, queries = revision.bundle.index(part.name), revision.queries(part, queries_of(embeddings.multi_vector))
        revised = revise(data, part, grown, revision.vectors, change, queries, embeddings.comparison)
        revision.put(grown, revised.data, revised.card())
        log.info("%d %s added; %s", len(fresh), part.modality, revised.drift(settings.recall_floor))
    revision.commit()
