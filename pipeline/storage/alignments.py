"""Alignments `alignments/<model>/<split>.jsonl`: which words of a sentence speak of which box of its image, one segment
a line {sentence_id, image_id, words, box, score}; beside them a drawing."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.errors import IntegrityError
from pipeline.storage.atomic import DRAWING, Sidecar, add_artefact, read_verified
from pipeline.storage.batch import FileBatch
from pipeline.storage.forms import Count, Finite, Form
from pipeline.storage.records import read_lines

ALIGNMENTS = "alignments"
REMEDY = "give what align wrote"


class SegmentForm(Form):
    sentence_id: Count
    image_id: Count
    words: list[str]
    box: Annotated[list[Finite], Field(min_length=4, max_length=4)]
    score: Finite


def write_alignments(
    path: Path,
    segments: Sequence[Mapping[str, Any]],
    drawing: bytes,
    *,
    fingerprint: str,
    details: Mapping[str, Any],
) -> None:
    """Publish the segments of all sentences of a split, and the drawing with the ending .png."""
    lines = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in segments).encode()
    batch, about = FileBatch(), {"rows": len(segments), "fingerprint": fingerprint, "details": details}
    add_artefact(batch, path.with_suffix(".png"), drawing, kind=DRAWING, **about)
    add_artefact(batch, path, lines, kind=ALIGNMENTS, **about)
    batch.publish()


def read_alignments(path: Path) -> tuple[list[dict[str, Any]], Sidecar]:
    """What `align` wrote. IntegrityError names a line that is no segment."""
    data, sidecar = read_verified(path, ALIGNMENTS)
    segments = read_lines(data, SegmentForm, path, REMEDY)
    if len(segments) != sidecar.rows:
        raise IntegrityError(f"{path} has {len(segments)} segments, its commit says {sidecar.rows}; {REMEDY}")
    return segments, sidecar
