"""`index-add`: the bundles of a model, and one more: of what is new in their run, or another bundle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FOLDER, begin, bundle, output, run_config_option, say_next

if TYPE_CHECKING:
    import numpy as np

    from pipeline.run import Run
    from pipeline.storage.bundle import Bundle


@click.command("index-add")
@bundle
@click.option("--run", "root", type=FOLDER, help="Folder of the bundle's run, which has grown.")
@click.option("--from", "other", type=FOLDER, help="Another bundle of the same model instead, such as `apply` makes.")
@run_config_option
@output(FOLDER, "New folder of all bundles, links to the files of the old ones; these stay as they are.")
def command(root: Path | None, other: Path | None, config_path: Path | None, bundle_folder: Path, output: Path) -> None:
    """Put one more bundle beside others of its model: of the images that are new in their run, with their sentences, or
    another bundle that is there."""
    import logging

    from pipeline.errors import UsageError
    from pipeline.index.opening import open_gallery
    from pipeline.storage.batch import new_folder
    from pipeline.storage.bundles import KEY_COLUMNS, Bundles, link_bundle, open_bundle
    from pipeline.storage.card import numbered
    from stages.closing import search_command

    if (root is None) == (other is None):
        raise UsageError("give either --run, the run of the bundle, or --from, another bundle of its model")
    parts, log = open_bundle(bundle_folder).parts, logging.getLogger(__name__)
    with new_folder(output) as folder:
        if other is not None:
            added = open_bundle(other).parts
            both = Bundles([*parts, *added], bundle_folder)  # which refuses another model
            both.check_rows()
            for part in added:
                for modality in KEY_COLUMNS:
                    if part.card.get(part.index_name(modality)):
                        open_gallery(part, modality)  # which refuses what is not an index of ours
            for number, part in enumerate(both.parts):
                link_bundle(part, numbered(folder, number))
            log.info("bundles added: %d", len(added))
            if repeated := _repeated(parts, added):
                log.warning(
                    "%d photographs of %s are in %s too, and are found twice; index-remove takes one of them out",
                    repeated, other, bundle_folder,
                )  # fmt: skip
        else:
            run = begin(root, config_path)
            for part in parts:
                part.check_rows()
            ids = _new_ids(run, parts)
            for number, part in enumerate(parts):
                link_bundle(part, numbered(folder, number))
            if len(ids["images"]):
                _write_new(run, parts, ids, numbered(folder, len(parts)))
            log.info("%d images and %d sentences added", len(ids["images"]), len(ids["sentences"]))
    say_next(lambda: search_command(output))


def _write_new(run: "Run", parts: "Sequence[Bundle]", ids: "Mapping[str, np.ndarray]", folder: Path) -> None:
    """The bundle of the images and sentences `ids` of a run, which stands beside the `parts`."""
    from pipeline.storage.commit import Provenance
    from pipeline.storage.files import plain
    from stages.bundled import write_bundle

    first, settings = parts[0].card, run.config.index.model_dump()
    before = [part.card["fingerprint"] for part in parts]
    made_from = {"model": first["inputs"]["model"], "manifest": run.manifest.fingerprint}
    made_by = Provenance(folder.parent, "index_add", 1, {"settings": settings, "beside": before, **made_from})
    write_bundle(run, plain(first["model"], parts[0].folder), ids, folder, {}, made_by)


def _repeated(parts: "Sequence[Bundle]", added: "Sequence[Bundle]") -> int:
    """How many photographs are in both, by the sha256 of their files."""
    here, there = (
        {
            digest
            for bundle in bundles
            for group in bundle.packed_table("images").groups(["sha256"])
            for digest in group["sha256"].to_pylist()
            if digest
        }
        for bundles in (parts, added)
    )
    return len(here & there)


def _new_ids(run: "Run", parts: "Sequence[Bundle]") -> "dict[str, np.ndarray]":
    """The images of `index.splits` that no bundle of the run has, or had before they were removed, and their sentences.

    Other bundles may stand beside those of the run. Raises IntegrityError where the first is not of it, or one of the
    same photographs numbers them otherwise.
    """
    import logging

    import numpy as np

    from pipeline.errors import IntegrityError
    from pipeline.storage.bundles import modalities, require_numbering
    from pipeline.storage.pairs import split_ids
    from stages.bundled import read_bundled_embeddings

    manifest, embeddings = run.manifest, read_bundled_embeddings(run, parts[0])
    known = {"images": [], "sentences": []}
    for part in parts:
        tables = modalities(part)
        try:
            require_numbering(part, tables, embeddings)
        except IntegrityError:
            if part is parts[0] or part.card["data_root"] == str(manifest.root):
                raise
        else:
            for table in tables:
                known[table.modality].append(table.ids)
    wanted = split_ids(manifest, run.config.index.splits)
    images = np.setdiff1d(wanted["images"], np.concatenate(known["images"]))
    fresh = np.setdiff1d(wanted["sentences"], np.concatenate([wanted["sentences"][:0], *known["sentences"]]))
    sentences = fresh[np.isin(manifest.sentence_images[fresh], images)]
    if left := len(fresh) - len(sentences):
        logging.getLogger(__name__).warning(
            "%d new sentences are of images that are indexed already, and are left out; run build-index for them", left
        )
    return {"images": images, "sentences": sentences}
