"""What the report's tables hold."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.metrics.paired import Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.metrics.summary import DIRECTIONS, RECALLS, by_setting, recall_sum, reported_first, with_folds
from pipeline.storage.card import Card
from pipeline.storage.json_files import JsonObject
from pipeline.storage.records import RuleCost

COLUMNS = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "median"}
"""Measure -> heading, for each direction."""
EXAMPLES = 3
"""Files named for each reason of a rejection."""
JUDGEMENTS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    **{"rouge_l": "ROUGE-L", "cider": "CIDEr", "meteor": "METEOR", "copied": "copied", "length": "words"},
}
"""Measure of a generator -> heading in the table of judged sentences."""
FINDINGS = {
    "leak": "near-duplicates in different splits",
    "copy": "near-duplicates within a split",
    "caption": "single captions that are probably wrong",
    "captions": "photos whose captions are probably all wrong",
}
"""Kinds of findings of an audit."""
MINUTES = 600
"""From so many on, hours are enough."""


@dataclass(frozen=True)
class ReportCell:
    """A measure with its interval, if there is one; `best` where no other model does better."""

    value: float
    interval: tuple[float, float] | None
    best: bool


@dataclass(frozen=True)
class Comparison:
    """Models evaluated on the same queries: `cells[model][direction][measure]`.

    `chance[direction]` has the measures of a random order, where these are recorded.
    """

    split: str
    protocol: str
    n_images: int
    n_sentences: int
    cells: Mapping[str, Mapping[str, Mapping[str, ReportCell]]]
    chance: Mapping[str, Mapping[str, float]]


def is_probable(finding: JsonObject) -> bool:
    """Whether an audit's finding is a copy, or a caption that is probably wrong; others are the next worst."""
    return finding["captions"] is None or finding["score"] <= finding["threshold"]


def compare_models(evaluations: Iterable[JsonObject]) -> list[Comparison]:
    """A comparison for each split and protocol: the test split first, then in the order given."""
    comparisons = []
    for (split, protocol), group in reported_first(with_folds(evaluations)):
        cells = {
            evaluation["model"]: {
                side: {name: _cell(evaluation[side], [other[side] for other in group], name) for name in COLUMNS}
                for side in DIRECTIONS
            }
            for evaluation in group
        }
        chance = next((one["chance"] for one in group if "chance" in one), {})
        comparisons.append(Comparison(split, protocol, group[0]["n_images"], group[0]["n_sentences"], cells, chance))
    return comparisons


def _cell(measures: JsonObject, others: Sequence[JsonObject], name: str) -> ReportCell:
    value = measures[name]
    values = [other[name] for other in others]
    best = min(values) if name == "median_rank" else max(values)
    interval = measures.get(f"{name}_ci95")
    return ReportCell(value, tuple(interval) if interval else None, value == best)


def best_model(evaluations: Sequence[JsonObject], models: Collection[str]) -> str:
    """The one of `models` with the greatest sum of recalls on dev, or on the first split where there is no dev."""
    known = [evaluation for evaluation in evaluations if evaluation["model"] in models]
    if not known:
        raise IntegrityError(f"the summary has no evaluation of {', '.join(models)}; evaluate and summarise them")
    _, group = by_setting([e for e in known if e["split"] == "dev"] or known)[0]
    return max(group, key=recall_sum)["model"]


def count_reasons(rejects: Iterable[JsonObject]) -> list[dict[str, Any]]:
    """`what` was rejected for which `reason`, the `count`, the most common first, and some of the `files`. What follows
    a reason's colon is of one file alone."""
    counts: Counter[tuple[str, str]] = Counter()
    files: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for reject in rejects:
        key = (str(reject["what"]), str(reject["reason"]).partition(":")[0])
        counts[key] += 1
        if len(files[key]) < EXAMPLES:
            files[key].append(str(reject["file"]))
    return [
        {"what": what, "reason": reason, "count": count, "files": files[what, reason]}
        for (what, reason), count in counts.most_common()
    ]


def describe_models(models: Mapping[str, JsonObject], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe each model whose training log has the settings that were `chosen` on dev: the `registered` model, a
    line `about` it (from `kinds`), and the mean correlation of the dimensions of a fitted model on train and on dev.
    `models` maps a name to the record of its training."""
    notes = []
    for name, details in models.items():
        log, registered = details.get("training_log", {}), details.get("registered", name)
        if "chosen" not in log:
            continue
        notes.append(
            {
                "name": name,
                "registered": ", ".join(filter(None, [registered, _in_words(details.get("named", {}))])),
                "about": kinds.get(registered, ""),
                "chosen": _in_words({**log["chosen"], **log["chosen"].get("transfer", {})}),
                "train_correlation": _mean(log.get("train_correlations")),
                "dev_correlation": _mean(log.get("dev_correlations")),
            }
        )
    return notes


def _mean(values: Sequence[float] | None) -> float | None:
    return float(np.mean(values)) if values else None


def describe_encoders(cards: Iterable[Card]) -> list[dict[str, Any]]:
    """Describe the encoders on the cards: the `network` and its layer, the origin of its `weights`, and whether it is
    `untrained`."""
    notes = []
    for name, encoder in {name: stored for card in cards for name, stored in card.encoders.items()}.items():
        weights = encoder.weights.to_json()
        origin = encoder.weights.origin
        details = [
            f"{key} {shorten(str(value))}" for key, value in weights.items() if key != "origin" and value is not None
        ]
        network = f"{encoder.architecture}, layer {encoder.layer}"
        described = {"network": network, "weights": ", ".join([origin, *details]), "untrained": origin == "untrained"}
        notes.append({"name": name, **described})
    return notes


def shorten(value: str) -> str:
    """A SHA-256 abbreviated."""
    return f"{value[:12]}…" if len(value) == 64 else value


def _in_words(chosen: JsonObject) -> str:
    """The chosen combination in words, whatever axes it has."""
    values = {key.replace("_", " "): value for key, value in chosen.items() if not isinstance(value, Mapping)}
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
    )


def measure_rows(rows: np.ndarray) -> dict[str, float]:
    """Measure n >= 1 sampled rows of features (n, dim): their number `sampled`, the mean `length` and its standard
    deviation `spread`, the numbers of rows that are `zero` or `equal` to another, and of `constant` columns."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    return {
        "sampled": len(rows),
        "length": float(lengths.mean()),
        "spread": float(lengths.std()),
        "zero": int((lengths == 0).sum()),
        "equal": len(rows) - len(np.unique(rows, axis=0)),
        "constant": int((rows.min(axis=0) == rows.max(axis=0)).sum()) if len(rows) > 1 else 0,
    }


