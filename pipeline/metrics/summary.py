"""Summaries of evaluations for the terminal and for Markdown tables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Evaluation = Mapping[str, Any]
"""The contents of an evaluation's JSON file.

An evaluation has the keys `model`, `split`, `protocol`, `n_images` and `n_sentences`. It maps each direction to the
measures that pipeline.metrics.retrieval computes. An evaluation with folds also has `folds` (the number of folds),
`mean_of_folds` and `each_fold`.
"""

DIRECTIONS = ("image_to_sentence", "sentence_to_image")
MEASURED = (*DIRECTIONS, "sentence_similarity")
"""The keys of an evaluation whose values are measures. An evaluation without sentence similarity lacks the last key."""
RECALLS = ("recall@1", "recall@5", "recall@10")
MEASURES = {name: name.replace("recall", "R") for name in RECALLS}
MEASURES |= {name: name.replace("_", " ") for name in ("median_rank", "mean_rank")}
"""Key of a measure in an evaluation -> heading of its column."""


def headline(evaluation: Evaluation) -> Iterable[str]:
    """Yield a line with the recalls and the median rank for each direction of an evaluation, without intervals."""
    for direction in DIRECTIONS:
        values = evaluation[direction]
        recalls = " / ".join(f"{values[name]:.1f}" for name in RECALLS)
        setting = f"{evaluation['model']}, {evaluation['split']} split, {evaluation['protocol']}, {spoken(direction)}"
        yield f"{setting}: recall@1/5/10 {recalls}, median rank {values['median_rank']:g}"


def with_folds(evaluations: Iterable[Evaluation]) -> Iterable[Evaluation]:
    """Yield each evaluation. After an evaluation with folds, also yield the mean of its folds and its first fold as
    evaluations.

    The `protocol` of the mean is the protocol of the evaluation, followed by `, mean of K folds`. The `protocol` of the
    first fold ends in `, the first of K folds`. Both have the numbers of images and sentences of one fold. The first
    fold is included because some papers report one subset of the test images (Karpathy and Fei-Fei 2015, Table 1).
    """
    for evaluation in evaluations:
        yield evaluation
        if "mean_of_folds" in evaluation:
            count = evaluation["folds"]
            sizes = {name: evaluation[name] // count for name in ("n_images", "n_sentences")}
            protocol = f"{evaluation['protocol']}, mean of {count} folds"
            plain = {key: one for key, one in evaluation.items() if key not in ("sentence_similarity", "chance")}
            yield {**plain, **evaluation["mean_of_folds"], **sizes, "protocol": protocol}
            first = evaluation["each_fold"][0]
            yield {**plain, **first, "protocol": f"{evaluation['protocol']}, the first of {count} folds"}


def without_seed(name: str) -> str:
    """Return the name that the trainings of a variant with several seeds have in common: `lstm` for `lstm-seed2`."""
    return re.sub(r"-seed\d+", "", name)


def merge_seeds(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Merge the evaluations of models whose names differ only in the seed, for each split and protocol.

    A merged evaluation has the means of the measures, the standard deviations of the measures as `<measure>_sd`, and
    the number of merged evaluations as `seeds`. It has no intervals, because the intervals of a single training do not
    show the variation between seeds. The evaluation of a model with a single seed is returned unchanged.
    """
    groups: dict[tuple[str, str, str], list[Evaluation]] = {}
    for evaluation in evaluations:
        key = (without_seed(evaluation["model"]), evaluation["split"], evaluation["protocol"])
        groups.setdefault(key, []).append(evaluation)
    return [_merge(name, group) if len(group) > 1 else group[0] for (name, _, _), group in groups.items()]


def _merge(name: str, group: Sequence[Evaluation]) -> Evaluation:
    merged = {**group[0], "model": name, "seeds": len(group)}
    for what in MEASURED:
        if all(what in evaluation for evaluation in group):
            values = {measure: [evaluation[what][measure] for evaluation in group] for measure in MEASURES}
            means = {measure: float(np.mean(found)) for measure, found in values.items()}
            deviations = {f"{measure}_sd": float(np.std(found, ddof=1)) for measure, found in values.items()}
            merged[what] = means | deviations
    return merged


