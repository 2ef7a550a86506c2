"""`add`: adds photos to the indexes of a run in place, or to a copy of one index."""

import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import JointspaceError, UsageError
from pipeline.printable import counted
from pipeline.run import Layout, Run
from stages.commands import FOLDER, PATH, Command, copy_option, say_next

if TYPE_CHECKING:
    import pyarrow as pa

    from pipeline.storage.index_changes import Change
    from pipeline.storage.index_shard import IndexShard
    from pipeline.storage.manifest import Manifest

BATCH_ROWS = 1 << 16
"""Maximum number of captions of the added photos that are in memory at a time while the command counts how many of them
the index lacks."""


@click.command("add", cls=Command, former={"--output": "--copy-to"})
@click.argument("index", type=FOLDER)
@click.argument("source", type=PATH, metavar="FOLDER")
@copy_option
def command(index: Path, source: Path, output: Path | None) -> None:
    """Add photos and captions to an index and its run.

    FOLDER is a folder of photos, a tar shard, a table, the run of INDEX after it has grown, or another index of the
    same model. The photos are also added to the other indexes of the run, unless FOLDER is an index. Photos that an
    index already has, or that were removed from it, are skipped. If FOLDER is an index, each of its shards with a new
    photo is added as a whole. A running `serve` shows the change. Run the same command again to resume.
    """
    from pipeline.index.text_index import prepare_text_index
    from pipeline.run.reading.application import RECORD, added_run
    from pipeline.run.reading.results import search_command
    from pipeline.storage.index_changes import changing, removed_photos
    from pipeline.storage.index_folder import indexes_of_run, is_index

    log = logging.getLogger(__name__)
    of_run = Layout(source).config.is_file() and not (source / RECORD).exists()
    with ExitStack() as stack:
        folders = [index] if output else indexes_of_run(index)
        changes = [stack.enter_context(changing(folder, output)) for folder in folders]
        removed = removed_photos(part for change in changes for part in change.index.shards)
        for folder, change in zip(folders, changes, strict=True):
            try:
                change.index.check_rows()
                if of_run:
                    total, new = _add_run(change, Run(source), removed)
                elif not is_index(source):
                    sample = None if folder == index else added_run(changes[0].root, source)
                    total, new = _add_photographs(change, source, removed, sample)
                elif folder == index:
                    total, new = _add_index(change, source, removed)
                else:
                    raise UsageError(
                        f"{source} is an index, so its photos can be added only to {index}. To add the photos to all"
                        " indexes of the run, add the folder or the table of the photos instead."
                    )
            except JointspaceError as error:
                if folder == index:
                    raise
                log.warning("The photos were not added to %s: %s", folder, error)
                continue
            log.info(
                "The command has added %d of %s of %s to %s.%s", new, counted(total, "photo"), source, folder,
                f" The index already has {'the others' if new else 'all of them'}." if total > new else "",
            )  # fmt: skip
    for folder in [output] if output else folders:
        prepare_text_index(folder)
    say_next(lambda: search_command(output or index))


def _add_photographs(change: "Change", source: Path, removed: Set[str], sample: Path | None) -> tuple[int, int]:
    """Embed photos with the model of an index, and add them to the index as a new shard.

    `change` is the change of the index, and `source` has the photos. `removed` has the hashes and paths of photos that
    were removed from the index. `sample` is the folder of the run that has added these photos to another index, so that
    its features can be reused, or None. Return the number of photos of `source` that were not removed, and the number
    of these photos that the index did not have.
    """
    from pipeline.run.reading.application import RECORD, added_run, apply_index
    from pipeline.storage.index_changes import photo_digests, were_removed
    from stages.catalogue import declared

    folder = added_run(change.root, source)
    if sample and not folder.exists():  # The features of these photos were computed for another index.
        folder.mkdir(parents=True)
        with suppress(OSError):
            os.link(sample / RECORD, folder / RECORD)
            for name in ("manifest", "encoders", "features"):
                shutil.copytree(sample / name, folder / name, copy_function=os.link)
    others = [shard for shard in change.index.shards if folder not in shard.folder.parents]
    before = sum(_count_images(shard) for shard in change.index.shards if shard not in others)
    known = photo_digests(others)
    name = source.absolute().name
    added = apply_index(declared(), change.home, source, folder, name, known=known, removed=removed)
    manifest = Run(folder).manifest
    total = int((~were_removed(manifest.images, manifest.root, removed)).sum())
    _report_left_out(change, others, manifest, total)
    if added is None and not before:
        shutil.rmtree(folder)
    return total, _count_images(added) - before if added else 0


def _count_images(shard: "IndexShard") -> int:
    return shard.card.images.count if shard.card.images else 0


