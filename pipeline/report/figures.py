"""Figures by matplotlib: recall over the sizes of the training sets, and the trade-off of candidate indices."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MEBI = 1 << 20
GOOD, MISSED, CHOSEN = "#1b7f4d", "#9a9a9a", "#b3261e"


def draw_sweep(rows: Sequence[Mapping[str, Any]], title: str, fold_images: int) -> Figure:
    """Recall@10 on test of the combinations chosen on dev, over target images, a line for each auxiliary-set size.

    `rows` are those of `linear.sweep.sweep_rows`; `fold_images` is the number of target images in a fold.
    """
    chosen = sorted((row for row in rows if row["chosen"]), key=lambda row: row["target_folds"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, direction in zip(axes, ("image_to_sentence", "sentence_to_image"), strict=True):
        for weak in sorted({row["auxiliary_folds"] for row in chosen}):
            line = [row for row in chosen if row["auxiliary_folds"] == weak]
            sizes = [row["target_folds"] * fold_images for row in line]
            label = f"{weak} folds of weak text" if weak else None
            axis.plot(sizes, [row[f"test_{direction}_recall@10"] for row in line], "o-", label=label)
        _frame(axis, direction.replace("_", " "), "target images")
    axes[0].set_ylabel("recall@10 on test, percent")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False)
    figure.suptitle(title)
    return figure


def draw_tradeoff(tradeoff: Mapping[str, Any], title: str) -> Figure:
    """Queries per second of a core over index recall of candidates, as measured on the sample and carried over, and the
    chosen index's own curve with all vectors.

    `tradeoff` is that of `pipeline.index.build.BuiltIndex`; areas are proportional to bytes.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    candidates = tradeoff["candidates"]
    largest = max(candidate["bytes"] for candidate in candidates)
    for candidate in candidates:
        x, y = candidate["recall@10"], candidate["queries_per_second"]
        colour = MISSED if candidate["failure"] else GOOD
        axes.scatter(x, y, 30 + 300 * candidate["bytes"] / largest, color=colour, alpha=0.5, linewidths=0)
        label = f"{candidate['factory']}, {candidate['bytes'] / MEBI:.0f} MiB"
        axes.annotate(label, (x, y), (5, 5), textcoords="offset points", fontsize=7)
    curve = sorted((operation["recall@10"], operation["queries_per_second"]) for operation in tradeoff["operations"])
    axes.plot(*zip(*curve, strict=True), ".", color=CHOSEN, label=f"{tradeoff['chosen']['factory']}, all vectors")
    axes.set_yscale("log")
    axes.set_ylabel("queries per second of a core")
    _frame(axes, title, "index recall@10")
    axes.legend(frameon=False, title=tradeoff["rule"], title_fontsize=7)
    return figure


def _frame(axes: Axes, title: str, x: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def to_svg(figure: Figure) -> bytes:
    """The same bytes for the same figure: without a salt matplotlib names a file's parts at random."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "jointspace"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
