"""`remove`: photographs and their sentences out of an index, in place."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError, RejectLimitError, UsageError
from pipeline.printable import counted
from pipeline.run import Run
from stages.commands import FILE, FOLDER, copy_option, say_next

if TYPE_CHECKING:
    import faiss

    from pipeline.index.vectors import Vectors
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.bundles import Bundles, Modality

NUMBER = re.compile(r"0|[1-9][0-9]*")


@click.command("remove")
@click.argument("index", type=FOLDER)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--list", "list_path", type=FILE, help="File with more names, one per line; # begins a comment.")
@copy_option
def command(index: Path, names: tuple[str, ...], list_path: Path | None, output: Path | None) -> None:
    """Remove photos and their captions from INDEX; a NAME is a path or image_id as `search` prints it.

    A running `serve` follows, and the next `run` leaves them out too. If some names match nothing, the others are
    removed, and the exit code is 3.
    """
    from pipeline.plain_files import read_lines
    from pipeline.storage.bundles import changing
    from stages.closing import search_command

    log = logging.getLogger(__name__)
    lines = [*names, *(read_lines(list_path, from_pipe=True) if list_path else [])]
    with changing(index, output) as change:
        there, gone, unmet = _find(change.index, lines)
        for line in unmet:
            log.warning("%s has no photo called %s", index, line)
        if not gone:
            raise UsageError(f"no name matches a photo of {index}; give names as `search` prints them")
        if len(gone) == there:
            raise InputError(
                f"these are all {there} photos of {index}, so nothing would be left to search; to remove the whole"
                " index, delete that folder"
            )
        for part, shift in zip(change.index.parts, change.index.shifts, strict=True):
            _remove_from(part, {image_id - shift["image_id"] for image_id in gone}, change.folder(part))
    log.info("%s removed, %s left", counted(len(gone), "photo"), f"{there - len(gone):,}")
    say_next(lambda: search_command(output or index))
    if unmet:
        raise RejectLimitError(
            f"{len(unmet)} names match no photo in {index}, first {unmet[0]}; the others were removed"
        )


def _find(index: "Bundle | Bundles", lines: list[str]) -> tuple[int, set[int], list[str]]:
    """The number of images in an index, the ids of those that the `lines` name, and the lines that name none. A line is
    an id if it is a number without leading zeros, else a path, a name in a shard, or a sample's key there."""
    from posixpath import join, split

    from pipeline.image_names import Readings, Spelling, Takedown

    takedown = Takedown(lines, Readings(index.card.get("data_root")))

    def images() -> Iterator[tuple[int, str, str | None]]:
        for group in index.packed_table("images").groups(["image_id", "path", "member"]):
            there = group.filter(group["path"].is_valid())
            yield from zip(*(column.to_pylist() for column in there.columns), strict=True)

    def by_id() -> Iterator[Spelling]:
        return (Spelling(str(image_id), image_id) for image_id, _, _ in images())

    def by_name() -> Iterator[Spelling]:
        for image_id, path, member in images():
            yield Spelling(path, image_id)
            if member is not None:
                parent, name = split(member)
                for inside in (member, f"{path}/{member}", f"{path}::{member}", join(parent, name.partition(".")[0])):
                    yield Spelling(inside, image_id)

    ids: set[int] = set()
    numbers = [line for line in takedown.lines if NUMBER.fullmatch(line.strip())]
    names = [line for line in takedown.lines if not NUMBER.fullmatch(line.strip())]
    for wanted, spellings in ((numbers, by_id), (names, by_name)):
        for line, match in takedown.readings.match(wanted, spellings):
            if takedown.meets(line, match):
                ids.update(match.targets)
    return sum(1 for _ in images()), ids, takedown.unmet()


def _remove_from(bundle: "Bundle", named: set[int], output: Path) -> None:
    """Write one bundle to `output` without those of the images `named` that it has, and list these for `ingest`."""
    import numpy as np

    from pipeline.index.format import to_bytes
    from pipeline.index.gallery import open_index, remember_indexes
    from pipeline.index.upkeep import drop, remove
    from pipeline.storage.batch import publish_text
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.bundles import Revision, modalities, names_of, read_removed
    from pipeline.storage.card import REMOVED

    gone = np.array(sorted(named), np.int64)
    revision, parts = Revision(bundle, output), modalities(bundle)
    images = parts[0].table.take(parts[0].alive)
    if not (names := names_of(images.filter(np.isin(images["image_id"], gone)))):
        return
    for part in parts:
        rows = part.alive[np.isin(part.owners[part.alive], gone)]
        less, index = part.without(rows), open_index(bundle, part.modality, to_change=True)
        if part.outline is None:
            changed, factory = remove(
                index, rows, less.alive, lambda index=index, less=less: _rest(bundle, less, index), part.card
            )
        else:
            changed, factory = drop(index, part.outline.places(rows)), part.card["factory"]
        revision.put(less, to_bytes(changed), factory)
    publish_text(output / REMOVED, "".join(f"{name}\n" for name in [*read_removed(bundle), *names]))
    revision.commit()
    remember_indexes(Bundle(output))


def _rest(bundle: "Bundle", part: "Modality", index: "faiss.Index") -> "Vectors":
    """The vectors of the rows of `part` that stay: of an index that has rounded them, those of the run around it."""
    from pipeline.config.loading import load
    from pipeline.index.filtering import is_exact
    from pipeline.index.upkeep import exact_vectors
    from pipeline.index.vectors import ArrayVectors
    from pipeline.storage.bundles import modalities, require_numbering
    from pipeline.storage.files import plain

    index_folder = next((folder for folder in bundle.folder.absolute().parents if folder.name == "index"), None)
    if is_exact(index) or index_folder is None:
        return exact_vectors(index, part.alive, f"{bundle.folder}/{part.name}.faiss")
    # By the defaults, since nobody has named that run, whose configuration could name code.
    embeddings = Run(index_folder.parent, load()).embeddings(plain(bundle.card["model"], bundle.folder))
    require_numbering(bundle, modalities(bundle), embeddings)
    return ArrayVectors(embeddings.rows_of(part.modality, part.ids[part.alive]))
