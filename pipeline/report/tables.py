"""The contents of the tables in the report, and the comparison of systems of several runs."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.metrics.paired import Draw, compare_draws, draw_of_ranks
from pipeline.metrics.retrieval import Bootstrap
from pipeline.metrics.summary import (
    DIRECTIONS,
    RECALLS,
    by_setting,
    merge_seeds,
    recall_sum,
    reported_first,
    with_folds,
    without_seed,
)
from pipeline.storage.card import Card
from pipeline.storage.json_files import JsonObject
from pipeline.storage.records import RuleCost

COLUMNS = {"recall@1": "R@1", "recall@5": "R@5", "recall@10": "R@10", "median_rank": "median"}
"""Key of a measure -> its heading in the tables of retrieval, which have these columns for each direction."""
MAX_REJECT_FILES = 3
"""Maximum number of files that are named for each reason of rejection."""
JUDGEMENTS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    **{"rouge_l": "ROUGE-L", "cider": "CIDEr", "meteor": "METEOR", "copied": "copied", "length": "words"},
}
"""Key of a measure -> its heading in the table of generated captions."""
FINDINGS = {
    "leak": "near-duplicates in different splits",
    "copy": "near-duplicates within a split",
    "caption": "single captions that are probably wrong",
    "captions": "photos whose captions are probably all wrong",
}
"""Kind of finding of an audit -> the text that the report shows for it."""
MAX_MINUTES = 600
"""Number of minutes from which `duration` formats a duration in hours. Shorter durations have minutes and seconds."""


@dataclass(frozen=True)
class ReportCell:
    """The value of a measure of a model, or its mean over seeds. `best` says whether no other model is better.

    A single training may have an `interval`, and several seeds have a standard `deviation`. Otherwise `interval` and
    `deviation` are None.
    """

    value: float
    interval: tuple[float, float] | None
    best: bool
    deviation: float | None = None


@dataclass(frozen=True)
class Comparison:
    """The measures of models that were evaluated on the same queries: `cells[model][direction][measure]`.

    Models that differ only in their seeds are one model. `chance[direction]` has the measures of a random ranking.
    `chance` is empty if the evaluations do not have these measures.
    """

    split: str
    protocol: str
    n_images: int
    n_sentences: int
    cells: Mapping[str, Mapping[str, Mapping[str, ReportCell]]]
    chance: Mapping[str, Mapping[str, float]]

    def cells_of(self, model: str) -> Mapping[str, Mapping[str, ReportCell]]:
        """Return the cells of a model as {direction: {measure: cell}}.

        If `model` is one of several seeds, these are the cells of all seeds together.
        """
        return self.cells[model if model in self.cells else without_seed(model)]


def is_probable(finding: JsonObject) -> bool:
    """Return whether a finding of an audit is a near-duplicate, or captions that are probably wrong.

    Other findings are the next worst captions, which are listed without being called wrong.
    """
    return finding["captions"] is None or finding["score"] <= finding["threshold"]


def compare_models(evaluations: Iterable[JsonObject]) -> list[Comparison]:
    """Return a comparison of the models for each split and protocol. The test split comes first, and the others follow
    in the given order. The mean of the folds and the first fold, if there are folds, count as further protocols."""
    comparisons = []
    for (split, protocol), group in reported_first(merge_seeds(with_folds(evaluations))):
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
    return ReportCell(value, tuple(interval) if interval else None, value == best, measures.get(f"{name}_sd"))


def best_model(evaluations: Sequence[JsonObject], models: Collection[str]) -> str:
    """Return the one of `models` with the greatest sum of recalls on dev, by the protocol that was evaluated first.

    If none of these models was evaluated on dev, the split that was evaluated first counts. Raises IntegrityError if
    none of `models` was evaluated.
    """
    known = [evaluation for evaluation in evaluations if evaluation["model"] in models]
    if not known:
        raise IntegrityError(
            f"The summary has no evaluation of {', '.join(models)}. Run `jointspace run CONFIG`, which evaluates them."
        )
    _, group = by_setting([e for e in known if e["split"] == "dev"] or known)[0]
    return max(group, key=recall_sum)["model"]


def count_reasons(rejects: Iterable[JsonObject]) -> list[dict[str, Any]]:
    """Count the rejects by reason, the most common reason first.

    Each result says `what` was rejected, the `reason`, the `count`, and some of the `files`. The text after the colon
    of a reason belongs to a single file, and is ignored.
    """
    counts: Counter[tuple[str, str]] = Counter()
    files: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for reject in rejects:
        key = (str(reject["what"]), str(reject["reason"]).partition(":")[0])
        counts[key] += 1
        if len(files[key]) < MAX_REJECT_FILES:
            files[key].append(str(reject["file"]))
    return [
        {"what": what, "reason": reason, "count": count, "files": files[what, reason]}
        for (what, reason), count in counts.most_common()
    ]


def describe_models(models: Mapping[str, JsonObject], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Describe the models whose training log has the settings that were chosen on dev.

    `models` are the stored details of the models by name, and `kinds` has a line about each registered model. Each
    description has the `name` of the model, the line `about` the registered model, and the `chosen` settings as text.
    `registered` is the registered model, followed by the variant's own settings as text. `train_correlation` and
    `dev_correlation` are the mean correlations of the dimensions. Both are None for a model without correlations.
    `dev_correlation` is None for a refitted model too.
    """
    notes = []
    for name, details in models.items():
        log = details.get("training_log", {})
        registered = details.get("registered", name)
        if "chosen" not in log:
            continue
        notes.append(
            {
                "name": name,
                "registered": ", ".join(filter(None, [registered, _format_settings(details.get("named", {}))])),
                "about": kinds.get(registered, ""),
                "chosen": _format_settings({**log["chosen"], **log["chosen"].get("transfer", {})}),
                "train_correlation": _mean(log.get("train_correlations")),
                "dev_correlation": _mean(log.get("dev_correlations")),
            }
        )
    return notes


