"""What is wrong with a run, and where one image is in it.

`verify` has each commit judged by pipeline.storage.commit, and names the files that no commit vouches for; `explain`
follows an image to its rows in the manifest and in every artefact.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.foreign.files import kind_of
from pipeline.foreign.image_names import ID, StoredPhoto, find_stored
from pipeline.storage.batch import TEMPORARY, is_orphan
from pipeline.storage.bundle import Bundle
from pipeline.storage.bundles import KEY_COLUMNS
from pipeline.storage.card import ADDED, CARD, read_card
from pipeline.storage.commit import CARRIED, Commit, Commits, commit_path, file_faults, read_commit
from pipeline.storage.files import NO_LINK, explain, is_regular, walk
from pipeline.storage.json_files import read_json
from pipeline.storage.locks import is_free, is_lock
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import EMBEDDINGS, FRAGMENTS, Shard, shard_path
from pipeline.storage.tables import MOST_DIGITS

PARTS, CHECKPOINTS = ".parts", "checkpoints"  # folders of unfinished work, which a stage checks when it resumes
COMMITTED = frozenset({".h5", ".parquet", ".safetensors", ".faiss", ".conllu", ".brackets", ".jsonl", ".npz"})
"""Suffixes of files that do not exist without a commit."""


@dataclass(frozen=True)
class FaultyFile:
    """What is wrong with the file `path`, and the commit whose rule makes it again; None if no rule does."""

    path: Path
    reason: str
    target: Path | None


@dataclass
class Examination:
    """The number of `checked` files, and the `faults` among them; `unvouched` files, which no commit names;
    `unfinished` work of stages that were killed or still run; `former` commits, of what the configuration has no more;
    `temporaries` and locks, with whether their writer is dead."""

    checked: int = 0
    faults: list[FaultyFile] = field(default_factory=list)
    unvouched: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    former: list[Path] = field(default_factory=list)
    temporaries: dict[Path, bool] = field(default_factory=dict)


def examine(run: Path, hashed: bool = True, progress: Callable[[list[Path]], Iterable[Path]] = iter) -> Examination:
    """Compare every artefact under the folder `run` with its commit, and with the artefacts that it was made from; its
    files by size alone unless `hashed`. Raises IntegrityError if there is no commit at all."""
    result, inner = Examination(), {}
    files = list(_sort(Path(run), result, inner))
    bundles = {path.parent for path in files if path.name == CARD}
    bundled = {path for path in files if path.name != CARD and not bundles.isdisjoint(path.parents)}
    records = [path for path in files if path.suffix == ".json" and path not in bundled]
    if not records and all(fault.path == Path(run) for fault in result.faults):
        raise IntegrityError(f"{run} is not the folder of a run; name one such as {min(inner, default='results/demo')}")

    commits, vouched = Commits(Path(run)), {}
    # An index without its run, where no rule makes it again:
    alone = bool(records) and all(path.name == CARD for path in records)
    for path in progress(records):
        result.checked += 1
        try:
            commit = _read(path)
        except IntegrityError as error:
            _add_unread(result, path, error)
            continue
        vouched |= {path.parent / name: path for name in commit.files}
        result.checked += len(commit.files)
        place = path.relative_to(run).as_posix()
        found = list(commits.faults(place, hashed) if commit.place and not alone else file_faults(commit, hashed))
        result.faults += [FaultyFile(fault.path, fault.reason, fault.path if fault.gone else path) for fault in found]
        if hashed and path.name == CARD and not found:
            try:
                Bundle(path.parent).check_rows()
            except IntegrityError as error:  # which `search` would raise
                result.faults.append(FaultyFile(path, f"unusable: {error}", path))
    for path in files:
        if path in vouched or path in records:
            continue
        if path.suffix in COMMITTED and path.name != "rejects.jsonl":
            reason = "uncommitted: no commit vouches for it, so its writer never finished"
            result.faults.append(FaultyFile(path, reason, path))
        else:
            result.unvouched.append(path)
    result.unvouched = [path for path in result.unvouched if path not in vouched]
    faults = {replace(fault, target=None) if alone else _retarget(fault, vouched) for fault in result.faults}
    result.faults = sorted(faults, key=lambda fault: str(fault.path))
    for folder in inner:
        try:
            found = examine(folder, hashed, progress)
        except IntegrityError:  # killed at its beginning
            result.unfinished.append(folder)
            continue
        result.checked += found.checked
        result.unvouched += found.unvouched
        result.unfinished += found.unfinished
        added = ADDED in folder.relative_to(run).parts  # where `add` makes again what is mixed
        for fault in found.faults:
            if not (added and fault.target and fault.reason.startswith("mixed")):
                result.faults.append(replace(fault, target=None))
            elif fault.target.name != CARD:  # an index stays of use
                result.former += whole(fault.target)
        result.temporaries |= found.temporaries
    return result


def _sort(run: Path, result: Examination, inner: dict[Path, None]) -> Iterable[Path]:
    """The files of finished work; all others are noted, of the runs that are in this one, or were added to an index,
    the folders `inner`."""
    entries = list(walk(run))
    runs = {path.parents[1] for path, _ in entries if path.parts[-2:] == ("manifest", "manifest.json")} - {run}
    for path, status in entries:
        above = path.relative_to(run).parts[:-1]
        if outermost := next((folder for folder in reversed(path.parents) if folder in runs), None):
            inner[outermost] = None
            continue
        if ADDED in above:
            own = above[: above.index(ADDED) + 2]
            inner |= {run.joinpath(*own): None} if own[-1] != ADDED else {}
            continue
        if isinstance(status, OSError):
            result.faults.append(FaultyFile(path, f"unread: {explain(path, status)}", None))
        elif kind := kind_of(status.st_mode):
            reason = f"unread: it is {kind}; {NO_LINK}"
            result.faults.append(FaultyFile(path, reason, None))
        elif TEMPORARY.fullmatch(path.name) and is_regular(path):
            result.temporaries[path] = is_orphan(path)
        elif is_lock(path):
            result.temporaries[path] = is_free(path)
        elif any(part == CHECKPOINTS or part.endswith(PARTS) for part in above):
            result.unfinished.append(path)
        elif any(part.startswith(".") for part in above):
            result.unvouched.append(path)
        else:
            yield path


def whole(path: Path) -> list[Path]:
    """The commit `path`, and all that it, and the commits among that, vouch for."""
    paths = [path]
    for commit in paths:  # which grow meanwhile; a forged commit may list itself
        with suppress(IntegrityError):
            files = read_commit(commit).files if commit.suffix == ".json" else ()
            paths += [file for name in files if (file := commit.parent / name) not in paths]
    return paths


def _add_unread(result: Examination, path: Path, error: IntegrityError) -> None:
    """A JSON file that is no commit: a damaged one, or one that is not ours."""
    try:
        value = read_json(path)
        foreign = not isinstance(value, dict) or "made_by" not in value
    except IntegrityError:
        foreign = False
    if foreign:
        result.unvouched.append(path)
    else:
        result.faults.append(FaultyFile(path, f"changed: {error}", path))


def _read(path: Path) -> Commit:
    """The commit in the file `path`; the card of a bundle that this run has not made has no place in it."""
    value = read_json(path)
    foreign = path.name == CARD and isinstance(value, dict) and "place" not in value
    if not foreign or value.get(CARRIED, {}).get("digest") == value.get("fingerprint"):
        return read_commit(path)
    return Commit(path, value, "", {}, {}, read_card(path.parent)["files"], "")


def _retarget(fault: FaultyFile, vouched: dict[Path, Path]) -> FaultyFile:
    """The same with what a rule makes: the commit that vouches for the one of the fault, if there is one."""
    target, seen = fault.target, set()
    while target in vouched and target not in seen:  # forged commits may vouch for each other
        seen.add(target)
        target = vouched[target]
    return FaultyFile(fault.path, fault.reason, target)


@dataclass(frozen=True)
class TraceRows:
    """The rows of one file that belong to an image; `of` says whether these are the image itself, its sentences, its
    regions and so on. If there are none, `note` says why."""

    file: Path
    of: str
    rows: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class ImageTrace:
    """An image's row in the manifest, its `sentences` and so on, its `shard`, and the `places` where it is."""

    image: dict[str, Any]
    sentences: list[dict[str, Any]]
    documents: list[dict[str, Any]]
    boxes: int
    shard: int
    places: list[TraceRows]


