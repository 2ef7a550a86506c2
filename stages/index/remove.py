"""`remove`: removes photos and their captions from the indexes of a run in place, or from a copy of one index."""

import logging
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import InputError, RejectLimitError, UsageError
from pipeline.foreign.image_names import StoredPhoto, find_stored
from pipeline.printable import counted, printable
from pipeline.run import Run
from stages.commands import FILE, PATH, Command, copy_option, require_order, say_next

if TYPE_CHECKING:
    import faiss

    from pipeline.index.exact import Vectors
    from pipeline.storage.index_changes import Change, ShardSide
    from pipeline.storage.index_shard import IndexShard
    from pipeline.storage.stored_index import StoredIndex

MAX_LISTED_PHOTOS = 20
"""Maximum number of removed photos that the last message names. The number in the message counts all of them."""


@click.command("remove", cls=Command, former={"--output": "--copy-to", "--list": "--from-file"})
@click.argument("index", type=PATH)
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option(
    "--from-file", "list_path", type=FILE, metavar="FILE",
    help="Read names from this file, one per line. Lines that begin with # are comments.",
)  # fmt: skip
@click.option("--where", metavar="CONDITION", help="Remove the photos whose columns satisfy this, as in `search`.")
@click.option("--yes", is_flag=True, help="With --where: remove the photos. Without --yes, they are only listed.")
@copy_option
def command(
    index: Path, names: tuple[str, ...], list_path: Path | None, where: str | None, yes: bool, output: Path | None
) -> None:
    """Remove photos and captions from an index and its run.

    The photos are also removed from the other indexes of the run of INDEX, and the next `run` leaves them out. A NAME
    is a path as `search` prints it, a whole path, the file name of only one photo, or an id such as id:2. A name that
    could mean two photos is refused. A running `serve` shows the change. If some names match nothing or are refused,
    the other photos are removed, and the exit code is 3.
    """
    from pipeline.foreign.files import read_lines
    from pipeline.foreign.matching import some
    from pipeline.index.text_index import discard, prepare_text_index
    from pipeline.run.reading.results import search_command
    from pipeline.storage.index_changes import changing, photos_of
    from pipeline.storage.index_folder import indexes_of_run, is_index

    log = logging.getLogger(__name__)
    require_order(index, names, is_index, "remove")
    if where is not None and (names or list_path):
        raise UsageError("Give names of photos or --where CONDITION, not both.")
    lines = [*names, *(read_lines(list_path, from_pipe=True) if list_path else [])]
    with ExitStack() as stack:
        folders = [index] if output else indexes_of_run(index)
        changes = [stack.enter_context(changing(folder, output)) for folder in folders]
        if where is None:
            by_line, reasons = find_stored(lines, partial(photos_of, changes[0].index))
            found = sorted(set(chain.from_iterable(by_line.values())))
        else:
            found = _satisfying(changes[0].index, where, yes)
            reasons = {}
        if not found and not reasons:
            example = shlex.join(["jointspace", "remove", str(index), next(photos_of(changes[0].index)).whole])
            raise UsageError(f"No photo was named. Give names as `jointspace search` prints them, as in: `{example}`")
        before = _removed_before(changes[0].index, [line for line, why in reasons.items() if not why])
        unmet = [f"{line!r}{why or before.get(line, ' matches no photo')}" for line, why in reasons.items()]
        for line in unmet if len(unmet) > 1 else ():
            log.warning("%s: %s", index, printable(line))
        which = f": {unmet[0]}." if len(unmet) == 1 else ". The reasons are listed above."
        if any(not why and line not in before for line, why in reasons.items()):
            which += " Write whole paths, or names as `jointspace search` prints them."
        if not found:
            raise UsageError(f"No name matches exactly one photo of {index}{which}")
        places = _remove(changes, found)
    discard()
    for place in [output] if output else places:
        prepare_text_index(place)
    listed = printable(some([photo.shown for photo in found], MAX_LISTED_PHOTOS))
    removed = counted(len(found), "photo")
    log.info("The command has removed %s from %s: %s", removed, ", ".join(map(str, places)), listed)
    say_next(lambda: search_command(output or index))
    if unmet:
        raise RejectLimitError(
            f"{counted(len(unmet), 'name')} did not match exactly one photo of {index}{which} The photos of the"
            " other names were removed."
        )


def _removed_before(index: "StoredIndex", lines: list[str]) -> dict[str, str]:
    """Return line -> reason for the `lines` that name photos which were removed from the index before."""
    from pipeline.storage.index_changes import read_removed

    gone = [
        StoredPhoto(-1, name, None, digest, shard.card.data_root)
        for shard in index.shards
        for name, digest in read_removed(shard).items()
    ]
    _, reasons = find_stored(lines, lambda: gone)
    return {line: " was removed before" for line in lines if reasons.get(line) != ""}


