"""Several bundles of one model, searched as one.

Their rows are numbered through, in the order of the bundles, and so are their indices. An id that an earlier bundle has
too is raised, with all ids of its bundle, above those of the bundles before; removed rows keep their ids, so that this
does not change what an id means. All else, such as the model, is that of the first bundle.

An index is a bundle, or several, and what was added to it (`card.ADDED`). A revision is a bundle from which images and
their sentences are removed; what it replaces stays whole until then.
"""

import itertools
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipeline.compute.multivectors import MultiVectors
from pipeline.errors import IntegrityError, JointspaceError, UsageError
from pipeline.foreign.files import read_lines
from pipeline.foreign.image_names import StoredPhoto, listed_name
from pipeline.storage.batch import new_folder
from pipeline.storage.bundle import Bundle, BundleWriter, forget, hide
from pipeline.storage.card import (
    CARD,
    COLUMNS,
    INDEXED,
    NUMBER,
    REMOVED,
    added_to,
    bundles_in,
    home_of,
    indexes_of_run,
    several,
)
from pipeline.storage.commit import CARRIED
from pipeline.storage.files import is_regular
from pipeline.storage.json_files import fingerprint, require_same
from pipeline.storage.locks import hold
from pipeline.storage.sources import BUNDLE, ImageSources
from pipeline.storage.tables import PackedTable, gather

if TYPE_CHECKING:
    from pipeline.storage.embeddings import Embeddings

ALIKE = ("kind", "metric", "dim")
DIGEST = re.compile(r"(.*?)(?:\t([0-9a-f]{64}))?", re.DOTALL)
"""A line of a list of removed photos: the photo's name, and its sha256, by which `add` knows it in another folder.
Earlier versions did not write the sha256."""


def open_bundle(*folders: Path, added: bool = True, run: Path | None = None) -> "Bundle | Bundles":
    """The bundle in a folder; all in it, if these are of one model, and all in several folders; with what was `added`.

    What was added to an earlier model is left out with a warning. `run` is where they came from, if a user names it.

    Raises IntegrityError as Bundle, for a folder with bundles of several models and for one that lacks some of the
    bundles that were built together, and UsageError for folders of different models, or for one that is there twice.
    """
    opened: list[Bundle] = []
    for folder in folders:
        below = [Bundle(path) for path in bundles_in(Path(folder))]
        if len({bundle.card["inputs"].get("model") for bundle in below}) > 1:
            raise several(Path(folder), [bundle.folder for bundle in below])
        if below[0].folder != Path(folder):
            _require_complete(Path(folder), below)
        opened += below
        further = added_to(home_of([bundle.folder for bundle in below])) if added else []
        of_parts = {bundle.folder for bundle in opened}  # of one index, each of which brings what was added to that
        for bundle in map(Bundle, (folder for folder in further if folder not in of_parts)):
            if bundle.card["inputs"].get("model") == below[0].card["inputs"].get("model"):
                opened.append(bundle)
            else:
                logging.getLogger(__name__).warning(
                    "%d photos in %s were added to an earlier model and are left out; `jointspace add` them again, or"
                    " delete that folder",
                    bundle.card["images"]["count"], bundle.folder,
                )  # fmt: skip
    places = [bundle.folder.resolve() for bundle in opened]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise UsageError(f"{twice} is given twice; name it once")
    opened[0].run = run
    return opened[0] if len(opened) == 1 else Bundles(opened, Path(folders[0]))


def _require_complete(folder: Path, bundles: Sequence[Bundle]) -> None:
    """Raises IntegrityError where one is missing of those that were built together."""
    together: dict[tuple[str, int], set[int]] = {}
    for bundle in bundles:
        if part := bundle.card.get("part"):
            together.setdefault((bundle.card["inputs"].get("manifest", ""), part["of"]), set()).add(part["number"])
    for (_, of), numbers in together.items():
        if missing := sorted(set(range(of)) - numbers):
            raise IntegrityError(
                f"{folder} holds {len(numbers)} of {of} bundles: {missing[0]:02d} is missing; run build-index for it"
            )