def _mean(values: Sequence[float] | None) -> float | None:
    return float(np.mean(values)) if values else None


def describe_encoders(cards: Iterable[Card]) -> list[dict[str, Any]]:
    """Describe each image encoder on the `cards` of indexes: the `name`, the `network` with its layer, the origin of
    the `weights`, and whether the encoder is `untrained`."""
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
    """Abbreviate a SHA-256. Other texts are returned unchanged."""
    return f"{value[:12]}…" if len(value) == 64 else value


def _format_settings(chosen: JsonObject) -> str:
    """Format settings as text, such as `image ridge 0.1, dimensions 128`. Nested settings are left out."""
    values = {key.replace("_", " "): value for key, value in chosen.items() if not isinstance(value, Mapping)}
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
    )


def measure_rows(rows: np.ndarray) -> dict[str, float]:
    """Measure n >= 1 sampled rows of features (n, dim).

    Returns their number `sampled`, the mean `length` of a row and its standard deviation `spread`, the number of rows
    that are `zero`, the number of rows that repeat an earlier row (`equal`), and the number of `constant` columns,
    which is 0 for a single row.
    """
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
    """Return the reasons why metrics were not measured, as pairs (headings, reason).

    The headings are the headings of the metrics that were not measured for this reason. `judged` are the JSON objects
    that `evaluate-descriptions` writes.
    """
    reasons: dict[str, dict[str, None]] = {}
    for one in judged:
        for name, reason in one.get("not_measured", {}).items():
            reasons.setdefault(reason, {})[JUDGEMENTS[name]] = None
    return [(list(names), reason) for reason, names in reasons.items()]


def with_total(costs: Sequence[RuleCost]) -> list[RuleCost]:
    """Return `costs`, the rows of pipeline.storage.records.cost_by_rule, followed by their total.

    There must be at least one row. The memory of the total is the greatest memory of a row.
    """
    total: RuleCost = {
        "rule": "total",
        "jobs": sum(cost["jobs"] for cost in costs),
        "seconds": sum(cost["seconds"] for cost in costs),
        "processor": sum(cost["processor"] for cost in costs),
        "memory_mb": max(cost["memory_mb"] for cost in costs),
    }
    return [*costs, total]


