"""What the generators say of the same photographs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.index.vectors import evenly_spaced
from pipeline.report.examples import ReportPicture

SHOWN = 6
"""Photographs, at even distances through those that were described."""

HEADINGS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    **{"rouge_l": "ROUGE-L", "cider": "CIDEr", "meteor": "METEOR", "copied": "copied", "length": "words"},
}
"""Measure of a generator -> heading in the table of judged sentences."""


@dataclass(frozen=True)
class Generated:
    """A photograph and the best sentence of each generator, (generator, sentence, whether it is copied)."""

    what: ReportPicture
    sentences: Sequence[tuple[str, str, bool]]


def compare_generators(
    descriptions: Sequence[Mapping[str, Any]],
    pick: Callable[[np.ndarray], Sequence[Mapping[str, Any]]],
    picture: Callable[[Mapping[str, Any]], ReportPicture],
) -> list[Generated]:
    """Photographs that all of `descriptions` (the JSON of `describe`, one a generator) describe; `pick` finds the rows
    of some images by their ids."""
    best = [
        {one["image_id"]: one["sentences"][0] for one in each["images"] if one["sentences"] and one["box"] is None}
        for each in descriptions
    ]
    common = np.array(sorted(set.intersection(*map(set, best))) if best else [], np.int64)
    return [
        Generated(
            picture(row),
            [
                (each["generator"], own[row["image_id"]]["text"], own[row["image_id"]]["verbatim"])
                for each, own in zip(descriptions, best, strict=True)
            ],
        )
        for row in pick(common[evenly_spaced(len(common), SHOWN)])
    ]


def explain_dashes(judged: Sequence[Mapping[str, Any]]) -> list[tuple[list[str], str]]:
    """The metrics that some of `judged` (the JSON of `evaluate-descriptions`) lack, by the reason for it."""
    reasons: dict[str, dict[str, None]] = {}
    for one in judged:
        for name, reason in one.get("not_measured", {}).items():
            reasons.setdefault(reason, {})[HEADINGS[name]] = None
    return [(list(names), reason) for reason, names in reasons.items()]