def find_image(manifest: Manifest, name: str) -> StoredPhoto | None:
    """Find the image that `name` means, as for `remove`. Raises InputError if it may mean two images."""
    shards = range(manifest.n_shards)
    if (match := ID.fullmatch(name)) and "id:" in name and len(match[1]) <= MOST_DIGITS:
        shards = [number for number in shards if number == int(match[1]) // manifest.shard_size]

    def images() -> Iterator[StoredPhoto]:
        for number in shards:
            table = manifest.table("images", number)
            columns = (table[column].to_pylist() for column in ("path", "member", "sha256"))
            for row, values in enumerate(zip(*columns, strict=True), number * manifest.shard_size):
                yield StoredPhoto(row, *values, str(manifest.root))

    found, unmet = find_stored([name], images)
    if why := unmet.get(name):
        raise InputError(f"{name!r}{why}")
    return next(iter(found), None)


def find_rejects(rejects: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [reject for reject in rejects if means(name, reject["file"]) or repr(name) in reject["reason"]]


def trace(run: Path, manifest: Manifest, image_id: int) -> ImageTrace:
    """Follow an image through all artefacts under `run`. Damaged ones become places with a note."""
    number = image_id // manifest.shard_size
    tables = {name: manifest.of_image(name, image_id) for name in ("sentences", "documents", "boxes")}
    sentence_id = tables["sentences"]["sentence_id"].to_pylist()
    places = []
    for path in _within(run, shard_path(run, number).name):
        places += _in_shard(path, image_id, sentence_id)
    for card in _within(run, CARD):
        places += _in_bundle(card.parent, image_id, sentence_id)
    (image,) = manifest.pick([image_id])
    sentences, documents = tables["sentences"].to_pylist(), tables["documents"].to_pylist()
    return ImageTrace(image, sentences, documents, tables["boxes"].num_rows, number, places)


def _within(run: Path, name: str) -> list[Path]:
    """The files of this name, but for those of the runs that were added to an index."""
    return sorted(path for path in run.rglob(name) if ADDED not in path.relative_to(run).parts)


def means(name: str, other: str | None) -> bool:
    return other is not None and (other == name or other.endswith(f"/{name}"))


def _in_shard(path: Path, image_id: int, sentences: Sequence[int]) -> Iterator[TraceRows]:
    """The image's rows in a shard of any kind, by its datasets `image_id`, `sentence_id` and `offsets`."""
    try:
        shard = Shard(path, read_commit(commit_path(path)).kind)
        owners = shard["image_id"]
    except IntegrityError as error:
        yield TraceRows(path, "images", (), str(error))
        return
    here = tuple(np.flatnonzero(owners == image_id).tolist())
    if shard.commit.kind in (EMBEDDINGS, FRAGMENTS):
        of = np.flatnonzero(np.isin(shard["sentence_id"], sentences)).tolist()
        yield from (TraceRows(path, "image", here), TraceRows(path, "sentences", tuple(of)))
    elif "sentence_id" in shard:
        yield TraceRows(path, "texts", here, "" if here else "it has none here")
    elif "boxes" in shard:
        reasons = [reject["reason"] for reject in shard.details["rejects"] if reject["image_id"] == image_id]
        regions = tuple(range(*shard["offsets"][[here[0], here[0] + 1]].tolist())) if here else ()
        yield TraceRows(path, "regions", regions, "" if regions else next(iter(reasons), "it has none here"))
    else:
        yield TraceRows(path, "image", here, "" if here else "not of its images")


def _in_bundle(folder: Path, image_id: int, sentences: Sequence[int]) -> Iterator[TraceRows]:
    """The image's and its sentences' rows in the tables of a bundle."""
    for modality, wanted in (("images", [image_id]), ("sentences", sentences)):
        file = folder / f"{modality}.parquet"
        try:
            bundle = Bundle(folder)
            table = bundle.packed_table(modality)
            rows = table.find(f"{modality[:-1]}_id", np.array(wanted, np.int64))
            there = rows[[record[KEY_COLUMNS[modality][-1]] is not None for record in table.records(rows)]]
        except (IntegrityError, KeyError) as error:
            yield TraceRows(file, modality, (), str(error))
            continue
        others = f"not indexed: the bundle has the splits {', '.join(bundle.card.get('splits', ()))}"
        index = bundle.card.get(bundle.index_name(modality)) or {}
        note = "removed from it" if len(rows) else others
        if len(there):  # the cards of older indexes do not say what measured them
            measured_with = index.get("measured_with")
            note = f"index recall@10 {index['recall@10']:.3f}, measured with {measured_with}" if measured_with else ""
        yield TraceRows(file, modality, tuple(there.tolist()), note)
