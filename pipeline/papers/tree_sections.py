"""Socher et al. 2014, sections 6.6 and 6.7, as Markdown."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.papers.reproduction import System

SHOWN = 12
"""Relations that are printed of a system."""
LARGEST = (
    "nominal subject, possession modifier, passive auxiliary, preposition at, preposition in front of, passive"
    " auxiliary, passive nominal subject, object of preposition, preposition in, preposition on"
)
"""As printed, by falling Frobenius norm."""


def tree_sections(
    ours: Sequence[System],
    split: str,
    pairs: Mapping[str, Mapping[str, Any]],
    relations: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """Both sections; of several seeds the means. `pairs` are what measure_pairs gives for each model, `relations` the
    norms of each model that has matrices for them."""
    parts = ["## Socher et al.: section 6.6, sentences of one image that lie far apart", _pairs(ours, split, pairs)]
    if relations:
        parts += ["## Socher et al.: section 6.7, relations by the norm of their matrix", _relations(ours, relations)]
    return "\n\n".join(parts) + "\n"


def _pairs(systems: Sequence[System], split: str, models: Mapping[str, Mapping[str, Any]]) -> str:
    kept = [one for one in systems if all(name in models for name in one.names)]
    kinds = list(next(iter(models.values()))["verbs"])
    lengths = list(next(iter(models.values()))["lengths"][kinds[0]])
    lines = [
        "As printed: \"the main failure mode of the SDT-RNN occurs when a sentence that should describe the same image"
        " does not use a verb but the other sentences of that image do include a verb\". Below: the mean rank of a"
        f" sentence among the neighbours of another one of its image ({split} split, among all sentences of"
        " other images), with the 95% interval over images, by how many of the two have a verb; by how much it is worse"
        " where one has than where both have, in the same resamples; and the share of pairs with exactly one verb among"
        " all pairs and among the 1% of them with the worst ranks.",
        "",
        "| ours | "
        + " | ".join((*(f"verb in {kind}" for kind in kinds), "one - both", "pairs of one verb", "of the worst 1%"))
        + " |",
        "|---" * (len(kinds) + 4) + "|",
    ]  # fmt: skip
    for one in kept:
        own = [models[name] for name in one.names]
        cells = [_mean([value["verbs"][kind] for value in own]) for kind in kinds]
        cells.append(_mean([value["one_minus_both"] for value in own], "difference", "ci95"))
        every = [sum(part["n"] for part in value["verbs"].values()) for value in own]
        shares = [value["verbs"]["one"]["n"] / max(1, n) for value, n in zip(own, every, strict=True)]
        worst = [value["worst"]["one"] / max(1, sum(value["worst"].values())) for value in own]
        cells += [f"{100 * np.mean(share):.1f}%" for share in (shares, worst)]
        lines.append(f"| `{one.label}` | " + " | ".join(cells) + " |")
    lines += [
        "",
        "As printed: \"as long as both sentences either have a verb or do not, the SDT-RNN is more robust to different"
        " sentence lengths than bag of words representations\". Below: the mean rank where both have a verb, by the"
        " difference of their lengths in words, and the last column over the first.",
        "",
        "| ours | " + " | ".join(lengths) + " | ratio |",
        "|---" * (len(lengths) + 2) + "|",
    ]  # fmt: skip
    for one in kept:
        own = [models[name]["lengths"]["both"] for name in one.names]
        ends = [[value[name].get("mean_rank", np.nan) for value in own] for name in (lengths[0], lengths[-1])]
        ratio = f"{np.mean(ends[1]) / np.mean(ends[0]):.2f}"
        lines.append(
            f"| `{one.label}` | " + " | ".join(_mean([v[name] for v in own]) for name in lengths) + f" | {ratio} |"
        )
    return "\n".join(lines)


def _mean(values: Sequence[Mapping[str, Any]], measure: str = "mean_rank", interval: str = "mean_rank_ci95") -> str:
    """The mean over the seeds with that of the ends of their intervals, where every seed has them."""
    if not all(measure in value for value in values):
        return "-"
    cell = f"**{np.mean([value[measure] for value in values]):.1f}**"
    if not all(interval in value for value in values):
        return cell
    low, high = np.mean([value[interval] for value in values], axis=0)
    return f"{cell} ({low:.1f} to {high:.1f})"


def _relations(systems: Sequence[System], models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    lines = [
        f"As printed, the greatest first: {LARGEST}.",
        "",
        "| ours | relation (norm; training words that have it) |",
    ]
    lines.append("|---|---|")
    for one in systems:
        if not all(name in models for name in one.names):
            continue
        norms, counts = defaultdict(list), {}
        for name in one.names:
            for row in models[name]:
                norms[row["relation"]].append(row["norm"])
                counts[row["relation"]] = row["count"]
        best = sorted(norms, key=lambda relation: -np.mean(norms[relation]))[:SHOWN]
        cells = [f"{relation} ({np.mean(norms[relation]):.2f}; {counts[relation]:,})" for relation in best]
        lines.append(f"| `{one.label}` | {', '.join(cells)} |")
    return "\n".join(lines)
