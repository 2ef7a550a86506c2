"""The checks behind `jointspace verify` and `jointspace explain`.

`examine` checks each commit record of a run with pipeline.storage.commit, and lists the files that are not in any
record. `trace` finds the rows of one image in the manifest and in all other artefacts.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.foreign.files import kind_of
from pipeline.foreign.image_names import ID, StoredPhoto, find_stored
from pipeline.storage.batch import TEMPORARY, is_orphan
from pipeline.storage.card import CARD, Modality, read_card
from pipeline.storage.commit import CARRIED, Commit, Commits, commit_path, file_faults, read_commit
from pipeline.storage.files import NO_LINK, explain, is_regular, walk
from pipeline.storage.index_changes import KEY_COLUMNS
from pipeline.storage.index_folder import ADDED, NUMBER
from pipeline.storage.index_shard import MODALITIES, IndexShard
from pipeline.storage.json_files import read_json
from pipeline.storage.locks import is_free, is_lock
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import EMBEDDINGS, FRAGMENTS, Shard, chunk_path, shard_path
from pipeline.storage.tables import MAX_DIGITS

PARTS = ".parts"
"""Suffix of the folders that contain the parts of unfinished shards. A stage checks these parts when it resumes."""
CHECKPOINTS = "checkpoints"
"""Name of the folders that contain the checkpoints of unfinished trainings."""
COMMITTED = frozenset({".h5", ".parquet", ".safetensors", ".faiss", ".conllu", ".brackets", ".jsonl", ".npz"})
"""Suffixes of files for which a commit record must vouch. The only exception is `rejects.jsonl`."""


@dataclass(frozen=True)
class FaultyFile:
    """A faulty file and the reason.

    `target` is the file that a rule of the run must make again to repair the fault: the commit record of an artefact,
    or the faulty file itself if no record vouches for it. `target` is None if no rule of the run makes the file.
    """

    path: Path
    reason: str
    target: Path | None


@dataclass
class Examination:
    """The findings in the folder of a run.

    `checked` is the number of checked files, including commit records, and `faults` are the faulty files. `unvouched`
    are files that are in no commit record and need no record. `unfinished` files belong to stages that were killed
    or are still running. `former` files belong to artefacts that are out of date but need no repair: artefacts of an
    earlier configuration, and mixed artefacts of an addition to an index. `temporaries` has the temporary files and the
    locks as keys. The value of a file is True if the process that wrote the file has ended.
    """

    checked: int = 0
    faults: list[FaultyFile] = field(default_factory=list)
    unvouched: list[Path] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    former: list[Path] = field(default_factory=list)
    temporaries: dict[Path, bool] = field(default_factory=dict)


class NoCommitsError(IntegrityError):
    """Error for a folder that has no JSON file which may be a commit record, and so is not a run or an index."""


@dataclass(frozen=True)
class Survey:
    """The files below the folder of a run.

    `files` are the files that a commit record may list, whether one lists them or not. `found` has all other files:
    temporary files, locks, unfinished work, files in hidden folders, and files that cannot be read. `inner_runs` are
    the folders of runs inside this run, for example runs of photos that were added to an index. The files of inner runs
    are neither in `files` nor in `found`.
    """

    files: list[Path]
    inner_runs: list[Path]
    found: Examination


def examine(run: Path, hashed: bool = True, progress: Callable[[list[Path]], Iterable[Path]] = iter) -> Examination:
    """Check every artefact below the folder `run` against its commit record and its inputs, and return the findings.

    Runs inside this run are examined too. The files are compared by size, and with `hashed` also by hash. `progress`
    may wrap the list of commit records to report the progress. Raises NoCommitsError if the folder cannot be read, or
    has neither a JSON file nor a file that is faulty without a record, such as a link.
    """
    run = Path(run)
    survey = survey_files(run)
    result = survey.found
    records = _records(survey.files)
    if not records and all(fault.path == run for fault in result.faults):
        raise NoCommitsError(
            f"{run} has no commit record, so it is not the folder of a run. Name the folder of a run, such as"
            " results/demo."
        )

    # If the folder is an index without its run, no rule can make its files again.
    is_lone_index = bool(records) and all(path.name == CARD for path in records)
    vouched = _check_commits(result, run, progress(records), hashed, is_lone_index)
    known = {*records, *vouched}
    result.unvouched = [path for path in result.unvouched if path not in vouched]
    _add_uncommitted(result, [path for path in survey.files if path not in known])
    faults = {replace(fault, target=None) if is_lone_index else _retarget(fault, vouched) for fault in result.faults}
    result.faults = sorted(faults, key=lambda fault: str(fault.path))
    for folder in survey.inner_runs:
        _add_inner_run(result, folder, ADDED in folder.relative_to(run).parts, hashed, progress)
    return result


def survey_files(run: Path) -> Survey:
    """Find the files below the folder `run`, and sort them into finished work, unfinished work and other files."""
    entries = list(walk(run))
    runs = {path.parents[1] for path, _ in entries if path.parts[-2:] == ("manifest", "manifest.json")} - {run}
    survey = Survey([], [], Examination())
    for path, status in entries:
        inner_run = _inner_run(path, run, runs)
        if inner_run is None:
            _sort_file(survey, path, status, path.relative_to(run).parts[:-1])
        elif inner_run.name != ADDED and inner_run not in survey.inner_runs:
            survey.inner_runs.append(inner_run)
    return survey


def _inner_run(path: Path, run: Path, runs: Set[Path]) -> Path | None:
    """Return the folder of the run that is inside `run` and contains the file `path`. Return None if no run does.

    `runs` are the folders inside `run` that have a manifest. If several of these folders contain the file, the
    outermost is returned. If none of them contains the file, but the file is in the folder of an addition to an index,
    the folder of the addition is returned. For a file directly in the folder ADDED, which does not belong to an
    addition, the path of ADDED is returned.
    """
    if outermost := next((folder for folder in reversed(path.parents) if folder in runs), None):
        return outermost
    above = path.relative_to(run).parts[:-1]
    if ADDED not in above:
        return None
    return run.joinpath(*above[: above.index(ADDED) + 2])


def _sort_file(survey: Survey, path: Path, status: os.stat_result | OSError, folders: Sequence[str]) -> None:
    """Add the file `path` to the list in `survey` to which it belongs.

    `status` is the status of the file, or the error if the file cannot be examined. `folders` are the names of the
    folders between the run and the file.
    """
    found = survey.found
    if isinstance(status, OSError):
        found.faults.append(FaultyFile(path, f"unread: {explain(path, status)}", None))
    elif kind := kind_of(status.st_mode):
        found.faults.append(FaultyFile(path, f"unread: it is {kind}; {NO_LINK}", None))
    elif TEMPORARY.fullmatch(path.name) and is_regular(path):
        found.temporaries[path] = is_orphan(path)
    elif is_lock(path):
        found.temporaries[path] = is_free(path)
    elif any(folder == CHECKPOINTS or folder.endswith(PARTS) for folder in folders):
        found.unfinished.append(path)
    elif any(folder.startswith(".") for folder in folders):
        found.unvouched.append(path)
    else:
        survey.files.append(path)


def _records(files: Sequence[Path]) -> list[Path]:
    """Return the files that may be commit records: the JSON files. Among the files of an index, only the card is
    returned, because it lists the other files."""
    indexes = {path.parent for path in files if path.name == CARD}
    return [
        path for path in files if path.suffix == ".json" and (path.name == CARD or indexes.isdisjoint(path.parents))
    ]


def _check_commits(
    result: Examination, run: Path, records: Iterable[Path], hashed: bool, is_lone_index: bool
) -> dict[Path, Path]:
    """Check all commit records and their files, and add the faults to `result`.

    With `hashed`, the rows in the tables of index shards are checked too. If the folder is an index without its run
    (`is_lone_index`), the places and the inputs of records are not checked. Return the record that vouches for each
    file, as file -> record.
    """
    commits = Commits(run)
    vouched: dict[Path, Path] = {}
    for path in records:
        result.checked += 1
        try:
            commit = _read(path)
        except IntegrityError as error:
            _add_unread(result, path, error)
            continue
        vouched |= {path.parent / name: path for name in commit.files}
        result.checked += len(commit.files)
        if commit.place and not is_lone_index:
            faults = list(commits.faults(path.relative_to(run).as_posix(), hashed))
        else:
            faults = list(file_faults(commit, hashed))
        result.faults += [FaultyFile(fault.path, fault.reason, fault.path if fault.gone else path) for fault in faults]
        if hashed and path.name == CARD and not faults:
            try:
                IndexShard(path.parent).check_rows()
            except IntegrityError as error:  # A search would raise the same error.
                result.faults.append(FaultyFile(path, f"unusable: {error}", path))
    return vouched


def _add_uncommitted(result: Examination, files: Iterable[Path]) -> None:
    """Add `files`, which are not in any commit record, to `result`.

    A file that needs a commit record is a fault. Any other file is unvouched.
    """
    for path in files:
        if path.suffix in COMMITTED and path.name != "rejects.jsonl":
            reason = "uncommitted: no commit record lists it, because its writer did not finish"
            result.faults.append(FaultyFile(path, reason, path))
        else:
            result.unvouched.append(path)


def _add_inner_run(
    result: Examination,
    folder: Path,
    is_addition: bool,
    hashed: bool,
    progress: Callable[[list[Path]], Iterable[Path]],
) -> None:
    """Examine the run in `folder`, which is inside another run, and add the findings to `result`.

    No rule of the outer run makes the files of the inner run again, so their faults get no target. If the inner run has
    no commit record yet, its folder is added to the unfinished files.

    In an addition to an index, artefacts may be mixed, which means that an input has changed since they were made. The
    index of the addition stays usable, and the next `jointspace add` makes the mixed artefacts again. Mixed artefacts
    are therefore listed as former files and not as faults.
    """
    try:
        inner = examine(folder, hashed, progress)
    except IntegrityError:  # The inner run was killed before it wrote a commit record.
        result.unfinished.append(folder)
        return
    result.checked += inner.checked
    result.unvouched += inner.unvouched
    result.unfinished += inner.unfinished
    result.temporaries |= inner.temporaries
    for fault in inner.faults:
        if not (is_addition and fault.target and fault.reason.startswith("mixed")):
            result.faults.append(replace(fault, target=None))
        elif fault.target.name != CARD:
            result.former += whole(fault.target)


def whole(path: Path) -> list[Path]:
    """Return the commit record `path` and all files for which it vouches, directly or through another record."""
    paths = [path]
    for commit in paths:  # The list grows during the loop. A forged record may list itself.
        with suppress(IntegrityError):
            files = read_commit(commit).files if commit.suffix == ".json" else ()
            paths += [file for name in files if (file := commit.parent / name) not in paths]
    return paths


def _add_unread(result: Examination, path: Path, error: IntegrityError) -> None:
    """Add a JSON file that cannot be read as a commit record to `result`.

    A file that is damaged or was a commit record is a fault, and `error` is the reason. Valid JSON that jointspace has
    not written as a commit record is unvouched.
    """
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
    """Read the commit record in the file `path`.

    The result has an empty place for the card of an index that was not built by a run, or was changed afterwards.
    """
    value = read_json(path)
    if path.name != CARD or not isinstance(value, dict) or "place" in value:
        return read_commit(path)
    carried = value.get(CARRIED)
    if isinstance(carried, dict) and carried.get("digest") == value.get("fingerprint"):
        return read_commit(path)
    read_card(path.parent)
    return Commit(path, value, "", {}, {}, value["files"], "")


def _retarget(fault: FaultyFile, vouched: Mapping[Path, Path]) -> FaultyFile:
    """Return the fault with another target: the outermost commit record that vouches for the target of `fault`.

    `vouched` has the record that vouches for each file. Rules make whole artefacts, with their outermost record.
    """
    target = fault.target
    seen = set()
    # Forged records may vouch for each other, so no target is visited twice.
    while target is not None and target in vouched and target not in seen:
        seen.add(target)
        target = vouched[target]
    return FaultyFile(fault.path, fault.reason, target)


@dataclass(frozen=True)
class TraceRows:
    """The rows of one file that belong to an image.

    `of` names the subject of the rows: the image itself, its captions, its regions and so on. If there are no rows,
    `note` has the reason, if it is known. For rows of an index whose recall was measured, `note` has this recall. In
    all other cases, `note` is empty.
    """

    file: Path
    of: str
    rows: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class ImageTrace:
    """The rows of an image in a run.

    `image`, `sentences` and `documents` are the rows of the image in the tables of the manifest, and `boxes` is the
    number of its boxes in the manifest. `shard` is the number of the shard that contains the image. `places` are the
    rows of the image in all other files.
    """

    image: dict[str, Any]
    sentences: list[dict[str, Any]]
    documents: list[dict[str, Any]]
    boxes: int
    shard: int
    places: list[TraceRows]


def find_image(manifest: Manifest, name: str) -> StoredPhoto | None:
    """Find the image that `name` means, by the rules of `jointspace remove`. Return None if there is no such image.

    If `name` is a file with several images, such as a tar shard, return the first of these images. Raises InputError if
    it is not clear which of several images the name means.
    """
    shards = range(manifest.n_shards)
    if (match := ID.fullmatch(name)) and "id:" in name and len(match[1]) <= MAX_DIGITS:
        shards = [number for number in shards if number == int(match[1]) // manifest.shard_size]

    def images() -> Iterator[StoredPhoto]:
        for number in shards:
            table = manifest.table("images", number)
            columns = (table[column].to_pylist() for column in ("path", "member", "sha256"))
            rows = enumerate(zip(*columns, strict=True), number * manifest.shard_size)
            for row, (path, member, sha256) in rows:
                yield StoredPhoto(row, path, member, sha256, str(manifest.root))

    found, unmet = find_stored([name], images)
    if why := unmet.get(name):
        raise InputError(f"{name!r}{why}")
    return next(iter(found.get(name, [])), None)


def find_rejects(rejects: list[dict[str, str]], name: str) -> list[dict[str, str]]:
    """Return the rejects whose file has the path `name` or a path that ends with `/<name>`, and the rejects whose
    reason quotes `name`."""
    return [reject for reject in rejects if means(name, reject["file"]) or repr(name) in reject["reason"]]


def trace(run: Path, manifest: Manifest, image_id: int) -> ImageTrace:
    """Find the rows of the image `image_id` in all artefacts of a run.

    A damaged artefact appears without rows, with the error as its note.
    """
    number = image_id // manifest.shard_size
    tables = {name: manifest.of_image(name, image_id) for name in ("sentences", "documents", "boxes")}
    sentence_id = tables["sentences"]["sentence_id"].to_pylist()
    places = []
    chunk = next(index for index, shards in enumerate(manifest.chunks) if number in shards)
    for name in (shard_path(run, number).name, chunk_path(run, chunk).name):
        for path in _within(run, name):
            places += _in_shard(path, image_id, sentence_id)
    for card in _within(run, CARD):
        places += _in_index(card.parent, image_id, sentence_id)
    (image,) = manifest.pick([image_id])
    sentences = tables["sentences"].to_pylist()
    documents = tables["documents"].to_pylist()
    return ImageTrace(image, sentences, documents, tables["boxes"].num_rows, number, places)


def _within(run: Path, name: str) -> list[Path]:
    """Return the files with this name below `run`, except the files of runs that were added to an index."""
    return sorted(path for path in run.rglob(name) if ADDED not in path.relative_to(run).parts)


def means(name: str, other: str | None) -> bool:
    """Return whether `name` is the path `other` or the last parts of this path. If `other` is None, return False."""
    return other is not None and (other == name or other.endswith(f"/{name}"))


def _in_shard(path: Path, image_id: int, sentences: Sequence[int]) -> Iterator[TraceRows]:
    """Yield the rows of an image in a shard of any kind.

    The rows are found with the shard's datasets `image_id`, `sentence_id` and `offsets`. `sentences` are the ids of the
    image's captions.
    """
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
        yield TraceRows(path, "texts", here, "" if here else "the image has no texts in this file")
    elif "boxes" in shard:
        reasons = [reject["reason"] for reject in shard.details["rejects"] if reject["image_id"] == image_id]
        regions = tuple(range(*shard["offsets"][[here[0], here[0] + 1]].tolist())) if here else ()
        note = next(iter(reasons), "the image has no regions in this file")
        yield TraceRows(path, "regions", regions, "" if regions else note)
    else:
        yield TraceRows(path, "image", here, "" if here else "the image is not in this file")


def _in_index(folder: Path, image_id: int, sentences: Sequence[int]) -> Iterator[TraceRows]:
    """Yield the rows of an image and of its captions in the tables of an index shard.

    `sentences` are the ids of the captions.
    """
    wanted: dict[Modality, Sequence[int]] = {"images": [image_id], "sentences": sentences}
    for modality in MODALITIES:
        file = folder / f"{modality}.parquet"
        try:
            shard = IndexShard(folder)
            table = shard.packed_table(modality)
            rows = table.find(NUMBER[modality], np.array(wanted[modality], np.int64))
            there = rows[[record[KEY_COLUMNS[modality][-1]] is not None for record in table.records(rows)]]
        except (IntegrityError, KeyError) as error:
            yield TraceRows(file, modality, (), str(error))
            continue
        if len(rows):
            note = "removed from the index"
        elif wanted[modality]:
            note = f"not indexed: the index has the splits {', '.join(shard.card.splits)}"
        else:
            note = "the image has no captions"
        if len(there):
            index = shard.card.index_of(modality)
            note = ""
            if index is not None and index.measured_with:  # The cards of older indexes lack this key.
                note = f"index recall@10 {index.recall:.3f}, measured with {index.measured_with}"
                if index.conditions:
                    recalls = (f"{min(c.uncorrelated, c.correlated):.3f} ({c.share:.1%})" for c in index.conditions)
                    note += f"; if a condition allows a part of the items, {', '.join(recalls)}"
        yield TraceRows(file, modality, tuple(there.tolist()), note)
