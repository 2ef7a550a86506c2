"""What a bundle says of itself, whoever made it: the form of its card, what every row of its tables must be, and the
folders in which bundles lie.

A path is relative and plain, so that it names a photograph below the folder of the photographs and nothing else. An id
is a name and no size: it is below ID_LIMIT, and whoever looks rows up by id does not count up to the largest.
"""

import os
import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from pipeline.config.registry import IMPORT_PATH, MAX_SIDE, MODELS
from pipeline.errors import IntegrityError, meant
from pipeline.storage.files import SHOWN, first_unplain, inside, is_regular, require_no_links
from pipeline.storage.json_files import Count, File, Finite, Form, read_json, require_form

CARD = "card.json"
ADDED = "added"
"""Folder of an index: the bundles, or runs of `apply`, that `add` has put there, each in a folder `<number>-<name>`."""
REMOVED = "removed.txt"
"""In a bundle's folder: the photographs that `remove` has taken out, one a line, which `ingest` leaves out."""
CHANGING = (
    *("images.faiss", "sentences.faiss", "regions.faiss", "words.faiss", "images.parquet", "sentences.parquet"),
    *("fragments.safetensors", "background.safetensors"),
)
"""Files of which a bundle has some and another not."""
INDEXED = {
    "global": {"images": "images", "sentences": "sentences"},
    "fragments": {"images": "regions", "sentences": "words"},
}
"""Kind of bundle -> modality -> its index's name."""
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
DISTRUST = "get the bundle again from somebody you trust"

Dimensions = Annotated[int, Field(gt=0, le=1 << 24)]
Positive = Annotated[int, Field(gt=0, lt=1 << 31)]
Side = Annotated[int, Field(gt=0, le=MAX_SIDE)]
Measure = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Metric = Literal["inner_product", "euclidean"]
Colours = Annotated[list[Finite], Field(min_length=3, max_length=3)]
MAX_CARD_BYTES = 1 << 24
MAX_FILES = 1 << 10
"""Maximum number of files, of inputs and of encoders on a card."""
FACTORY = r"^(IVF[0-9]{1,6}|[A-Za-z_,()]+[0-9]{0,4})+$"
"""Pattern of FAISS's factory strings in which all numbers are small, because they are sizes."""


# --- the card


class ShortlistForm(Form):
    nearest: Positive | None
    shortlist: Positive | None
    recall: Share = Field(alias="recall@10")


class WeightsForm(Form):
    origin: str


class PreprocessingForm(Form):
    """pipeline.images.preprocess.Preprocessing."""

    resize: Side
    crop: Side | None
    mean: Colours
    std: Annotated[list[Annotated[float, Field(gt=0, allow_inf_nan=False)]], Field(min_length=3, max_length=3)]
    interpolation: Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"] = "bilinear"


class EncoderForm(Form):
    """The keys that `report` shows, and the keys that hold sizes. The encoder checks its other settings."""

    architecture: str
    layer: str
    weights: WeightsForm
    preprocessing: PreprocessingForm | None = None


class TextEncoderForm(Form):
    kind: str


class IndexForm(Form):
    factory: Annotated[str, Field(pattern=FACTORY, max_length=256)]
    metric: Metric
    dim: Dimensions
    count: Annotated[int, Field(ge=0, lt=1 << 40)]
    bytes: Count
    nprobe: Annotated[int, Field(gt=0, lt=10**6)] | None
    efSearch: Annotated[int, Field(gt=0, le=1 << 15)] | None  # noqa: N815  FAISS's own name
    k_factor: Annotated[int, Field(gt=0, le=1 << 10)] | None
    queries_per_second: Measure
    latency_ms: Measure
    build_seconds: Measure
    recall: Share = Field(alias="recall@10")
    measured_with: Literal["images", "captions"] | None = None
    shortlist: ShortlistForm | None = None


class Score(Form):
    sum: str
    global_weight: Finite


class TrainedOn(Form):
    """`images` are those with `sentences`, of the `splits` of the run `run`, whose manifest has this fingerprint."""

    run: str
    splits: list[str]
    images: Count
    sentences: Count
    manifest: str


class CalibrationForm(Form):
    """See pipeline.index.calibration."""

    version: Literal[1]
    coverage: Share
    score: Finite
    nearness: Finite


class PartForm(Form):
    """Which of how many bundles that were built together."""

    number: Count
    of: Annotated[int, Field(gt=0, le=1 << 16)]


