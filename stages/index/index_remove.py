"""`index-remove`: a bundle, or several of one model, without some images and their sentences."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages.commands import FILE, FOLDER, begin, bundle, output, run_config_option, say_next

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.bundles import Bundles
    from pipeline.storage.embeddings import Embeddings

NUMBER = re.compile(r"0|[1-9][0-9]*")


@click.command("index-remove")
@bundle
@click.option("--image", "images", type=click.IntRange(min=0), multiple=True, help="An image_id; may be repeated.")
@click.option(
    "--list", "list_path", type=FILE,
    help="File with an image_id or a photograph's name on each line. Lines that match nothing are named, the others"
    " obeyed, and the exit code is 3.",
)  # fmt: skip
@click.option("--run", "root", type=FOLDER, help="Folder of the bundle's run. [default: take the bundle's own vectors]")
@run_config_option
@output(FOLDER, "Folder of the new bundle; the old one stays as it is.")
def command(
    root: Path | None, config_path: Path | None, bundle_folder: Path, images: tuple[int, ...], list_path: Path | None,
    output: Path,
) -> None:  # fmt: skip
    """Remove images and their sentences from a bundle, or from that of several which holds them."""
    import logging

    from pipeline.errors import RejectLimitError, UsageError
    from pipeline.plain_files import read_lines
    from pipeline.storage.bundles import open_bundle
    from stages.bundled import read_bundled_embeddings
    from stages.closing import search_command

    lines = read_lines(list_path, from_pipe=True) if list_path else []
    opened = open_bundle(bundle_folder)
    listed, unmet = _find_listed(opened, lines) if lines else (set(), [])
    for line in unmet:
        logging.getLogger(__name__).warning("%s: no photograph in %s is called %s", list_path, bundle_folder, line)
    if not (named := {*images, *listed}):
        raise UsageError(f"no image of {bundle_folder} is named; give --image, or a --list of some that it has")
    embeddings = read_bundled_embeddings(begin(root, config_path), opened) if root else None
    _remove(opened, embeddings, named, output)
    say_next(lambda: search_command(output))
    if unmet:
        raise RejectLimitError(
            f"{output} is written, but {len(unmet)} lines of {list_path} match no photograph in {bundle_folder}, first"
            f" {unmet[0]}; correct them, and remove what they name from {output}"
        )


def _find_listed(bundle: "Bundle | Bundles", lines: list[str]) -> tuple[set[int], list[str]]:
    """The ids of the images in a bundle that the `lines` of a list name, and the lines that name none. A line is an id
    if it is a number without leading zeros, else a path, a name in a shard, or a sample's key there."""
    from posixpath import join, split

    from pipeline.image_names import Readings, Spelling, Takedown

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


def _remove(opened: "Bundle | Bundles", embeddings: "Embeddings | None", named: set[int], output: Path) -> None:
    """Write the bundles to `output` without the images `named`; those that have none of them are links. Raises
    InputError for an image that no bundle has, and where none would be left."""
    from pipeline.errors import InputError, UsageError
    from pipeline.storage.batch import new_folder
    from pipeline.storage.bundles import link_bundle
    from pipeline.storage.card import numbered

    known, count = set(), 0
    for group in opened.packed_table("images").groups(["image_id", "sha256"]):
        alive = group.filter(group["sha256"].is_valid())["image_id"].to_pylist()
        known |= named.intersection(alive)
        count += len(alive)
    if missing := named - known:
        raise InputError(f"image {min(missing)} is not in {opened.folder}; name one that is")
    if count == len(named):
        raise InputError(f"no image would be left in {opened.folder}; delete the bundle instead")
    if len(opened.parts) == 1:
        _remove_from(opened, embeddings, named, output)
        return
    if embeddings:
        raise UsageError(f"{opened.folder} has several bundles; leave out --run: each has its own vectors")
    with new_folder(output) as folder:
        for number, (bundle, shift) in enumerate(zip(opened.parts, opened.shifts, strict=True)):
            ids = {image_id - shift["image_id"] for image_id in named}
            if not _remove_from(bundle, None, ids, numbered(folder, number)):
                link_bundle(bundle, numbered(folder, number))


def _remove_from(bundle: "Bundle", embeddings: "Embeddings | None", named: set[int], output: Path) -> bool:
    """Write one bundle to `output` without those of the images `named` that it has; False where it has none."""
    import logging

    import numpy as np

    from pipeline.index.format import from_bytes, to_bytes
    from pipeline.index.upkeep import drop, exact_vectors, remove
    from pipeline.storage.bundles import Revision, modalities, require_numbering

    gone = np.array(sorted(named), np.int64)
    if not len(bundle.packed_table("images").find("image_id", gone)):
        return False
    revision, parts = Revision(bundle, output), modalities(bundle)
    if embeddings:
        require_numbering(bundle, parts, embeddings)
    for part in parts:
        rows = part.alive[np.isin(part.owners[part.alive], gone)]
        less, path = part.without(rows), f"{bundle.folder}/{part.name}.faiss"
        index = from_bytes(bundle.index(part.name), path, part.card)

        def rest(index=index, less=less, path=path):
            if embeddings:
                return embeddings.rows_of(less.modality, less.ids[less.alive])
            return exact_vectors(index, less.alive, path)

        if part.outline is None:
            changed, factory = remove(index, rows, less.alive, rest, part.card)
        else:
            changed, factory = drop(index, part.outline.places(rows)), part.card["factory"]
        revision.put(less, to_bytes(changed), factory)
        logging.getLogger(__name__).info("%s: %d %s removed", bundle.folder, len(rows), part.modality)
    revision.commit()
    return True