def link_bundle(bundle: Bundle, output: Path) -> None:
    """The same bundle in the folder `output`, its files links where the file system has these."""
    writer = BundleWriter(output)
    writer.link(bundle)
    writer.commit({name: value for name, value in bundle.card.items() if name not in ("files", CARRIED)})


class Bundles:
    """`parts`, at least two bundles, with the interface of one. `folder` is what messages call them.

    Raises UsageError where they are of different models.
    """

    hidden: Sequence[int] = ()

    def __init__(self, parts: Sequence[Bundle], folder: Path) -> None:
        self.parts, self.folder = list(parts), folder
        first = parts[0]
        for other in parts[1:]:
            if other.card["inputs"].get("model") != first.card["inputs"].get("model"):
                raise UsageError(
                    f"{other.folder} was made by another model than {first.folder}; {_remedy(first, other)}"
                )
            if any(other.card.get(key) != first.card.get(key) for key in ALIKE):
                raise IntegrityError(f"{other.folder} uses another metric than {first.folder}; get it again")
        self.card = _merged_card(parts)

    @cached_property
    def shifts(self) -> list[Mapping[str, int]]:
        """What is added to the ids of each bundle, by the column of the id."""
        shifts = []
        ends = dict.fromkeys(NUMBER.values(), 0)
        for bundle in self.parts:
            shift = {}
            for modality, column in NUMBER.items():
                least, greatest = bundle.packed_table(modality).bounds(column)
                shift[column] = ends[column] if least < ends[column] else 0
                ends[column] = max(ends[column], greatest + 1 + shift[column])
            shifts.append(shift)
        return shifts

    def packed_table(self, modality: str) -> "ChainedTables":
        """The tables of all, with a column `bundle`, the number of each row's from 0."""
        columns = COLUMNS[modality].names
        shifts = [{name: shift for name, shift in each.items() if name in columns} for each in self.shifts]
        return ChainedTables([bundle.packed_table(modality) for bundle in self.parts], shifts)

    def table(self, modality: str) -> pa.Table:
        """Return all rows of all bundles, of which the rows of the `hidden` images look as if they were removed."""
        return hide(self.packed_table(modality).unpack(), self.hidden)

    def bounds(self, modality: str) -> np.ndarray:
        """(bundles + 1,) the first row of each bundle in the table, and the number of all rows."""
        return np.cumsum([0, *(bundle.packed_table(modality).num_rows for bundle in self.parts)])

    def index_name(self, modality: str) -> str:
        return self.parts[0].index_name(modality)

    def outline(self, modality: str) -> MultiVectors | None:
        outlines = [bundle.outline(modality) for bundle in self.parts]
        return None if outlines[0] is None else MultiVectors.concatenate(outlines)

    def check(self) -> None:
        for bundle in self.parts:
            bundle.check()

    def check_rows(self) -> None:
        for bundle in self.parts:
            bundle.check_rows()

    def photographs(self, named: Path | None = None, follow_links: bool = False) -> ImageSources:
        """Reads the photographs of the rows as Bundle.photographs; what a command has `named` is the folder of those
        that were in that of the first bundle."""
        roots = [bundle.card["data_root"] for bundle in self.parts]
        return ImageSources([named if named and root == roots[0] else Path(root) for root in roots], follow_links)

    def __getattr__(self, name: str) -> Any:
        """The model, encoders, vocabulary and parser of the first, which have those of all."""
        if name in ("model", "encoder", "text_encoder", "vocabulary", "parser", "about", "read", "arrays"):
            return getattr(self.parts[0], name)
        raise AttributeError(name)


def _remedy(first: Bundle, other: Bundle) -> str:
    """What to do with a bundle of another model."""
    new = sorted(first.card["encoders"].keys() - other.card["encoders"].keys())
    old = sorted(other.card["encoders"].keys() - first.card["encoders"].keys())
    applied = f"apply {first.folder} to its photos, or search it alone"
    if not (new and old):
        return applied
    return (
        f"its encoder is {old[0]} and not {new[0]}: {applied}; a run that has features of {old[0]} maps them by"
        f" `jointspace migrate {old[0]} {new[0]}`"
    )


