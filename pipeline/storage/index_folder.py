"""The folder of an index: the folders of its shards and additions, and the checks of the rows of its tables.

A path in a table must be relative and plain, so that it can only name a photo below the folder of the photos. An id
must be below ID_LIMIT. Readers must not allocate memory in proportion to the largest id, because an id identifies a row
and does not count anything.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, did_you_mean
from pipeline.storage.card import CARD
from pipeline.storage.files import MAX_NAME_CHARACTERS, first_unplain, inside, is_regular, require_no_links
from pipeline.storage.json_files import read_json

ADDED = "added"
"""The subfolder of an index for its additions. `add` writes each addition into a new folder `<number>-<name>`, either
as an index shard or as a run of `apply` that contains an index shard."""
REMOVED = "removed.txt"
"""The file of an index shard that lists the photos that `remove` has removed, one per line. `ingest` ignores these
photos."""
CHANGING = (
    *("images.faiss", "sentences.faiss", "regions.faiss", "words.faiss", "images.parquet", "sentences.parquet"),
    *("images.tradeoff.json", "sentences.tradeoff.json", "regions.tradeoff.json", "words.tradeoff.json"),
    *("fragments.safetensors", "background.safetensors", "vocabulary.json"),
)
"""Files that an index shard may have besides its card, model and encoders. When a new shard is written over an older
shard, these files are replaced or removed, even if the older shard has lost its card."""
COLUMNS = {
    "images": pa.schema(
        [
            ("image_id", pa.int64()), ("path", pa.string()), ("split", pa.string()), ("sha256", pa.string()),
            ("member", pa.string()), ("offset", pa.int64()), ("size", pa.int64()),
        ]
    ),
    "sentences": pa.schema([("sentence_id", pa.int64()), ("image_id", pa.int64()), ("text", pa.string())]),
}  # fmt: skip
"""The columns of each table that readers need. The collection's own columns may follow."""
NUMBER = {"images": "image_id", "sentences": "sentence_id"}
"""Modality -> the column of its table that contains the id of each row."""
ID_LIMIT = 1 << 31
"""Ids in a table must be below this number."""
SIZE_LIMIT = 1 << 62
"""Offsets and sizes in a table, in bytes, must be below this number."""
ID_COLUMNS = ("image_id", "sentence_id")
SIZE_COLUMNS = ("offset", "size")
PATH_COLUMNS = ("path", "member")
DISTRUST = "Copy the index again from a source that you trust."


# --- rows


def require_plain_rows(path: Path, rows: pa.Table, first: int) -> None:
    """Check the ids, sizes and paths in some rows of the table in the file `path`.

    `rows` contains some or all columns of these rows, and `first` is the number of its first row in the table. Raises
    IntegrityError that names the first wrong row of a column.
    """
    limits = {**dict.fromkeys(ID_COLUMNS, ID_LIMIT), **dict.fromkeys(SIZE_COLUMNS, SIZE_LIMIT)}
    for name in limits.keys() & set(rows.column_names):
        numbers = rows[name].to_numpy()  # A column with nulls becomes floats with NaN.
        missing = np.isnan(numbers) if rows[name].null_count else np.zeros(len(numbers), bool)
        wrong = (numbers < 0) | (numbers >= limits[name]) | (missing if name in ID_COLUMNS else False)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = "null" if missing[row] else int(numbers[row])
            raise IntegrityError(
                f"{path} row {first + row}: {name} is {value}, but must be from 0 to {limits[name] - 1}. {DISTRUST}"
            )
    for name in set(PATH_COLUMNS) & set(rows.column_names):
        names = rows[name].to_pylist()
        if (row := first_unplain(names)) is not None:
            addition = next((folder for folder in path.parents if folder.parent.name == ADDED), None)
            remedy = (
                f"delete {addition} and add the photos again with `jointspace add`"
                if addition
                else "repeat `jointspace run` or `jointspace apply`"
            )
            raise IntegrityError(
                f"{path} row {first + row}: the {name} {repr(names[row])[:MAX_NAME_CHARACTERS]} is not a plain relative"
                f" name. If you made the index yourself, rename that photo and {remedy}. If you did not, do not use"
                f" this index. {DISTRUST}"
            )


def require_distinct(path: Path, table: pa.Table, name: str) -> None:
    """Raise IntegrityError that names a row of the file `path` if an earlier row has the same id in the column
    `name`."""
    ids = table[name].to_numpy()
    first = np.unique(ids, return_index=True)[1]
    if len(first) < len(ids):
        row = int(np.setdiff1d(np.arange(len(ids)), first)[0])
        raise IntegrityError(f"{path} row {row}: an earlier row has the {name} {ids[row]} too. {DISTRUST}")


# --- folders


def numbered(folder: Path, number: int) -> Path:
    """Return the folder of the shard `number` of an index with several shards. `folder` is the folder of the index."""
    return folder / f"{number:02d}"


