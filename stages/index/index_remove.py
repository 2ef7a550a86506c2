"""`index-remove`: a bundle without some images and their sentences."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    import numpy as np

    from pipeline.storage.revision import Part, Revision


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
    from pipeline.errors import InputError, UsageError
    from pipeline.storage.fragments import open_embedded
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.revision import Revision, forget
    from pipeline.storage.tables import read_numbers

    named = {*images, *(read_numbers(list_path) if list_path else ())}
    settings, log = config.load(config_path).index, logging.getLogger(__name__)
    revision = Revision(bundle_folder, open_embedded(Manifest(manifest_folder), embeddings_folder), output)
    if not named:
        raise UsageError("no image is named; give --image or --list")
    if unknown := named.difference(revision.parts[0].ids[revision.parts[0].alive].tolist()):
        raise InputError(f"image {min(unknown)} is not in {bundle_folder}; name one that is")
    gone = np.array(sorted(named), np.int64)
    for part in revision.parts:
        rows = part.alive[np.isin(part.owners[part.alive], gone)]
        less = replace(part, table=forget(part.table, rows))
        change = _remove_sets if revision.of_sets else _remove_vectors
        told = change(revision, part, less, rows, settings.recall_floor)
        log.info("%d %s removed; %s", len(rows), part.modality, told)
    revision.commit()


def _remove_vectors(revision: "Revision", part: "Part", less: "Part", rows: "np.ndarray", floor: float) -> str:
    """What `part` has beyond `less`, the vectors of `rows`, out of its index; how far that has drifted."""
    from pipeline.index.build import QUERIES
    from pipeline.index.format import from_bytes, to_bytes
    from pipeline.index.upkeep import examine, factory_without, remove, report_drift, setting_of

    metric, queries, factory = revision.embeddings.metric, revision.queries(part, QUERIES), part.card["factory"]
    index = from_bytes(revision.bundle.index(part.name), f"{part.name}.faiss", part.card)
    before = examine(index, revision.vectors(part, part.alive), part.alive, queries, metric)
    rest = revision.vectors(less, less.alive)
    index = remove(index, rows, factory, setting_of(part.card), rest, less.alive, metric)
    after = examine(index, rest, less.alive, queries, metric)
    changed = {"factory": factory_without(factory), **after.to_dict(), "before": before.to_dict()}
    revision.put(less, to_bytes(index), changed)
    return report_drift(before, after, floor)


def _remove_sets(revision: "Revision", part: "Part", less: "Part", rows: "np.ndarray", floor: float) -> str:
    """The same of a row of fragments, for the sets of `rows`."""
    from pipeline.index.fragment_index import SET_QUERIES
    from pipeline.index.fragment_upkeep import drop, revise
    from pipeline.metrics.fragment_scores import FragmentSets, ScoreRule

    sets, asking = revision.sets[part.modality], revision.query_sets(part, SET_QUERIES)
    changed, fragments = sets.without(rows), sets.fragments_of(rows)
    revised = revise(
        part.modality, revision.bundle.index(part.name), part.card, lambda index: drop(index, fragments), sets, changed,
        ScoreRule.from_dict(revision.embeddings.score), FragmentSets(asking.vectors, asking.offsets, asking.globals),
    )  # fmt: skip
    revision.sets[part.modality] = changed
    revision.put(less, revised.data, revised.card())
    return revised.drift(floor)
