"""The folder of an index: the places of its shards and additions, and the rules for the rows of its tables.

A path in a table is relative and plain, so that it names a photo below the folder of the photos and nothing else. An id
is a name and not a size: it is below ID_LIMIT, and readers that look rows up by id do not count up to the largest.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.errors import IntegrityError, meant
from pipeline.storage.card import CARD
from pipeline.storage.files import SHOWN, first_unplain, inside, is_regular, require_no_links
from pipeline.storage.json_files import read_json

ADDED = "added"
"""Folder of an index: the index shards, or runs of `apply`, that `add` has put there, each in `<number>-<name>`."""
REMOVED = "removed.txt"
"""List in the folder of an index shard of the photos that `remove` has taken out, one per line. `ingest` leaves them
out."""
CHANGING = (
    *("images.faiss", "sentences.faiss", "regions.faiss", "words.faiss", "images.parquet", "sentences.parquet"),
    *("images.tradeoff.json", "sentences.tradeoff.json", "regions.tradeoff.json", "words.tradeoff.json"),
    *("fragments.safetensors", "background.safetensors", "vocabulary.json"),
)
"""Files that some index shards have and others lack."""
COLUMNS = {
    "images": pa.schema(
        [
            ("image_id", pa.int64()), ("path", pa.string()), ("split", pa.string()), ("sha256", pa.string()),
            ("member", pa.string()), ("offset", pa.int64()), ("size", pa.int64()),
        ]
    ),
    "sentences": pa.schema([("sentence_id", pa.int64()), ("image_id", pa.int64()), ("text", pa.string())]),
}  # fmt: skip
"""The columns that readers need; a collection's own columns may follow."""
NUMBER = {"images": "image_id", "sentences": "sentence_id"}
"""The column of each row's id."""
ID_LIMIT, SIZE_LIMIT = 1 << 31, 1 << 62
IDS, PLACES = ("image_id", "sentence_id"), ("path", "member")
DISTRUST = "get the index again from somebody you trust"


# --- rows


def require_plain_rows(path: Path, rows: pa.Table, first: int) -> None:
    """Check some columns of the table at `path`, `rows`, which begin with the row `first`. Raises IntegrityError that
    names the first wrong row."""
    limits = {**dict.fromkeys(IDS, ID_LIMIT), "offset": SIZE_LIMIT, "size": SIZE_LIMIT}
    for name in limits.keys() & set(rows.column_names):
        numbers = rows[name].to_numpy()  # of a column with nulls, floats with NaN
        missing = np.isnan(numbers) if rows[name].null_count else np.zeros(len(numbers), bool)
        wrong = (numbers < 0) | (numbers >= limits[name]) | (missing if name in IDS else False)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = "null" if missing[row] else int(numbers[row])
            raise IntegrityError(
                f"{path} row {first + row}: its {name} is {value}, not from 0 to {limits[name] - 1}; {DISTRUST}"
            )
    for name in set(PLACES) & set(rows.column_names):
        names = rows[name].to_pylist()
        if (place := first_unplain(names)) is not None:
            addition = next((folder for folder in path.parents if folder.parent.name == ADDED), None)
            remedy = f"delete {addition} and `add` the photos again" if addition else "repeat the `run` or `apply`"
            raise IntegrityError(
                f"{path} row {first + place}: its {name} {repr(names[place])[:SHOWN]} is not a plain relative name; if"
                f" the index is your own, rename that photo and {remedy}; otherwise {DISTRUST}"
            )


def require_distinct(path: Path, table: pa.Table, name: str) -> None:
    """Raises IntegrityError naming a row whose id in the column `name` another row has too."""
    ids = table[name].to_numpy()
    first = np.unique(ids, return_index=True)[1]
    if len(first) < len(ids):
        row = int(np.setdiff1d(np.arange(len(ids)), first)[0])
        raise IntegrityError(f"{path} row {row}: its {name} {ids[row]} is the {name} of another row; {DISTRUST}")


# --- folders


def numbered(folder: Path, number: int) -> Path:
    """Return the folder of one of several shards of the index in `folder`."""
    return folder / f"{number:02d}"


def listed(folder: Path) -> list[str]:
    """Return the names of the files of the index shard in `folder`, or none if its card cannot be read."""
    try:
        return list(read_json(folder / CARD)["files"])
    except (OSError, IntegrityError, KeyError, TypeError):
        return []