def explain_dashes(judged: Sequence[JsonObject]) -> list[tuple[list[str], str]]:
    """The metrics that some of `judged` (the JSON of `evaluate-descriptions`) lack, by the reason for it."""
    reasons: dict[str, dict[str, None]] = {}
    for one in judged:
        for name, reason in one.get("not_measured", {}).items():
            reasons.setdefault(reason, {})[JUDGEMENTS[name]] = None
    return [(list(names), reason) for reason, names in reasons.items()]


def with_total(costs: Sequence[RuleCost]) -> list[RuleCost]:
    """The rows of pipeline.storage.records.add_up, at least one, and below them their total."""
    total: RuleCost = {
        "rule": "total",
        "jobs": sum(cost["jobs"] for cost in costs),
        "seconds": sum(cost["seconds"] for cost in costs),
        "processor": sum(cost["processor"] for cost in costs),
        "memory_mb": max(cost["memory_mb"] for cost in costs),
    }
    return [*costs, total]


def duration(seconds: float) -> str:
    """`2 min 5 s`, or `0.4 s`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < MINUTES else f"{seconds / 3600:,.0f} h"


# --- systems of several runs, and of somebody else's table, beside one of them

RECALL_COLUMNS = [(direction, measure) for direction in DIRECTIONS for measure in RECALLS]
HEADINGS = [f"{direction}_{measure}" for direction, measure in RECALL_COLUMNS]
"""The headings of a table of figures of another system, after `model`."""


@dataclass(frozen=True)
class ComparedSystem:
    """A system with its `recalls` in percent, in the order of RECALL_COLUMNS. A recall that is not known is None.

    If its ranks are stored, `draw` has them, for the photos with the sha256 `photos` (n,), in ascending order.
    """

    name: str
    source: str
    recalls: Sequence[float | None]
    draw: Draw | None = None
    photos: np.ndarray | None = None

    @property
    def sum(self) -> float | None:
        """The sum of all recalls; None if one is not known."""
        known = [recall for recall in self.recalls if recall is not None]
        return sum(known) if len(known) == len(self.recalls) else None

    def minus(self, reference: "ComparedSystem", bootstrap: Bootstrap) -> dict[str, Any]:
        """By how much its sum of recalls is above that of the `reference`, with the paired 95 % interval over photos if
        both were tested on the same ones; empty where one has no sum."""
        if self.sum is None or reference.sum is None:
            return {}
        photos = [system.photos for system in (self, reference) if system.photos is not None]
        if self.draw and reference.draw and len(photos) == 2 and np.array_equal(photos[0], photos[1]):
            return dict(compare_draws([self.draw], [reference.draw], bootstrap))
        return {"difference": self.sum - reference.sum}


def measured_system(
    source: str, evaluation: JsonObject, ranks: Mapping[str, np.ndarray], photos: Sequence[str]
) -> ComparedSystem:
    """A model of the run `source`, from its evaluation, its ranks, and the sha256 of the split's photos (n,)."""
    hashes, numbers = np.unique(np.asarray(photos), return_inverse=True)
    images = {"image_to_sentence": numbers, "sentence_to_image": numbers[ranks["owners"]]}
    recalls = [evaluation[direction][measure] for direction, measure in RECALL_COLUMNS]
    return ComparedSystem(evaluation["model"], source, recalls, draw_of_ranks(ranks, images, RECALL_COLUMNS), hashes)


class ComparedRow(TypedDict):
    """A system, and its difference from the reference, which is empty if the sum of one is not known."""

    system: ComparedSystem
    minus: dict[str, Any]


def compare_systems(systems: Iterable[ComparedSystem], bootstrap: Bootstrap) -> list[ComparedRow]:
    """A row for each system, the greatest sum first and those without a sum last; `minus` compares each with the first
    of `systems`."""
    reference, *others = systems
    rows: list[ComparedRow] = [{"system": reference, "minus": {}}]
    rows += [ComparedRow(system=other, minus=other.minus(reference, bootstrap)) for other in others]
    return sorted(rows, key=lambda row: -(row["system"].sum or 0))
