"""Photographs of the collection with what is said of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
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


def draw_samples(
    images: pa.Table, sentences: pa.Table, documents: pa.Table, picture: Callable[[Mapping[str, Any]], ReportPicture]
) -> list[CollectionSample]:
    """Images at even distances among those with sentences, then among those with weak text, of a manifest's tables."""
    samples = []
    for table in (sentences, documents):
        owners = pc.unique(table["image_id"]).to_numpy()
        for image in images.take(owners[evenly_spaced(len(owners), SAMPLES)]).to_pylist():
            texts = _of(sentences, image["image_id"]) if table is sentences else []
            weak = _of(documents, image["image_id"])[:1] if table is documents else []
            document = {key: weak[0][key] for key in ("title", "tags", "description") if weak and weak[0][key]}
            said = [row["text"] for row in texts[:SENTENCES]]
            samples.append(CollectionSample(picture(image), image["split"], said, document))
    return samples


def first_sentence(sentences: pa.Table, image_id: int) -> str | None:
    """Of an image, from the manifest's table; None where it has none."""
    found = sentences["text"].filter(pc.equal(sentences["image_id"], image_id))
    return found[0].as_py() if len(found) else None


def _of(table: pa.Table, image_id: int) -> list[dict[str, Any]]:
    return table.filter(pc.equal(table["image_id"], image_id)).to_pylist()
