"""Where one image is in a run: its rows in the manifest and in every artefact, or the reason why it was left out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.storage.bundle import Bundle
from pipeline.storage.card import CARD
from pipeline.storage.commit import commit_path, read_commit
from pipeline.storage.manifest import Manifest
from pipeline.storage.shards import EMBEDDINGS, FRAGMENTS, Shard, shard_path
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


def find_images(manifest: Manifest, name: str) -> list[int]:
    """The ids of the images that match `name`: an id, a path or member, or the end of one after a slash."""
    if name.isdecimal() and len(name) <= MOST_DIGITS and int(name) < manifest.n_images:
        return [int(name)]
    ids = []
    for number in range(manifest.n_shards):
        images, first = manifest.table("images", number), number * manifest.shard_size
        names = zip(images["path"].to_pylist(), images["member"].to_pylist(), strict=True)
        ids += [first + row for row, (path, member) in enumerate(names) if _means(name, path) or _means(name, member)]
    return ids


def find_rejects(rejects: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [reject for reject in rejects if _means(name, reject["file"]) or repr(name) in reject["reason"]]


def trace(run: Path, manifest: Manifest, image_id: int) -> ImageTrace:
    """Follow an image through all artefacts under `run`. Damaged ones become places with a note."""
    number, tables = image_id // manifest.shard_size, {}
    for name in ("sentences", "documents", "boxes"):
        table = manifest.table(name, number)
        first, last = np.searchsorted(table["image_id"].to_numpy(), [image_id, image_id + 1]).tolist()
        tables[name] = table.slice(first, last - first)
    sentence_id = tables["sentences"]["sentence_id"].to_pylist()
    places = []
    for path in sorted(run.rglob(shard_path(run, number).name)):
        places += _in_shard(path, image_id, sentence_id)
    for card in sorted(run.rglob(CARD)):
        places += _in_bundle(card.parent, image_id, sentence_id)
    (image,) = manifest.pick([image_id])
    sentences, documents = tables["sentences"].to_pylist(), tables["documents"].to_pylist()
    return ImageTrace(image, sentences, documents, tables["boxes"].num_rows, number, places)


def _means(name: str, other: str | None) -> bool:
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
            rows = bundle.packed_table(modality).find(f"{modality[:-1]}_id", np.array(wanted, np.int64))
        except (IntegrityError, KeyError) as error:
            yield TraceRows(file, modality, (), str(error))
            continue
        note = f"not indexed: the bundle has the splits {', '.join(bundle.card.get('splits', ()))}"
        yield TraceRows(file, modality, tuple(rows.tolist()), "" if len(rows) else note)
