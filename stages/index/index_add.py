"""`index-add`: a bundle with the images and sentences that a grown manifest has and it has not."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    import numpy as np

    from pipeline.storage.revision import Part, Revision


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
    from pipeline.storage.embeddings import split_ids
    from pipeline.storage.fragments import open_embedded
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.revision import Revision

    settings, manifest = config.load(config_path).index, Manifest(manifest_folder)
    revision = Revision(bundle_folder, open_embedded(manifest, embeddings_folder), output)
    wanted, log = split_ids(manifest, settings.splits), logging.getLogger(__name__)
    for part in revision.parts:
        fresh = np.setdiff1d(wanted[part.modality], part.ids)
        grown = replace(part, table=pa.concat_tables([part.table, getattr(manifest, part.modality).take(fresh)]))
        told = (_add_sets if revision.of_sets else _add_vectors)(revision, part, grown, fresh, settings.recall_floor)
        log.info("%d %s added; %s", len(fresh), part.modality, told)
    revision.commit()


def _add_vectors(revision: "Revision", part: "Part", grown: "Part", fresh: "np.ndarray", floor: float) -> str:
    """What `grown` has beyond `part`, the vectors `fresh`, into its index; how far that has drifted."""
    from pipeline.index.build import QUERIES
    from pipeline.index.format import from_bytes, to_bytes
    from pipeline.index.upkeep import add, examine, report_drift

    metric, queries = revision.embeddings.metric, revision.queries(part, QUERIES)
    index = from_bytes(revision.bundle.index(part.name), f"{part.name}.faiss", part.card)
    before = examine(index, revision.vectors(part, part.alive), part.alive, queries, metric)
    add(index, revision.embeddings.rows_of(part.modality, fresh), len(part.ids))
    after = examine(index, revision.vectors(grown, grown.alive), grown.alive, queries, metric)
    revision.put(grown, to_bytes(index), {**after.to_dict(), "before": before.to_dict()})
    return report_drift(before, after, floor)


def _add_sets(revision: "Revision", part: "Part", grown: "Part", fresh: "np.ndarray", floor: float) -> str:
    """The same of a row of fragments, for the sets `fresh`."""
    from pipeline.index.fragment_index import SET_QUERIES
    from pipeline.index.fragment_upkeep import revise
    from pipeline.index.upkeep import add
    from pipeline.index.vectors import ArrayVectors
    from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule

    stored, asking = revision.embeddings.read_sets(part.modality, fresh), revision.query_sets(part, SET_QUERIES)
    changed = revision.sets[part.modality].followed_by(stored)
    revised = revise(
        part.modality, revision.bundle.index(part.name), part.card,
        lambda index: add(index, ArrayVectors(stored.vectors), index.ntotal), revision.sets[part.modality], changed,
        ScoreRule.from_dict(revision.embeddings.score), FragmentSets(asking.vectors, asking.offsets, asking.globals),
    )  # fmt: skip
    revision.sets[part.modality] = changed
    revision.put(grown, revised.data, revised.card())
    return revised.drift(floor)
