"""Alignments `alignments/<model>/<split>.jsonl`: which words of a sentence go with which box of its image. One segment
a line: {sentence_id, image_id, words, box, score}."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from pipeline.storage.commit import publish, read_verified
from pipeline.storage.forms import Count, Finite, Form
from pipeline.storage.records import read_lines

ALIGNMENTS = "alignments"
REMEDY = "give a file that align wrote"


class SegmentForm(Form):
    sentence_id: Count
    image_id: Count
    words: list[str]
    box: Annotated[list[Finite], Field(min_length=4, max_length=4)]
    score: Finite


def write_alignments(path: Path, segments: Sequence[Mapping[str, Any]], **about: Any) -> None:
    """Publish all segments of a split; `about` is the `provenance` and `details`."""
    lines = "".join(json.dumps(segment, ensure_ascii=False) + "\n" for segment in segments).encode()
    publish(path, lines, kind=ALIGNMENTS, rows=len(segments), **about)


def read_alignments(path: Path) -> list[dict[str, Any]]:
    """What `align` wrote. Raises IntegrityError naming a line that is not a segment."""
    return read_lines(read_verified(path, ALIGNMENTS)[0], SegmentForm, path, REMEDY)
