"""Figures by matplotlib: recall over the sizes of the training sets, the trade-off of candidate indices, and phrases
and regions in a plane."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from sklearn.manifold import TSNE

MEBI = 1 << 20
GOOD, MISSED, CHOSEN = "#1b7f4d", "#9a9a9a", "#b3261e"
INK = "#222222"
GOLDEN = 0.381966
"""Of the colour circle, from one image to the next."""


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


def scatter_in_plane(vectors: np.ndarray, seed: int) -> np.ndarray:
    """(n, 2), places of the rows of `vectors` (n, c), at least five, by t-SNE: what is near there is near here, and
    distances between groups mean little."""
    perplexity = min(30, (len(vectors) - 1) / 3)
    return TSNE(perplexity=perplexity, init="random", random_state=seed).fit_transform(vectors).astype(np.float64)


def draw_links(
    phrases: Sequence[str], phrase_places: np.ndarray, region_places: np.ndarray, links: np.ndarray, groups: np.ndarray
) -> Image.Image:
    """Each of the `phrases` at its place (p, 2), a square at each region's (r, 2), and a line from each phrase to the
    region `links` (p,) that it speaks of, in the colour of its image `groups` (p,); after Niu et al. 2017, Figure 8."""
    figure = Figure(figsize=(12, 9), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["hsv"](groups * GOLDEN % 1)
    for text, place, region, colour in zip(phrases, phrase_places, region_places[links], colours, strict=True):
        axes.add_line(Line2D(*np.stack([place, region], axis=1), color=colour, linewidth=0.8))
        axes.scatter(*region, marker="s", s=22, color=[colour], edgecolors=INK, linewidths=0.4, zorder=5)
        axes.annotate(text, place, color=INK, fontsize=6.5, ha="center", va="center", zorder=10)
    axes.set(xticks=[], yticks=[], xlabel="t-SNE; squares are regions, colours images")
    axes.margins(0.05)
    axes.autoscale_view()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return Image.open(buffer)


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