def remove_files(folder: Path, names: Iterable[str]) -> None:
    """Remove these files in `folder`, as far as they are there, and the folders that become empty; what else is there
    stays. Raises IntegrityError for a name that leads outside."""
    files = [inside(folder, name, folder / CARD) for name in names]
    for path in files:
        if is_regular(path):
            path.unlink()
    folders = {parent for path in files for parent in path.parents if folder in parent.parents}
    for parent in sorted(folders, reverse=True):
        with suppress(OSError):  # not empty
            parent.rmdir()


def remove_shard(folder: Path) -> None:
    """Remove the index shard in `folder`: first the card, and then the files that it lists."""
    if not is_regular(folder / CARD):
        return
    names = list(read_json(folder / CARD)["files"])
    (folder / CARD).unlink(missing_ok=True)
    remove_files(folder, names)
    with suppress(OSError):  # not empty
        folder.rmdir()


def shards_in(folder: Path) -> list[Path]:
    """Return `folder` if it is an index shard, or else the shards below it in the order of their numbers or names.

    Raises IntegrityError if there is none, and for a link in a shard or between it and `folder`, which may itself be a
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
    remedy = meant(str(folder), known) or f"did you mean {min(known)}? " if known else ""
    raise IntegrityError(f"{folder} {reason}; {remedy}name an index such as results/demo/index/ncca")


def home_of(shards: Sequence[Path]) -> Path:
    """Return the folder of the index that has its own shards in these folders."""
    return shards[0] if len(shards) == 1 else shards[0].parent


def added_to(home: Path) -> list[Path]:
    """Return the shards that were added to the index in the folder `home`, in the order of their numbers."""
    require_no_links(home, home / ADDED)
    folders = [folder for folder in (home / ADDED).glob("*-*") if folder.name.partition("-")[0].isdecimal()]
    folders.sort(key=lambda folder: int(folder.name.partition("-")[0]))
    return [shard for folder in folders if is_index(folder) for shard in shards_in(folder)]


def is_index(folder: Path) -> bool:
    """Return whether there is an index in `folder` or below."""
    return bool(_near(folder))


def new_addition(home: Path, name: str) -> Path:
    """Return the folder of one more addition."""
    names = (folder.name.partition("-")[0] for folder in (home / ADDED).glob("*-*"))
    numbers = [int(name) for name in names if name.isdecimal()]
    return home / ADDED / f"{max(numbers, default=-1) + 1:02d}-{name}"


def indexes_of_run(folder: Path) -> list[Path]:
    """Return the folder of an index and then the folders of the other indexes of its run. An index outside of a run is
    alone, and a link in the run's folder is not followed."""
    home = Path(os.path.abspath(home_of(shards_in(folder))))
    if home.parent.name != "index" or not is_regular(home.parents[1] / "manifest" / "manifest.json"):
        return [folder]
    shown = [path for path in sorted(home.parent.iterdir()) if not (path.is_symlink() or path.name.startswith("."))]
    others = [path for path in shown if path != home and is_index(path)]
    return [folder, *(others if folder.is_absolute() else map(Path, map(os.path.relpath, others)))]


def several(folder: Path, shards: Collection[Path]) -> IntegrityError:
    """Return the error for a folder with several indexes, among which the user has to choose."""
    names = sorted(shard.relative_to(folder).as_posix() for shard in shards)
    return IntegrityError(f"{folder} is not one index; it holds indexes: {', '.join(names)}: give {folder / names[-1]}")


def _below(folder: Path) -> list[Path]:
    """Return the cards of the index shards of a run, of a folder of indexes, or of one index."""
    cards = {card for pattern in ("*", "*/*", "index/*/*") for card in folder.glob(f"{pattern}/{CARD}")}
    shown = [
        card
        for card in cards
        if not any(part.startswith(".") or part == ADDED for part in card.relative_to(folder).parts)
    ]
    return sorted(shown, key=lambda card: [(len(part) if part.isdecimal() else 0, part) for part in card.parts])


def _near(folder: Path) -> list[Path]:
    """Return the card in `folder`, or the cards of the index shards below it."""
    return [folder / CARD] if (folder / CARD).is_file() else _below(folder)