class Card(Form):
    kind: Literal["global", "fragments"] = "global"
    model: str
    registered: str
    metric: Metric
    dim: Dimensions
    files: Annotated[dict[str, File], Field(max_length=MAX_FILES)]
    inputs: Annotated[dict[str, str], Field(max_length=MAX_FILES)]
    fingerprint: str
    splits: list[str]
    data_root: str
    part: PartForm | None = None
    name: str | None = None
    trained_on: TrainedOn | None = None
    encoders: Annotated[dict[str, EncoderForm], Field(max_length=MAX_FILES)]
    text_encoders: Annotated[dict[str, TextEncoderForm], Field(max_length=MAX_FILES)] = {}
    images: IndexForm | None = None
    sentences: IndexForm | None = None
    regions: IndexForm | None = None
    words: IndexForm | None = None
    score: Score | None = None
    calibration: CalibrationForm | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        indices = [getattr(self, name) for name in INDEXED[self.kind].values()]
        needed = [self.images]
        if self.kind == "fragments":
            needed = [*indices, self.score, *(index and index.shortlist for index in indices)]
        if None in needed:
            raise ValueError(f"its kind is {self.kind}, and a part of that is missing")
        if any((index.dim, index.metric) != (self.dim, self.metric) for index in indices if index):
            raise ValueError("its indices are of other dimensions or another metric")
        if self.registered not in {spec.name for spec in MODELS} and not re.match(IMPORT_PATH, self.registered):
            raise ValueError(f"its model {self.registered} is not a registered one")
        return self


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the bundle in `folder`. Raises IntegrityError for one without the form of Card, or that names a file
    outside of the folder."""
    path = folder / CARD
    remedy = "name the folder of an index, or run build-index again"
    with suppress(OSError):  # read_json explains it
        if path.stat().st_size > MAX_CARD_BYTES:
            raise IntegrityError(f"{path} is not a bundle's card: it has more than {MAX_CARD_BYTES:,} bytes; {remedy}")
    card = require_form(read_json(path), Card, path, remedy, "is not a bundle's card")
    for name in card["files"]:
        inside(folder, name, path)
    return card


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
        raise IntegrityError(f"{path} row {row}: its {name} {ids[row]} is that of another row; {DISTRUST}")


# --- folders


def numbered(folder: Path, number: int) -> Path:
    """The folder of one of several bundles in `folder`."""
    return folder / f"{number:02d}"


def listed(folder: Path) -> list[str]:
    """The names of the files of the bundle in `folder`; none where there is none, or its card cannot be read."""
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


def remove_bundle(folder: Path) -> None:
    """Remove the bundle in `folder`, the card first, and then the files that it lists."""
    if not is_regular(folder / CARD):
        return
    names = list(read_json(folder / CARD)["files"])
    (folder / CARD).unlink(missing_ok=True)
    remove_files(folder, names)
    with suppress(OSError):  # not empty
        folder.rmdir()


def bundles_in(folder: Path) -> list[Path]:
    """Return `folder`, or the bundles below it, in the order of their numbers or names. Raises IntegrityError where
    there is none, and for a link in a bundle or between it and `folder`, which may itself be a link."""
    bundles = [folder] if os.path.lexists(folder / CARD) else [card.parent for card in _below(folder)]
    for bundle in bundles:
        require_no_links(folder, bundle)
    if bundles:
        return bundles
    reason = f"is not a bundle: it has no {CARD}" if folder.exists() else "does not exist"
    near = [card.parent for above in folder.absolute().parents[:2] for card in _near(above)]
    known = {str(path) if folder.is_absolute() else os.path.relpath(path) for path in near}
    remedy = meant(str(folder), known) or f"did you mean {min(known)}? " if known else ""
    raise IntegrityError(f"{folder} {reason}; {remedy}name an index such as results/demo/index/ncca")


def home_of(bundles: Sequence[Path]) -> Path:
    """The folder of the index whose own bundles are in these folders: that of one, or that which holds several."""
    return bundles[0] if len(bundles) == 1 else bundles[0].parent


def added_to(home: Path) -> list[Path]:
    """The bundles that were added to the index in the folder `home`, in the order of their numbers."""
    require_no_links(home, home / ADDED)
    folders = [folder for folder in (home / ADDED).glob("*-*") if folder.name.partition("-")[0].isdecimal()]
    folders.sort(key=lambda folder: int(folder.name.partition("-")[0]))
    return [bundle for folder in folders if is_index(folder) for bundle in bundles_in(folder)]


def is_index(folder: Path) -> bool:
    """Whether there is a bundle in `folder` or below."""
    return bool(_near(folder))


def new_addition(home: Path, name: str) -> Path:
    """The folder of one more addition."""
    numbers = [int(folder.name.partition("-")[0]) for folder in (home / ADDED).glob("[0-9]*-*")]
    return home / ADDED / f"{max(numbers, default=-1) + 1:02d}-{name}"


def indexes_of_run(folder: Path) -> list[Path]:
    """Return the folder of an index and then the folders of the other indexes of its run. An index outside of a run is
    alone, and a link in the run's folder is not followed."""
    home = Path(os.path.abspath(home_of(bundles_in(folder))))
    if home.parent.name != "index" or not is_regular(home.parents[1] / "manifest" / "manifest.json"):
        return [folder]
    shown = [path for path in sorted(home.parent.iterdir()) if not (path.is_symlink() or path.name.startswith("."))]
    others = [path for path in shown if path != home and is_index(path)]
    return [folder, *(others if folder.is_absolute() else map(Path, map(os.path.relpath, others)))]


def several(folder: Path, bundles: Collection[Path]) -> IntegrityError:
    """The error for a folder with `bundles` of which one has to be chosen."""
    names = sorted(bundle.relative_to(folder).as_posix() for bundle in bundles)
    return IntegrityError(f"{folder} is not a bundle; it holds bundles: {', '.join(names)}: give {folder / names[-1]}")


def _below(folder: Path) -> list[Path]:
    """The cards of the bundles of a run, of a folder of bundles, or of several bundles of one model."""
    cards = {card for pattern in ("*", "*/*", "index/*/*") for card in folder.glob(f"{pattern}/{CARD}")}
    shown = [
        card
        for card in cards
        if not any(part.startswith(".") or part == ADDED for part in card.relative_to(folder).parts)
    ]
    return sorted(shown, key=lambda card: [(len(part) if part.isdecimal() else 0, part) for part in card.parts])


def _near(folder: Path) -> list[Path]:
    """The card in `folder`, or those of the bundles below it."""
    return [folder / CARD] if (folder / CARD).is_file() else _below(folder)
