"""`index-remove`: a bundle without some images and their sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

from stages.commands import CONFIG, FILE, FOLDER, RUN, begin, bundle, output, say_next

NUMBER = re.compile(r"0|[1-9][0-9]*")


@click.command("index-remove")
@bundle
@click.option("--image", "images", type=click.IntRange(min=0), multiple=True, help="An image_id; may be repeated.")
@click.option(
    "--list", "list_path", type=FILE,
    help="File with an image_id or a photograph's name on each line. Lines that match nothing are named, the others"
    " obeyed, and the exit code is 3.",
)  # fmt: skip
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

    from pipeline.errors import RejectLimitError, UsageError
    from stages.closing import search_command

    listed, unmet = _find_listed(bundle_folder, list_path) if list_path else (set(), [])
    for line in unmet:
        logging.getLogger(__name__).warning("%s: no photograph in %s is called %s", list_path, bundle_folder, line)
    if not (named := {*images, *listed}):
        raise UsageError(f"no image of {bundle_folder} is named; give --image, or a --list of some that it has")
    _remove(root, config_path, bundle_folder, named, output)
    say_next(lambda: search_command(output))
    if unmet:
        raise RejectLimitError(
            f"{output} is written, but {len(unmet)} lines of {list_path} match no photograph in {bundle_folder}, first"
            f" {unmet[0]}; correct them, and remove what they name from {output}"
        )


def _find_listed(folder: Path, path: Path) -> tuple[set[int], list[str]]:
    """The ids of the images in the bundle `folder` that lines of the list `path` name, and the lines that name none. A
    line is an id if it is a number without leading zeros, else a path, a name in a shard, or a sample's key there."""
    from posixpath import join, split

    from pipeline.collections.naming import Takedown
    from pipeline.image_names import Readings, Spelling
    from pipeline.plain_files import read_lines
    from pipeline.storage.bundle import Bundle

    lines = read_lines(path, from_pipe=True)
    bundle = Bundle(folder)
    takedown = Takedown(lines, Readings(bundle.card.get("data_root")))

    def images() -> Iterator[tuple[int, str, str | None]]:
        for group in bundle.packed_table("images").groups(["image_id", "path", "member"]):
            there = group.filter(group["path"].is_valid())
            yield from zip(*(column.to_pylist() for column in there.columns), strict=True)

    def by_id() -> Iterator[Spelling]:
        return (Spelling(str(image_id), image_id) for image_id, _, _ in images())

    def by_name() -> Iterator[Spelling]:
        for image_id, path, member in images():
            yield Spelling(path, image_id)
            if member is not None:
                parent, name = split(member)
                for inside in (member, f"{path}/{member}", join(parent, name.partition(".")[0])):
                    yield Spelling(inside, image_id)

    ids: set[int] = set()
    numbers = [line for line in takedown.lines if NUMBER.fullmatch(line.strip())]
    names = [line for line in takedown.lines if not NUMBER.fullmatch(line.strip())]
    for wanted, spellings in ((numbers, by_id), (names, by_name)):
        for line, match in takedown.readings.match(wanted, spellings):
            if takedown.meets(line, match):
                ids.update(match.targets)
    return ids, takedown.unmet()


def _remove(root: Path | None, config_path: Path | None, bundle_folder: Path, named: set[int], output: Path) -> None:
    """Write the bundle to `output` without the images `named`. Raises InputError for one that it does not have."""
    import logging
    from functools import partial

    import numpy as np

    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.index.build_gallery import queries_of
    from pipeline.index.joining import BundleItems
    from pipeline.index.upkeep import drop, factory_without, remove, revise, setting_of
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.revision import Revision
    from stages import piece_upkeep
    from stages.inputs import read_bundled_embeddings

    if Bundle(bundle_folder).pieces("images"):
        piece_upkeep.remove(bundle_folder, output, np.array(sorted(named), np.int64))
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