def _report_left_out(change: "Change", shards: "Sequence[IndexShard]", manifest: "Manifest", total: int) -> None:
    """Log how many photos and captions of a manifest are skipped. Photos are skipped if they were removed from the
    index before. Captions are skipped if one of the `shards` already has their photo, with other captions.

    `total` is the number of photos of the manifest that were not removed from the index before.
    """
    from pipeline.storage.index_changes import photo_digests, photos_of
    from pipeline.storage.stored_index import StoredIndex

    log = logging.getLogger(__name__)
    digests = dict(enumerate(manifest.images["sha256"].to_pylist()))
    if gone := len(digests) - total:
        log.info(
            "`jointspace add` ignores %s that `jointspace remove` has removed from %s.",
            counted(gone, "photo"),
            change.home,
        )
    known = photo_digests(shards).intersection(digests.values())
    lost = _hash_captions(digests, known, manifest.sentences.to_batches(BATCH_ROWS))
    for shard in shards:
        digests = {photo.image_id: photo.sha256 for photo in photos_of(StoredIndex([shard]))}
        lost -= _hash_captions(digests, known, shard.packed_table("sentences").groups(["image_id", "text"]))
    if lost:
        log.warning(
            "Captions were not added to %s, because the index already has their photos with other captions (number of"
            " these captions: %d). Searches cannot find these captions. To change this, add the captions to the"
            " collection of the run, and repeat `jointspace run CONFIG`.",
            change.home, len(lost),
        )  # fmt: skip


def _hash_captions(digests: Mapping[int, str], known: Set[str], groups: "Iterable[pa.Table | pa.RecordBatch]") -> set:
    """Return the set of hashes of the pairs of photo and caption in `groups`, for photos whose SHA-256 is in `known`.

    `groups` are tables with the columns image_id and text. `digests` maps an image_id to the SHA-256 of the photo.
    """
    rows = (row for group in groups for row in group.to_pylist())
    pairs = ((digests.get(row["image_id"]), row["text"]) for row in rows)
    return {hash(pair) for pair in pairs if pair[0] in known}


def _add_index(change: "Change", source: Path, removed: Set[str]) -> tuple[int, int]:
    """Link the shards of the index in `source` into this index, unless this index already has all photos of a shard.
    Return the number of photos of the index in `source`, and the number of these photos that this index lacked.

    A shard is linked as a whole. A warning names the number of its photos that this index has twice now. `removed` has
    the hashes and paths of photos that were removed from this index. If a linked shard has some of these photos, they
    are added again, and a warning says so.
    """
    from pipeline.index.gallery import open_gallery
    from pipeline.storage.index_changes import link_shard, photo_digests, photos_of
    from pipeline.storage.index_folder import new_addition
    from pipeline.storage.index_shard import MODALITIES
    from pipeline.storage.stored_index import StoredIndex, open_index

    log = logging.getLogger(__name__)
    known = photo_digests(change.index.shards)
    total = 0
    new = 0
    shards = open_index(source).shards
    # `check_rows` raises an error for an index of another model.
    StoredIndex([*change.index.shards, *shards], change.home).check_rows()
    for shard in shards:
        index = StoredIndex([shard])
        for modality in MODALITIES:
            if shard.card.index_of(modality):
                open_gallery(index, modality)  # This call raises an error for a damaged or foreign index.
        photographs = photo_digests([shard])
        total += len(photographs)
        if not photographs <= known:
            link_shard(shard, new_addition(change.root, source.absolute().name))
            new += len(photographs - known)
            if repeated := len(photographs & known):
                log.warning(
                    "%d photos of %s are in this index twice now. Remove one copy of each by its id or whole path, with"
                    " `jointspace remove INDEX NAME`.",
                    repeated, shard.folder,
                )  # fmt: skip
            if back := sum(not removed.isdisjoint((photo.sha256, photo.whole)) for photo in photos_of(index)):
                log.warning(
                    "%d photos of %s were removed before and are back. If they must not be found, remove them again"
                    " with `jointspace remove`.",
                    back, shard.folder,
                )  # fmt: skip
    return total, new


def _add_run(change: "Change", run: Run, removed: Set[str]) -> tuple[int, int]:
    """Add the images of a run that the index lacks, with their sentences, as a new index shard. Images that were
    removed from the index are not added again. If no image is new, no shard is made.

    `removed` are hashes and paths of photos that were removed from the index. Return the number of images in the run's
    indexed splits that were not removed, and the number of these images that the index lacked.
    """
    import numpy as np

    from pipeline.run.reading.indexes import write_index_shard
    from pipeline.storage.commit import Provenance
    from pipeline.storage.files import plain
    from pipeline.storage.index_changes import photo_digests, were_removed
    from pipeline.storage.index_folder import new_addition
    from pipeline.storage.json_files import require_same
    from pipeline.storage.pairs import split_ids

    first = change.index.first
    manifest = run.manifest
    model = plain(first.card.model, first.folder)
    models = {str(first.folder): first.model_digest, str(run.root): run.model(model).fingerprint}
    require_same("model", models)
    ids = split_ids(manifest, run.config.index.splits)
    known = photo_digests(change.index.shards)
    kept = ~were_removed(manifest.images, manifest.root, removed)
    _report_left_out(change, change.index.shards, manifest, int(kept.sum()))
    rows = manifest.rows("images", ids["images"])
    wanted = kept[ids["images"]]
    new = ids["images"][wanted & [digest not in known for digest in rows["sha256"].to_pylist()]]
    if len(new):
        sentences = ids["sentences"][np.isin(manifest.sentence_images[ids["sentences"]], new)]
        folder = new_addition(change.root, run.config.name)
        before = change.index.card.fingerprint
        keys = {"settings": run.config.index.model_dump(), "beside": before, "manifest": manifest.fingerprint}
        made_by = Provenance(folder.parent, "add", 1, keys)
        write_index_shard(run, model, {"images": new, "sentences": sentences}, folder, made_by)
    return int(wanted.sum()), len(new)
