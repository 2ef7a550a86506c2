"""`index-remove`: a bundle without some images and their sentences."""

from pathlib import Path

import click

from stages.commands import CONFIG, FILE, FOLDER, RUN, begin, bundle, output, say_next


@click.command("index-remove")
@bundle
@click.option("--image", "images", type=click.IntRange(min=0), multiple=True, help="An image_id; may be repeated.")
@click.option("--list", "list_path", type=FILE, help="File with an image_id on each line.")
@click.option(
    *RUN[0],
    **RUN[1] | {"required": False, "help": "Folder of the bundle's run. [default: take the bundle's own vectors]"},
)
@click.option(*CONFIG[0], **CONFIG[1])
@output(FOLDER, "Folder of the new bundle; the old one stays as it is.")
def command(
    root: Path | None, config_path: Path | None, bundle_folder: Path, images: tuple[int, ...], list_path: Path | None,
    output: Path,
) -> None:  # fmt: skip
    """Remove images and their sentences from a bundle's indices, and measure how far these have drifted."""
    import logging
    from functools import partial

    import numpy as np

    from pipeline import config
    from pipeline.errors import InputError, UsageError
    from pipeline.index.build_gallery import queries_of
    from pipeline.index.joining import BundleItems
    from pipeline.index.upkeep import drop, factory_without, remove, revise, setting_of
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.revision import Revision
    from pipeline.storage.tables import read_numbers
    from stages import piece_upkeep
    from stages.closing import search_command
    from stages.inputs import read_bundled_embeddings

    named = {*images, *(read_numbers(list_path) if list_path else ())}
    if not named:
        raise UsageError("no image is named; give --image or --list")
    if Bundle(bundle_folder).pieces("images"):
        piece_upkeep.remove(bundle_folder, output, np.array(sorted(named), np.int64))
        say_next(lambda: search_command(output))
        return
    log = logging.getLogger(__name__)
    if root is not None:
        run = begin(root, config_path)
        settings, embeddings = run.config.index, read_bundled_embeddings(run, bundle_folder)
    else:
        settings, embeddings = config.load(config_path).index, BundleItems(Bundle(bundle_folder))
    revision = Revision(bundle_folder, embeddings, output)
    if unknown := named.difference(revision.parts[0].ids[revision.parts[0].alive].tolist()):
        raise InputError(f"image {min(unknown)} is not in {bundle_folder}; name one that is")
    gone = np.array(sorted(named), np.int64)
    for part in revision.parts:
        rows = part.alive[np.isin(part.owners[part.alive], gone)]
        less, factory, changed = part.without(rows), part.card["factory"], {}
        if part.outline is None:
            changed = {"factory": factory_without(factory)}
            kept = {"rest": revision.vectors(less), "rest_ids": less.alive, "metric": embeddings.metric}
            change = partial(remove, ids=rows, factory=factory, setting=setting_of(part.card), **kept)
        else:
            change = partial(drop, places=part.outline.places(rows))
        data, queries = revision.bundle.index(part.name), revision.queries(part, queries_of(embeddings.multi_vector))
        revised = revise(data, part, less, revision.vectors, change, queries, embeddings.comparison)
        revision.put(less, revised.data, {**changed, **revised.card()})
        log.info("%d %s removed; %s", len(rows), part.modality, revised.drift(settings.recall_floor))
    revision.commit()
    say_next(lambda: search_command(output))
