"""`index-add`: a bundle with the images and sentences that were added to the manifest, or with those of another."""

from pathlib import Path

import click

from stages.commands import CONFIG, FOLDER, RUN, begin, bundle, output, say_next


@click.command("index-add")
@bundle
@click.option(*RUN[0], **RUN[1] | {"required": False, "help": "Folder of the bundle's run, which has grown."})
@click.option("--from", "other", type=FOLDER, help="Another bundle of the same model instead, such as `apply` makes.")
@click.option(*CONFIG[0], **CONFIG[1])
@output(FOLDER, "Folder of the new bundle; the old one stays as it is.")
def command(root: Path | None, other: Path | None, config_path: Path | None, bundle_folder: Path, output: Path) -> None:
    """Add to a bundle's indices what is new in its run's manifest, or another bundle's photographs and sentences, and
    measure how far these have drifted."""
    import logging
    from functools import partial

    import numpy as np

    from pipeline import config
    from pipeline.device import find_gpu
    from pipeline.errors import UsageError
    from pipeline.index import lists_on_gpu
    from pipeline.index.build_gallery import queries_of
    from pipeline.index.joining import JoinedBundles
    from pipeline.index.upkeep import add, revise
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.pairs import split_ids
    from pipeline.storage.revision import Revision
    from pipeline.storage.sources import ROOT
    from stages import piece_upkeep
    from stages.closing import search_command
    from stages.inputs import read_bundled_embeddings

    if (root is None) == (other is None):
        raise UsageError("give either --run, the run of the bundle, or --from, another bundle of its model")
    more, log = {}, logging.getLogger(__name__)
    pieces = bool(Bundle(bundle_folder).pieces("images"))
    if root is not None:
        run = begin(root, config_path)
        whole, embeddings = run.config, read_bundled_embeddings(run, bundle_folder)
        if pieces:
            piece_upkeep.add(bundle_folder, output, run, embeddings)
            say_next(lambda: search_command(output))
            return
        wanted = {name: ids[:] for name, ids in split_ids(run.manifest, whole.index.splits).items()}
    else:
        whole = config.load(config_path)
        if pieces:
            piece_upkeep.join(bundle_folder, output, other, whole.index)
            say_next(lambda: search_command(output))
            return
        embeddings = JoinedBundles(Bundle(bundle_folder), Bundle(other), ROOT)
        wanted, more = embeddings.fresh, {"more_roots": embeddings.roots}
    lists_on_gpu.use(find_gpu(whole.device))
    revision = Revision(bundle_folder, embeddings, output)
    for part in revision.parts:
        fresh = np.setdiff1d(wanted[part.modality], part.ids)
        table = getattr(embeddings.manifest, part.modality).take(fresh)
        grown = part.followed_by(table, embeddings.outline(part.modality, fresh))
        first = len(part.ids) if part.outline is None else len(part.numbers)
        change = partial(add, vectors=embeddings.rows_of(part.modality, fresh), first=first)
        data, queries = revision.bundle.index(part.name), revision.queries(part, queries_of(embeddings.multi_vector))
        revised = revise(data, part, grown, revision.vectors, change, queries, embeddings.comparison)
        revision.put(grown, revised.data, revised.card())
        log.info("%d %s added; %s", len(fresh), part.modality, revised.drift(whole.index.recall_floor))
    revision.commit(**more)
    say_next(lambda: search_command(output))
