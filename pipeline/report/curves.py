"""Curves as SVG: recall over the sizes of the training sets."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from pipeline.report.figures import to_svg

INK = "#222222"


def draw_sweep(rows: Sequence[Mapping[str, Any]], title: str, fold_images: int) -> bytes:
    """Recall@10 on test of the combinations chosen on dev, over target images, a line for each auxiliary-set size.

    `rows` are those of `linear.sweep.sweep_rows`; `fold_images` is the number of target images in a fold.
    """
    chosen = [row for row in rows if row["chosen"]]
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, direction in zip(axes, ("image_to_sentence", "sentence_to_image"), strict=True):
        for weak in sorted({row["auxiliary_folds"] for row in chosen}):
            line = sorted(
                (row for row in chosen if row["auxiliary_folds"] == weak), key=lambda row: row["target_folds"]
            )
            sizes = [row["target_folds"] * fold_images for row in line]
            label = f"{weak} folds of weak text" if weak else None
            axis.plot(sizes, [row[f"test_{direction}_recall@10"] for row in line], "o-", label=label)
        axis.set_title(direction.replace("_", " "), color=INK)
        axis.set_xlabel("target images")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("recall@10 on test, percent")
    if axes[0].get_legend_handles_labels()[1]:
        axes[0].legend(frameon=False)
    figure.suptitle(title)
    return to_svg(figure)
