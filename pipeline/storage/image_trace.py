"""Where one image is in a run: its rows in the manifest and in every artefact, or the reason why it was left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.plain_files import kind_of
from pipeline.storage.bundle import Bundle
from pipeline.storage.card import CARD
from pipeline.storage.commit import commit_path, read_commit
from pipeline.storage.embeddings import FRAGMENTS
from pipeline.storage.files import explain, is_there, walk
from pipeline.storage.manifest import Manifest, read_rejects
from pipeline.storage.shards import EMBEDDINGS, Shard, shard_path
from pipeline.storage.tables import MOST_DIGITS


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


def find_manifest(run: Path) -> Manifest | None:
    """The manifest under the folder `run`; None if there is none."""
    if is_there(own := Path(run) / "manifest" / "manifest.json"):
        return Manifest(own.parent)
    found = sorted(path for path, _ in walk(run) if path.name == "manifest.json")
    return Manifest(found[0].parent) if found else None


def find_images(manifest: Manifest, name: str) -> list[int]:
    """The ids of the images that match `name`: an id, a path or member, or the end of one after a slash."""
    if name.isdecimal() and len(name) <= MOST_DIGITS and int(name) < manifest.n_images:
        return [int(name)]
    found = []
    for number in range(manifest.n_shards):
        images, first = manifest.table("images", number), number * manifest.shard_size
        names = zip(images["path"].to_pylist(), images["member"].to_pylist(), strict=True)
        found += [first + row for row, own in enumerate(names) if any(_means(name, one) for one in own)]
    return found


def find_rejects(rejects: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [reject for reject in rejects if _means(name, reject["file"]) or repr(name) in reject["reason"]]


def read_run_rejects(run: Path) -> list[dict[str, Any]]:
    """The rejects of a collection that was refused as a whole. Raises InputError if there are none, either."""
    path = Path(run) / "rejects.jsonl"
    if not is_there(path):
        raise InputError(f"{run} has neither a manifest nor rejects; give the folder of a run")
    return list(read_rejects(path))


def trace(run: Path, manifest: Manifest, image_id: int) -> ImageTrace:
    """Follow an image through all artefacts under `run`. Damaged and unreadable ones become places with a note."""
    number, own = image_id // manifest.shard_size, {}
    for name in ("sentences", "documents", "boxes"):
        table = manifest.table(name, number)
        first, last = np.searchsorted(table["image_id"].to_numpy(), [image_id, image_id + 1]).tolist()
        own[name] = table.slice(first, last - first)
    sentence_id = own["sentences"]["sentence_id"].to_pylist()
    shard = shard_path(run, number).name
    files, places = _list_files(run, {shard, CARD})
    for path in (path for path in files if path.name == shard):
        places += _in_shard(path, image_id, sentence_id)
    for card in (path for path in files if path.name == CARD):
        places += _in_bundle(card.parent, image_id, sentence_id)
    (image,) = manifest.pick(np.array([image_id]))
    sentences, documents = own["sentences"].to_pylist(), own["documents"].to_pylist()
    return ImageTrace(image, sentences, documents, own["boxes"].num_rows, number, places)


def _means(name: str, found: str | None) -> bool:
    return found is not None and (found == name or found.endswith(f"/{name}"))


def _list_files(run: Path, names: set[str]) -> tuple[list[Path], list[TraceRows]]:
    """The regular files of these `names` under `run`, and a place with a note for what is no regular file."""
    files, others = [], []
    for path, status in walk(run, names.__contains__):
        if isinstance(status, OSError):
            others.append(TraceRows(path, "unread", (), explain(path, status)))
        elif kind := kind_of(status.st_mode):
            others.append(TraceRows(path, "unread", (), f"it is {kind}, which is not looked into"))
        else:
            files.append(path)
    return sorted(files), others


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
            rows = bundle.packed_table(modality).find(f"{modality[:-1]}_id", np.array(wanted, np.int64))
        except (IntegrityError, KeyError) as error:
            yield TraceRows(file, modality, (), str(error))
            continue
        note = f"not indexed: the bundle has the splits {', '.join(bundle.card.get('splits', ()))}"
        yield TraceRows(file, modality, tuple(rows.tolist()), "" if len(rows) else note)