def duration(seconds: float) -> str:
    """Format a number of seconds, as in `0.4 s`, `2 min 5 s` or `12 h`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < MAX_MINUTES else f"{seconds / 3600:,.0f} h"


# --- comparing systems of several runs, and of a table of other results

RECALL_COLUMNS = [(direction, measure) for direction in DIRECTIONS for measure in RECALLS]
HEADINGS = [f"{direction}_{measure}" for direction, measure in RECALL_COLUMNS]
"""The headings of a CSV file with results of other systems, after the heading `model`."""


@dataclass(frozen=True)
class ComparedSystem:
    """A system `name` of a run or table `source`, with its `recalls` in percent, in the order of RECALL_COLUMNS. An
    unknown recall is None.

    If the ranks of the system are stored, `draws` has the ranks of each of its seeds, and `photos` (n,) has the sorted
    sha256 of the photos on which it was tested. The recalls are the means over the seeds. With several seeds,
    `deviations` has the standard deviations of the recalls and of their sum.
    """

    name: str
    source: str
    recalls: Sequence[float | None]
    draws: Sequence[Draw] = ()
    photos: np.ndarray | None = None
    deviations: Sequence[float | None] = (None,) * (len(RECALL_COLUMNS) + 1)

    @property
    def cells(self) -> list[tuple[float | None, float | None]]:
        """The recalls and their sum, each with its standard deviation over the seeds or None."""
        return list(zip((*self.recalls, self.sum), self.deviations, strict=True))

    @property
    def sum(self) -> float | None:
        """The sum of all recalls, or None if a recall is unknown."""
        known = [recall for recall in self.recalls if recall is not None]
        return sum(known) if len(known) == len(self.recalls) else None

    def minus(self, reference: "ComparedSystem", bootstrap: Bootstrap) -> dict[str, Any]:
        """Return the sum of recalls in percent of this system minus the sum of `reference`, as `difference`.

        If the ranks of both are stored, and both were tested on the same photos, the result also has `ci95`, the 95%
        interval of a paired bootstrap over photos. Both ends of the interval are nan if `bootstrap` has no resamples.
        The result is empty if one of the sums is unknown.
        """
        if self.sum is None or reference.sum is None:
            return {}
        photos = [system.photos for system in (self, reference) if system.photos is not None]
        if self.draws and reference.draws and len(photos) == 2 and np.array_equal(photos[0], photos[1]):
            return dict(compare_draws(self.draws, reference.draws, bootstrap))
        return {"difference": self.sum - reference.sum}


def measured_system(
    source: str, evaluation: JsonObject, ranks: Mapping[str, np.ndarray], photos: Sequence[str]
) -> ComparedSystem:
    """Return a model of the run `source` as a system.

    `evaluation` is the evaluation of the model on a split, and `photos` (n,) are the sha256 of the photos of the split.
    `ranks` has the ranks of the queries for each direction, and in `owners` the number of the photo of each caption.
    """
    hashes, numbers = np.unique(np.asarray(photos), return_inverse=True)
    images = {"image_to_sentence": numbers, "sentence_to_image": numbers[ranks["owners"]]}
    recalls = [evaluation[direction][measure] for direction, measure in RECALL_COLUMNS]
    return ComparedSystem(evaluation["model"], source, recalls, [draw_of_ranks(ranks, images, RECALL_COLUMNS)], hashes)


def merge_seed_systems(systems: Iterable[ComparedSystem]) -> list[ComparedSystem]:
    """Merge systems that have stored ranks, come from the same source, and have names that differ only in the seed.

    A merged system has the mean recalls of its seeds, their standard deviations, the stored ranks of all seeds, and a
    name such as `lstm, 3 seeds`. Other systems are returned unchanged.
    """
    groups: dict[tuple[str, str], list[ComparedSystem]] = {}
    for system in systems:
        groups.setdefault((system.source, without_seed(system.name) if system.draws else system.name), []).append(
            system
        )
    merged = []
    for (source, name), group in groups.items():
        if len(group) == 1:
            merged += group
            continue
        values = np.array([[*system.recalls, system.sum] for system in group], float)
        draws = [draw for system in group for draw in system.draws]
        recalls = values.mean(axis=0)[:-1].tolist()
        deviations = values.std(axis=0, ddof=1).tolist()
        named = f"{name}, {len(group)} seeds"
        merged.append(ComparedSystem(named, source, recalls, draws, group[0].photos, deviations))
    return merged


class ComparedRow(TypedDict):
    """A system, and in `minus` its difference from the reference. `minus` is empty for the reference itself, and if one
    of the sums is unknown."""

    system: ComparedSystem
    minus: dict[str, Any]


def compare_systems(systems: Iterable[ComparedSystem], bootstrap: Bootstrap) -> list[ComparedRow]:
    """Compare each system with the first system, which is the reference. There must be at least one system.

    Returns a row for each system. The greatest sum comes first, and systems without a sum come last.
    """
    reference, *others = systems
    rows: list[ComparedRow] = [{"system": reference, "minus": {}}]
    rows += [ComparedRow(system=other, minus=other.minus(reference, bootstrap)) for other in others]
    return sorted(rows, key=lambda row: -(row["system"].sum or 0))