def _merged_card(bundles: Sequence[Bundle]) -> dict[str, Any]:
    """The first card, with the vectors, bytes and splits of all."""
    card = dict(bundles[0].card)
    for name in INDEXED[card.get("kind", "global")].values():
        if indices := [bundle.card[name] for bundle in bundles if bundle.card.get(name)]:
            sums = {key: sum(index[key] for index in indices) for key in ("count", "bytes")}
            card[name] = {**indices[0], **sums}
    card["splits"] = list(dict.fromkeys(split for bundle in bundles for split in bundle.card["splits"]))
    card["fingerprint"] = fingerprint("bundles", 1, [bundle.card["fingerprint"] for bundle in bundles])
    return card


class ChainedTables:
    """Several PackedTables one after another, with the interface of one.

    `shifts[i]` (column -> number) is added to the ids of `tables[i]`, so that no two rows have the same, and the column
    `bundle` says which table has the row. A column that a table lacks is null there. Raises UsageError for a column of
    types that cannot be reconciled.
    """

    def __init__(self, tables: Sequence[PackedTable], shifts: Sequence[Mapping[str, int]]) -> None:
        self.tables, self._shifts = tables, shifts
        self._ends = list(itertools.accumulate(table.num_rows for table in tables))
        schemas = [pa.schema([field for field in table.schema if field.name != BUNDLE]) for table in tables]
        try:
            schema = pa.unify_schemas(schemas, promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            names = " and ".join(str(table.path) for table in tables)
            raise UsageError(f"{names} have a column of different types ({error}); search them one by one") from error
        self.schema: pa.Schema = schema.append(pa.field(BUNDLE, pa.int64()))

    @property
    def num_rows(self) -> int:
        return self._ends[-1]

    @property
    def path(self) -> Path:
        return self.tables[0].path

    def unpack(self) -> pa.Table:
        return pa.concat_tables([self.schema.empty_table(), *self.groups()])

    def groups(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in order, of all columns or some, a few thousand at a time."""
        schema = pa.schema([self.schema.field(name) for name in columns or self.schema.names])
        for number, table in enumerate(self.tables):
            stored = [name for name in schema.names if name in table.schema.names and name != BUNDLE]
            for group in table.groups(stored or table.schema.names[:1]):
                for name, shift in self._shifts[number].items():
                    if shift and name in group.column_names:
                        ids = pa.array(group[name].to_numpy() + shift)
                        group = group.set_column(group.column_names.index(name), name, ids)
                if BUNDLE in schema.names:
                    group = group.append_column(BUNDLE, pa.array(np.full(group.num_rows, number)))
                yield _with_columns(group, schema)

    def records(self, rows: Iterable[int]) -> list[dict[str, Any]]:
        """Some rows, in the given order; each table is read once."""

        def read(number: int, rows: list[int]) -> Iterator[dict[str, Any]]:
            for record in self.tables[number].records(rows):
                ids = {name: record[name] + shift for name, shift in self._shifts[number].items()}
                yield {**dict.fromkeys(self.schema.names), **record, **ids, BUNDLE: number}

        return gather(rows, self._ends, read)

    def find(self, column: str, values: np.ndarray) -> np.ndarray:
        """(k,) the rows whose `column` has one of the whole numbers `values`."""
        rows = [
            table.find(column, values - shifts.get(column, 0)) + end - table.num_rows
            for table, shifts, end in zip(self.tables, self._shifts, self._ends, strict=True)
        ]
        return np.concatenate(rows)


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with the columns of `schema` alone, in their order and of their types; one that it lacks is null."""
    columns = {field.name: pa.nulls(table.num_rows, field.type) for field in schema}
    columns |= {name: table[name].cast(schema.field(name).type) for name in table.column_names if name in columns}
    return pa.table(columns, schema=schema)


KEY_COLUMNS = {"images": ("path", "sha256"), "sentences": ("text",)}
"""The columns that identify a row in a manifest."""


@dataclass(frozen=True)
class Modality:
    """One modality of a bundle: its index's name and card, and its table, of which the rows `alive` are not removed.
    `outline` says which vectors belong to which row of a multi-vector model; None for other models."""

    modality: str
    name: str
    card: dict[str, Any]
    table: pa.Table
    outline: MultiVectors | None

    @property
    def ids(self) -> np.ndarray:
        """(n,) each row's id in the manifest."""
        return self.table[NUMBER[self.modality]].to_numpy()

    @property
    def owners(self) -> np.ndarray:
        return self.table["image_id"].to_numpy()

    @property
    def alive(self) -> np.ndarray:
        return np.flatnonzero(~is_removed(self.table))

    @property
    def numbers(self) -> np.ndarray:
        """The ids of the vectors in the index: their rows, or, for a multi-vector model, numbers without gaps."""
        return self.alive if self.outline is None else np.arange(self.outline.offsets[-1])

    def without(self, rows: np.ndarray) -> "Modality":
        """This modality with only ids left in `rows` (k,)."""
        less = None if self.outline is None else self.outline.without(rows)
        return replace(self, table=forget(self.table, rows), outline=less)


def modalities(bundle: Bundle | Bundles) -> list[Modality]:
    """Those that a bundle has an index of."""
    return [
        Modality(modality, name, bundle.card[name], bundle.table(modality), bundle.outline(modality))
        for modality in KEY_COLUMNS
        if bundle.card.get(name := bundle.index_name(modality))
    ]


def require_numbering(bundle: Bundle | Bundles, parts: list[Modality], embeddings: "Embeddings") -> None:
    """Raises IntegrityError unless `embeddings` are of the bundle's model, and their manifest has the same ids for its
    rows."""
    models = {str(bundle.folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model}
    require_same("model", models)
    for part in parts:
        keys, table = KEY_COLUMNS[part.modality], getattr(embeddings.manifest, part.modality)
        rows, ids = part.alive, part.ids[part.alive]
        known = ids.max(initial=-1) < table.num_rows
        if not known or table.select(keys).take(ids) != part.table.select(keys).take(rows):
            raise IntegrityError(
                f"{embeddings.manifest.folder} numbers its {part.modality} differently from {bundle.folder}; give the"
                " manifest that the bundle was made from, or a later one of the same run"
            )


@dataclass(frozen=True)
class Change:
    """An `index` that is changed: what lies below the folder `home` is written below `root`."""

    index: Bundle | Bundles
    home: Path
    root: Path

    def folder(self, part: Bundle) -> Path:
        """Where a part is written to."""
        return self.root / part.folder.relative_to(self.home)


@contextmanager
def changing(folder: Path, output: Path | None) -> Iterator[Change]:
    """Open the index in `folder` to be changed in place, or give links to its files in the new folder `output`, which
    appears when the block has changed them.

    An index that is changed in place is opened when its lock and those of its parts and additions are held, so that it
    is as the last change has left it. Raises JointspaceError if another process holds one of the locks.
    """
    home = home_of(bundles_in(folder))
    if output is None:
        with hold(home), ExitStack() as locks:
            for part in sorted({*bundles_in(folder), *added_to(home)} - {home}):
                locks.enter_context(hold(part))
            yield Change(open_bundle(folder), home, home)
        return
    index = open_bundle(folder)
    with hold(output), new_folder(output) as root:
        change = Change(index, home, root)
        yield change
        for part in index.parts:
            if not (change.folder(part) / CARD).exists():
                link_bundle(part, change.folder(part))
                if is_regular(part.folder / REMOVED) and not (change.folder(part) / REMOVED).exists():
                    shutil.copy(part.folder / REMOVED, change.folder(part))


def photographs_of(bundles: Iterable[Bundle | Bundles]) -> set[str]:
    """The sha256 of all photographs in some bundles."""
    groups = (group for bundle in bundles for group in bundle.packed_table("images").groups(["sha256"]))
    return {digest for group in groups for digest in group["sha256"].to_pylist() if digest}


def photos_of(index: Bundle | Bundles) -> Iterator[StoredPhoto]:
    """Go through the photos of an index that were not removed."""
    for part, shift in zip(index.parts, index.shifts, strict=True):
        for group in part.packed_table("images").groups(["image_id", "path", "member", "sha256"]):
            there = group.filter(group["path"].is_valid())
            ids = (there["image_id"].to_numpy() + shift["image_id"]).tolist()
            rows = zip(ids, *(there[name].to_pylist() for name in ("path", "member", "sha256")), strict=True)
            yield from (StoredPhoto(*row, part.card["data_root"]) for row in rows)


def read_removed(bundle: Bundle) -> dict[str, str]:
    """Read what was removed from a bundle, as name -> sha256."""
    path = bundle.folder / REMOVED
    return parse_removed(read_lines(path)) if path.exists() else {}


def parse_removed(lines: Iterable[str]) -> dict[str, str]:
    """Split the lines of a list of removed photos into names and sha256, which may be empty."""
    pairs = (DIGEST.fullmatch(line).groups("") for line in lines)
    return {name.replace(r"\n", "\n").replace(r"\r", "\r"): digest for name, digest in pairs}


def format_removed(removed: Mapping[str, str]) -> str:
    """Return the text that `parse_removed` reads. A line break in a name is written with a backslash, which no name
    has."""
    lines = (f"{name}\t{digest}" if digest else name for name, digest in removed.items())
    return "".join(line.replace("\n", r"\n").replace("\r", r"\r") + "\n" for line in lines)


def removed_photos(bundles: Iterable[Bundle]) -> set[str]:
    """Return the whole paths and the sha256 of all photos that were removed from some bundles."""
    removed = [(bundle.card["data_root"], read_removed(bundle)) for bundle in bundles]
    return {text for root, names in removed for name in names for text in (f"{root}/{name}", names[name]) if text}


def were_removed(images: pa.Table, root: Path | str, removed: Set[str]) -> np.ndarray:
    """Return (n,) whether each of the images below the folder `root` is among the `removed_photos`."""
    rows = images.select(["path", "member", "sha256"]).to_pylist()
    return np.array([not removed.isdisjoint((row["sha256"], f"{root}/{listed_name(row)}")) for row in rows], bool)


def hidden_photos(index: Bundle | Bundles, folder: Path) -> list[int]:
    """Return the ids of the photos of the index in a folder that an index of the same run lists as removed."""
    gone: set[str] = set()
    for other in indexes_of_run(folder):
        with suppress(JointspaceError, OSError):  # another index that is damaged is no reason to serve none
            gone |= removed_photos(open_bundle(other).parts)
    return [photo.image_id for photo in photos_of(index) if photo.whole in gone] if gone else []


class Revision:
    """A `bundle`, to be written to the folder `output` with other indices and tables."""

    def __init__(self, bundle: Bundle, output: Path) -> None:
        self.bundle, self.writer = bundle, BundleWriter(output)
        self.cards: dict[str, dict[str, Any]] = {}
        self.outlines: dict[str, MultiVectors] = {}

    def put(self, part: Modality, data: memoryview, factory: str) -> None:
        """Write an index and the table of `part`."""
        self.writer.add(f"{part.name}.faiss", data)
        self.writer.add_table(f"{part.modality}.parquet", part.table)
        self.cards[part.name] = {**part.card, "count": len(part.numbers), "bytes": len(data), "factory": factory}
        if part.outline is not None:
            self.outlines[part.modality] = part.outline

    def commit(self) -> None:
        """Link to all other files, and write the card. What was measured of the indices stays on it."""
        if self.outlines:
            self.writer.add_outlines(self.outlines)
        changed = {name: about["sha256"] for name, about in self.writer.files.items()}
        self.writer.link(self.bundle, but=set(self.writer.files))
        card = {name: value for name, value in self.bundle.card.items() if name != "files"}
        digest = fingerprint("revision", 2, changed, {"bundle": card["fingerprint"]})
        inputs = {**card["inputs"], "bundle": card["fingerprint"]}
        self.writer.commit({**card, **self.cards, "inputs": inputs, "fingerprint": digest})


def is_removed(table: pa.Table) -> np.ndarray:
    """(n,) which rows of a bundle's table were removed."""
    key = "sha256" if "sha256" in table.column_names else "text"
    return table[key].is_null().to_numpy()