def listed(folder: Path) -> list[str]:
    """Return the names of the files on the card of the index shard in `folder`.

    The list is empty if the card cannot be read.
    """
    try:
        return list(read_json(folder / CARD)["files"])
    except (OSError, IntegrityError, KeyError, TypeError):
        return []


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove the files `names` in `folder` if they exist, and the subfolders that become empty.

    All other files stay. Raises IntegrityError for a name that leads out of `folder`, before anything is removed.
    """
    files = [inside(folder, name, folder / CARD) for name in names]
    for path in files:
        if is_regular(path):
            path.unlink()
    folders = {parent for path in files for parent in path.parents if folder in parent.parents}
    for parent in sorted(folders, reverse=True):
        with suppress(OSError):  # The folder stays if it is not empty.
            parent.rmdir()


def remove_shard(folder: Path) -> None:
    """Remove the index shard in `folder`: first its card, then the files on the card, and the folder if it is empty.

    Nothing is removed if the folder has no card. Raises IntegrityError if the card is damaged, and then removes
    nothing. Raises IntegrityError too if the card lists a file outside of `folder`, after only the card has been
    removed.
    """
    if not is_regular(folder / CARD):
        return
    names = list(read_json(folder / CARD)["files"])
    (folder / CARD).unlink(missing_ok=True)
    remove_files(folder, names)
    with suppress(OSError):  # The folder stays if it is not empty.
        folder.rmdir()


def shards_in(folder: Path) -> list[Path]:
    """Return the folders of the index shards in `folder`: `folder` itself if it is a shard, or the shards below it.

    The shards are sorted by their numbers or names. Raises IntegrityError if there is no shard. Raises IntegrityError
    too if a shard contains a link, or if a folder between `folder` and a shard is a link. `folder` itself may be a
    link.
    """
    shards = [folder] if os.path.lexists(folder / CARD) else [card.parent for card in _below(folder)]
    for shard in shards:
        require_no_links(folder, shard)
    if shards:
        return shards
    reason = f"is not an index: it has no {CARD}" if folder.exists() else "does not exist"
    near = [card.parent for above in folder.absolute().parents[:2] for card in _near(above)]
    known = {str(path) if folder.is_absolute() else os.path.relpath(path) for path in near}
    remedy = did_you_mean(str(folder), known) or f"Did you mean {min(known)}? " if known else ""
    raise IntegrityError(f"{folder} {reason}. {remedy}Name the folder of an index, such as results/demo/index/ncca.")


def home_of(shards: Sequence[Path]) -> Path:
    """Return the folder of the index whose own shards are in the folders `shards`.

    This is the folder itself if `shards` has only one folder, and otherwise the parent of the folders. `shards` must
    not have the folders of shards that were added later.
    """
    return shards[0] if len(shards) == 1 else shards[0].parent


def added_to(home: Path) -> list[Path]:
    """Return the folders of the shards that were added to the index in the folder `home`, in the order of their
    numbers. Raises IntegrityError if the folder ADDED is a link or contains a link."""
    require_no_links(home, home / ADDED)
    folders = [folder for folder in (home / ADDED).glob("*-*") if folder.name.partition("-")[0].isdecimal()]
    folders.sort(key=lambda folder: int(folder.name.partition("-")[0]))
    return [shard for folder in folders if is_index(folder) for shard in shards_in(folder)]


def is_index(folder: Path) -> bool:
    """Return whether `folder` is an index shard or has one below it."""
    return bool(_near(folder))


def new_addition(home: Path, name: str) -> Path:
    """Return the path of a new folder for the next addition `name` to the index in `home`. The folder is not made."""
    names = (folder.name.partition("-")[0] for folder in (home / ADDED).glob("*-*"))
    numbers = [int(name) for name in names if name.isdecimal()]
    return home / ADDED / f"{max(numbers, default=-1) + 1:02d}-{name}"


def indexes_of_run(folder: Path) -> list[Path]:
    """Return the folder of an index, followed by the folders of the other indexes of its run.

    An index outside of a run has no others. Links in the folder of the run are not followed.
    """
    home = Path(os.path.abspath(home_of(shards_in(folder))))
    if home.parent.name != "index" or not is_regular(home.parents[1] / "manifest" / "manifest.json"):
        return [folder]
    shown = [path for path in sorted(home.parent.iterdir()) if not (path.is_symlink() or path.name.startswith("."))]
    others = [path for path in shown if path != home and is_index(path)]
    return [folder, *(others if folder.is_absolute() else map(Path, map(os.path.relpath, others)))]


def several(folder: Path, shards: Collection[Path]) -> IntegrityError:
    """Return the error for a folder that contains several indexes. The error tells the user to name one of the
    indexes."""
    names = sorted(shard.relative_to(folder).as_posix() for shard in shards)
    return IntegrityError(
        f"{folder} contains several indexes: {', '.join(names)}. Name one of them, such as {folder / names[-1]}."
    )


def _below(folder: Path) -> list[Path]:
    """Return the paths of the cards one or two levels below `folder`, and two levels below its subfolder `index`.

    `folder` may be a run, a folder of indexes, or an index with several shards. Cards in hidden folders and in
    additions (ADDED) are left out. The cards are sorted by the numbers or names of their folders.
    """
    cards = {card for pattern in ("*", "*/*", "index/*/*") for card in folder.glob(f"{pattern}/{CARD}")}
    shown = [
        card
        for card in cards
        if not any(part.startswith(".") or part == ADDED for part in card.relative_to(folder).parts)
    ]
    return sorted(shown, key=lambda card: [(len(part) if part.isdecimal() else 0, part) for part in card.parts])


def _near(folder: Path) -> list[Path]:
    """Return the path of the card in `folder`. If `folder` has no card, return the paths of the cards that `_below`
    finds, or an empty list."""
    return [folder / CARD] if (folder / CARD).is_file() else _below(folder)