def _satisfying(index: "StoredIndex", where: str, yes: bool) -> list[StoredPhoto]:
    """Return the photos of an index that satisfy the condition `where`.

    Raises UsageError if there is no such photo. If `yes` is false, the names of the photos are written to stdout, and a
    UsageError asks for the option --yes.
    """
    from pipeline.index.conditions import Predicate
    from pipeline.storage.index_changes import photos_of

    condition = Predicate(where)
    ids = set()
    for group in index.packed_table("images").groups():
        ids.update(group["image_id"].to_numpy()[condition.rows(group)].tolist())
    found = [photo for photo in photos_of(index) if photo.image_id in ids]
    if not found:
        raise UsageError(f"No photo of {index.folder} satisfies the condition {where!r}. Nothing was removed.")
    if not yes:
        for photo in found:
            click.echo(printable(photo.shown))
        raise UsageError(
            f"Nothing was removed yet. Add --yes to remove the {counted(len(found), 'photo')} listed above."
        )
    return found


def _remove(changes: "Sequence[Change]", found: list[StoredPhoto]) -> list[Path]:
    """Remove photos from all indexes, and return the folders of the indexes that had some of them.

    `found` are photos of the index of the first change. Raises InputError if an index would become empty. All photos
    are listed as removed before the first one is removed, and the first index is changed last. After a failure,
    `serve` and `ingest` therefore leave the photos out, and the same command can be repeated.
    """
    from pipeline.storage.index_changes import photos_of

    paths = {photo.whole for photo in found}
    chosen = set(found)
    # If the index has a file twice, and only one of the two photos is removed, the other indexes keep the file.
    paths -= {one.whole for one in photos_of(changes[0].index) if one not in chosen}
    photos = [found, *([one for one in photos_of(change.index) if one.whole in paths] for change in changes[1:])]
    for change, gone in zip(changes, photos, strict=True):
        if gone and len(gone) == sum(1 for _ in photos_of(change.index)):
            raise InputError(
                f"Nothing was removed, because the command would remove every photo of {change.home}"
                f" ({counted(len(gone), 'photo')}). To remove the whole index, delete this folder."
            )
    for change in changes:
        _list_removed(change, [photo for photo in found if photo.whole in paths])
    for change, gone in reversed([*zip(changes, photos, strict=True)]):
        ids = {photo.image_id for photo in gone}
        for shard, shift in zip(change.index.shards, change.index.shifts, strict=True):
            _remove_from(shard, {image_id - shift["image_id"] for image_id in ids}, change.folder(shard))
    return [change.home for change, gone in zip(changes, photos, strict=True) if gone]


def _list_removed(change: "Change", photos: list[StoredPhoto]) -> None:
    """Add photos to the lists of removed photos of an index. A photo is listed in the first index shard that has photos
    of the same collection folder."""
    from pipeline.storage.batch import publish_text
    from pipeline.storage.index_changes import format_removed, read_removed
    from pipeline.storage.index_folder import REMOVED

    for root in {photo.root for photo in photos}:
        for shard in [shard for shard in change.index.shards if shard.card.data_root == root][:1]:
            names = read_removed(shard) | {photo.name: photo.sha256 for photo in photos if photo.root == root}
            publish_text(change.folder(shard) / REMOVED, format_removed(names))


def _remove_from(shard: "IndexShard", named: set[int], output: Path) -> None:
    """Write one index shard to `output` without the images in `named`, a set of image ids of this shard.

    Nothing is written if the shard has none of these images.
    """
    import numpy as np

    from pipeline.index.build import remove, remove_and_renumber
    from pipeline.index.format import write_index
    from pipeline.index.gallery import open_faiss, remember_indexes
    from pipeline.storage.index_changes import Revision, sides_of
    from pipeline.storage.index_shard import IndexShard

    gone = np.array(sorted(named), np.int64)
    revision = Revision(shard, output)
    sides = sides_of(shard)
    if not np.isin(sides[0].owners[sides[0].alive], gone).any():
        return
    for side in sides:
        rows = side.alive[np.isin(side.owners[side.alive], gone)]
        less = side.without(rows)
        index = open_faiss(shard, side.modality, to_change=True)
        if side.outline is None:
            rest = partial(_rest, shard, less, index)
            changed, factory = remove(index, rows, less.alive, rest, side.card)
        else:
            changed = remove_and_renumber(index, side.outline.positions(rows))
            factory = side.card.factory
        revision.put(less, partial(write_index, changed), factory)
    revision.commit()
    remember_indexes(IndexShard(output))


def _rest(shard: "IndexShard", side: "ShardSide", index: "faiss.Index") -> "Vectors":
    """Return the vectors of the remaining rows of `side`, which are the images or the captions of `shard`.

    They are read from the FAISS `index` of this side, or from the embeddings of the run if the FAISS index stores only
    rounded vectors. Raises UsageError if the FAISS index stores only rounded vectors and is not in a run.
    """
    from pipeline.config.loading import load
    from pipeline.index.build import exact_vectors
    from pipeline.index.exact import Vectors
    from pipeline.index.filtering import is_exact
    from pipeline.storage.files import plain
    from pipeline.storage.index_changes import require_numbering, sides_of

    index_folder = next((folder for folder in shard.folder.absolute().parents if folder.name == "index"), None)
    if is_exact(index) or index_folder is None:
        return exact_vectors(index, side.alive, f"{shard.folder}/{side.name}.faiss")
    # The default configuration is used, because the run's configuration could name code that would be imported, and the
    # user has not named the run.
    embeddings = Run(index_folder.parent, load()).embeddings(plain(shard.card.model, shard.folder))
    require_numbering(shard, sides_of(shard), embeddings)
    return Vectors(embeddings.rows_of(side.modality, side.ids[side.alive]))