def spoken(direction: str) -> str:
    """Return the name of a direction for users, such as `photo to caption` for `image_to_sentence`."""
    return direction.replace("image", "photo").replace("sentence", "caption").replace("_", " ")


def by_setting(evaluations: Iterable[Evaluation]) -> list[tuple[tuple[str, str], list[Evaluation]]]:
    """Group evaluations that can be compared with each other, because they have the same split and protocol.

    Returns pairs ((split, protocol), evaluations), in the order in which each split and protocol first occurs.
    """
    groups: dict[tuple[str, str], list[Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault((evaluation["split"], evaluation["protocol"]), []).append(evaluation)
    return list(groups.items())


def reported_first(evaluations: Iterable[Evaluation]) -> list[tuple[tuple[str, str], list[Evaluation]]]:
    """Group evaluations that have the same split and protocol, with the test split before all other splits.

    Returns pairs ((split, protocol), evaluations), which are otherwise in the order of `by_setting`.
    """
    return sorted(by_setting(evaluations), key=lambda item: item[0][0] != "test")


def recall_sum(evaluation: Evaluation) -> float:
    """Compute the sum of recall@1, @5 and @10 of both directions in percent."""
    return sum(evaluation[direction][name] for direction in DIRECTIONS for name in RECALLS)


def ranking(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """Return the evaluations of the first group of `reported_first`, the greatest recall sum first. The evaluations of
    this group are by the first protocol on the test split, or on the first split if the test split was not evaluated.
    There must be at least one evaluation."""
    (_, group), *_ = reported_first(evaluations)
    return sorted(group, key=recall_sum, reverse=True)


def compare_briefly(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return lines for the terminal: a heading, and for each model a line with recall@1, @5 and @10 of both directions.

    Only the evaluations that `ranking` returns are shown, the best first, because they have the same split and
    protocol. Several seeds of a model are one line with means ± standard deviations. There must be at least one
    evaluation.
    """
    ranked = ranking(merge_seeds(evaluations))
    first = ranked[0]
    longest = max(len(evaluation["model"]) for evaluation in ranked)
    gallery = f"{first['n_images']} photos, {first['n_sentences']} captions, {first['protocol']}"
    lines = [f"recall@1 / 5 / 10 on the {first['split']} split ({gallery}), best first:"]
    for evaluation in ranked:
        cells = [
            f"{spoken(direction)} {' / '.join(_with_deviation(evaluation[direction], name) for name in RECALLS)}"
            for direction in DIRECTIONS
        ]
        lines.append(f"  {evaluation['model']:{longest}}  {'   '.join(cells)}")
    return lines


def markdown(evaluations: Iterable[Evaluation]) -> str:
    """Return a Markdown text with a heading and a table for each split and protocol. The mean of the folds and the
    first fold of an evaluation have tables of their own.

    A table has a row for each model and direction, and for sentence similarity if it was measured. The columns are the
    recalls in percent, the median rank and the mean rank, with 95% intervals in brackets. Several seeds of a model
    share a row with means ± standard deviations.
    """
    parts = []
    for (split, protocol), group in by_setting(merge_seeds(with_folds(evaluations))):
        first = group[0]
        parts.append(f"## {split} split, {protocol}: {first['n_images']} photos, {first['n_sentences']} captions\n")
        lines = [["model", "direction", *MEASURES.values()], ["---"] * (2 + len(MEASURES))]
        for evaluation, what in ((one, what) for one in group for what in MEASURED if what in one):
            cells = [_with_interval(evaluation[what], name) for name in MEASURES]
            seeds = f", {evaluation['seeds']} seeds" if "seeds" in evaluation else ""
            lines.append([evaluation["model"] + seeds, spoken(what), *cells])
        parts.append("".join(f"| {' | '.join(line)} |\n" for line in lines))
    return "\n".join(parts)


def _with_deviation(values: Evaluation, name: str) -> str:
    return f"{values[name]:4.1f}" + (f" ± {values[f'{name}_sd']:.1f}" if f"{name}_sd" in values else "")


def _with_interval(values: Evaluation, name: str) -> str:
    interval = values.get(f"{name}_ci95")
    return _with_deviation(values, name).lstrip() + (f" [{interval[0]:.1f}, {interval[1]:.1f}]" if interval else "")
