"""Photographs of the collection with what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pipeline.index.vectors import evenly_spaced
from pipeline.report.examples import ReportPicture

SAMPLES = 8
"""Photographs of each kind: with sentences, and with weak text."""
SENTENCES = 2
"""Sentences shown of each."""


@dataclass(frozen=True)
class CollectionSample:
    """A photograph, its split, and its first sentences, or its title, tags and description by name."""

    what: ReportPicture
    split: str
    sentences: Sequence[str]
    document: Mapping[str, str]


def draw_samples(manifest: Any, picture: Callable[[Mapping[str, Any]], ReportPicture]) -> list[CollectionSample]:
    """Images at even distances among those with sentences, then among those with weak text, of a
    pipeline.storage.manifest.Manifest, which is read by shard."""
    samples = []
    for name in ("sentences", "documents"):
        for image in manifest.pick(_evenly_spaced_owners(manifest, name)):
            own = _of(manifest, name, image["image_id"])
            said = [row["text"] for row in own[:SENTENCES]] if name == "sentences" else []
            weak = own[0] if name == "documents" else {}
            document = {key: weak[key] for key in ("title", "tags", "description") if weak.get(key)}
            samples.append(CollectionSample(picture(image), image["split"], said, document))
    return samples


def first_sentence(manifest: Any, image_id: int) -> str | None:
    """Of an image; None where it has none."""
    found = _of(manifest, "sentences", image_id)
    return found[0]["text"] if found else None


def _evenly_spaced_owners(manifest: Any, name: str) -> np.ndarray:
    """(k,) the ids of images at even distances among those that have a row in a table."""
    ends = np.cumsum([len(pc.unique(manifest.table(name, shard)["image_id"])) for shard in range(manifest.n_shards)])
    places = evenly_spaced(int(ends[-1]), SAMPLES)
    found = [np.empty(0, np.int64)]
    for shard in np.unique(np.searchsorted(ends, places, "right")).tolist():
        owners = pc.unique(manifest.table(name, shard)["image_id"]).to_numpy()
        own = places - (ends[shard] - len(owners))
        found.append(owners[own[(own >= 0) & (own < len(owners))]])
    return np.concatenate(found)


def _of(manifest: Any, name: str, image_id: int) -> list[dict[str, Any]]:
    """The rows of an image in a table."""
    table = manifest.table(name, image_id // manifest.shard_size)
    return table.filter(pc.equal(table["image_id"], image_id)).to_pylist()
