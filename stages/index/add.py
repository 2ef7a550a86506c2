"""`add`: more photographs into an index, in place."""

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import JointspaceError
from pipeline.printable import counted
from pipeline.run import Run
from pipeline.run.layout import Layout
from stages.commands import FOLDER, PATH, copy_option, say_next

if TYPE_CHECKING:
    from pipeline.run import Run
    from pipeline.storage.bundles import Change


@click.command("add")
@click.argument("index", type=FOLDER)
@click.argument("source", type=PATH, metavar="FOLDER")
@copy_option
def command(index: Path, source: Path, output: Path | None) -> None:
    """Add the photos of FOLDER, with their captions, to INDEX; those that it has, or that you removed, are left out.

    Instead of a folder of photos you can give a tar shard, a table, another bundle of the same model, or the run of
    INDEX after it has grown. A running `serve` follows. Run the same command again to resume.
    """
    from pipeline.storage.bundles import changing
    from pipeline.storage.card import is_index
    from stages.applied import RECORD
    from stages.closing import search_command

    with changing(index, output) as change:
        change.index.check_rows()
        if Layout(source).config.is_file() and not (source / RECORD).exists():
            total, new = _add_run(change, Run(source))
        elif is_index(source):
            total, new = _add_bundles(change, source)
        else:
            total, new = _add_photographs(change, source, output)
    logging.getLogger(__name__).info(
        "added %d of %s of %s%s", new, counted(total, "photo"), source,
        f"; {index} already has the others" if total > new else "",
    )  # fmt: skip
    say_next(lambda: search_command(output or index))


def _add_photographs(change: "Change", source: Path, output: Path | None) -> tuple[int, int]:
    """Apply the index to photographs; returns how many there are that were not removed, and how many are new."""
    from pipeline.storage.bundles import names_of, photographs_of, read_removed
    from pipeline.storage.manifest import REJECTS
    from stages.applied import added_run, apply_bundle

    folder = added_run(change.root, source)
    others = [part for part in change.index.parts if folder not in part.folder.parents]
    before = sum(part.card["images"]["count"] for part in change.index.parts if part not in others)
    removed = {f"{part.card['data_root']}/{name}" for part in change.index.parts for name in read_removed(part)}
    known = photographs_of(others)
    try:
        bundle = apply_bundle(change.home, source, folder, source.absolute().name, known=known, removed=removed)
    except JointspaceError as error:
        rejects = folder.absolute() / REJECTS
        if output is None or str(rejects) not in str(error):
            raise
        kept = shutil.copy(rejects, output.with_name(f"{output.name}.{REJECTS}"))  # since its folder is removed
        raise type(error)(str(error).replace(str(rejects), str(kept))) from error
    manifest = Run(folder).manifest
    total = sum(f"{manifest.root}/{name}" not in removed for name in names_of(manifest.images))
    if bundle is None and not before:
        shutil.rmtree(folder)
    return total, bundle.card["images"]["count"] - before if bundle else 0


def _add_bundles(change: "Change", source: Path) -> tuple[int, int]:
    """Link other bundles; returns how many photographs they have, and how many of the bundles that are not there as a
    whole."""
    from pipeline.index.gallery import open_gallery
    from pipeline.storage.bundles import KEY_COLUMNS, Bundles, link_bundle, open_bundle, photographs_of
    from pipeline.storage.card import new_addition

    known, total, new = photographs_of(change.index.parts), 0, 0
    parts = open_bundle(source).parts
    Bundles([*change.index.parts, *parts], change.home).check_rows()  # which refuses another model
    for part in parts:
        for modality in KEY_COLUMNS:
            if part.card.get(part.index_name(modality)):
                open_gallery(part, modality)  # which refuses what is not an index of ours
        photographs = photographs_of([part])
        total += len(photographs)
        if not photographs <= known:
            link_bundle(part, new_addition(change.root, source.absolute().name))
            new += len(photographs - known)
            if repeated := len(photographs & known):
                logging.getLogger(__name__).warning(
                    "%d photos of %s are found twice now; `jointspace remove` removes one of each",
                    repeated, part.folder,
                )  # fmt: skip
    return total, new


def _add_run(change: "Change", run: "Run") -> tuple[int, int]:
    """Write a bundle of those images of a run, with their sentences, that are new in it; returns how many it has, and
    how many are new."""
    import numpy as np

    from pipeline.storage.bundles import names_of, photographs_of, read_removed
    from pipeline.storage.card import new_addition
    from pipeline.storage.commit import Provenance
    from pipeline.storage.files import plain
    from pipeline.storage.json_files import require_same
    from pipeline.storage.pairs import split_ids
    from stages.bundled import write_bundle

    first, manifest = change.index.parts[0], run.manifest
    model = plain(first.card["model"], first.folder)
    models = {str(first.folder): first.card["inputs"]["model"], str(run.root): run.model(model).fingerprint}
    require_same("model", models)
    of_run = [part for part in change.index.parts if part.card["name"] == run.config.name]
    removed = {name for part in of_run for name in read_removed(part)}
    ids, known = split_ids(manifest, run.config.index.splits), photographs_of(change.index.parts)
    rows = manifest.rows("images", ids["images"])
    wanted = ~np.isin(names_of(rows), list(removed))
    new = ids["images"][wanted & [digest not in known for digest in rows["sha256"].to_pylist()]]
    if len(new):
        sentences = ids["sentences"][np.isin(manifest.sentence_images[ids["sentences"]], new)]
        folder, before = new_addition(change.root, run.config.name), change.index.card["fingerprint"]
        keys = {"settings": run.config.index.model_dump(), "beside": before, "manifest": manifest.fingerprint}
        made_by = Provenance(folder.parent, "add", 1, keys)
        write_bundle(run, model, {"images": new, "sentences": sentences}, folder, {}, made_by)
    return int(wanted.sum()), len(new)
