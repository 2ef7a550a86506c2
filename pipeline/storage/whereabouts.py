"""What became of one image: its row in the manifest and in every artefact, or the reason for which it was left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import InputError, IntegrityError
from pipeline.storage.atomic import is_sidecar, read_json, sidecar_path
from pipeline.storage.bundle import CARD, Bundle
from pipeline.storage.embeddings import FRAGMENTS
from pipeline.storage.manifest import Manifest
from pipeline.storage.reading import explain, is_there, kind_of, read_bytes, walk
from pipeline.storage.rejects import from_lines
from pipeline.storage.shards import EMBEDDINGS, Shard
from pipeline.storage.tables import MOST_DIGITS


@dataclass(frozen=True)
class TraceRows:
    """Rows of one file that are about an image: those `of` it, its sentences, its regions ...; empty where there is
    none, for the reason in `note`."""

    file: Path
    of: str
    rows: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True)
class ImageTrace:
    """An image's row of the manifest with its `sentences`, its `shard`, and the `places` where it is."""

    image: dict[str, Any]
    sentences: list[dict[str, Any]]
    documents: list[dict[str, Any]]
    boxes: int
    shard: int
    places: list[TraceRows]


def find_manifest(run: Path) -> Manifest | None:
    """The manifest under the folder `run`, if there is one."""
    found = sorted(path for path, _ in walk(run) if path.name == "manifest.json")
    return Manifest(found[0].parent) if found else None


def find_images(manifest: Manifest, name: str) -> list[int]:
    """The ids of the images that `name` may mean: an id, a path or member, or the end of one after a slash."""
    if name.isdecimal() and len(name) <= MOST_DIGITS and int(name) < manifest.images.num_rows:
        return [int(name)]
    columns = (manifest.images["path"].to_pylist(), manifest.images["member"].to_pylist())
    return [row for row, names in enumerate(zip(*columns, strict=True)) if any(_means(name, found) for found in names)]


def find_rejects(rejects: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """What was left out of the collection that has to do with `name`."""
    return [row for row in rejects if _means(name, row["file"]) or repr(name) in row["reason"]]


def read_rejects(run: Path) -> list[dict[str, Any]]:
    """The rejects of a collection that was refused as a whole. InputError where there are none either."""
    path = Path(run) / "rejects.jsonl"
    if not is_there(path):
        raise InputError(f"{run} has neither a manifest nor rejects; give the folder of a run")
    return from_lines(read_bytes(path), path)


def trace(run: Path, manifest: Manifest, image_id: int) -> ImageTrace:
    """Follow an image through all artefacts under the folder `run`. A damaged one, and whatever cannot be looked into,
    is a place with a note."""
    rows = manifest.shard(image_id // manifest.shard_size)
    first, last = np.searchsorted(manifest.sentence_images, [image_id, image_id + 1]).tolist()
    own = range(first, last)
    files, places = _list_files(run)
    places += [
        place
        for path in files
        if path.name == f"shard-{rows.number:05d}.h5"
        for place in _in_shard(path, image_id, own)
    ]
    for card in (path for path in files if path.name == CARD):
        places += _in_bundle(card.parent, image_id, own)
    documents, boxes = (
        table.slice(*_span(table["image_id"].to_numpy(), image_id)) for table in (manifest.documents, manifest.boxes)
    )
    return ImageTrace(
        manifest.images.slice(image_id, 1).to_pylist()[0],
        manifest.sentences.slice(first, last - first).to_pylist(),
        documents.to_pylist(),
        boxes.num_rows,
        rows.number,
        places,
    )


def _means(name: str, found: str | None) -> bool:
    return found is not None and (found == name or found.endswith(f"/{name}"))


def _span(owners: np.ndarray, image_id: int) -> tuple[int, int]:
    """Where the rows of an image begin among ascending `owners`, and how many they are."""
    first, last = np.searchsorted(owners, [image_id, image_id + 1]).tolist()
    return first, last - first


def _list_files(run: Path) -> tuple[list[Path], list[TraceRows]]:
    """The regular files under `run`, and a place for each thing that is not looked into."""
    files, others = [], []
    for path, status in walk(run):
        if isinstance(status, OSError):
            others.append(TraceRows(path, "unread", (), explain(path, status)))
        elif kind := kind_of(status.st_mode):
            others.append(TraceRows(path, "unread", (), f"it is {kind}, which is not looked into"))
        else:
            files.append(path)
    return sorted(files), others


def _in_shard(path: Path, image_id: int, sentences: range) -> Iterator[TraceRows]:
    """The rows of one shard, whatever it holds: by its datasets `image_id`, `sentence_id` and `offsets`."""
    try:
        value = read_json(sidecar_path(path))
        shard = Shard(path, value["kind"] if is_sidecar(value) else "")
        owners = shard["image_id"]
    except IntegrityError as error:
        yield TraceRows(path, "images", (), str(error))
        return
    here = tuple(np.flatnonzero(owners == image_id).tolist())
    if shard.sidecar.kind in (EMBEDDINGS, FRAGMENTS):
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


def _in_bundle(folder: Path, image_id: int, sentences: range) -> Iterator[TraceRows]:
    for modality, wanted in (("images", [image_id]), ("sentences", list(sentences))):
        file = folder / f"{modality}.parquet"
        try:
            bundle = Bundle(folder)
            ids = bundle.table(modality)[f"{modality[:-1]}_id"].to_numpy()
        except (IntegrityError, KeyError) as error:
            yield TraceRows(file, modality, (), str(error))
            continue
        found = tuple(np.flatnonzero(np.isin(ids, wanted)).tolist())
        note = "" if found else f"not indexed: the bundle has the splits {', '.join(bundle.card.get('splits', ()))}"
        yield TraceRows(file, modality, found, note)
