"""The measured trade-off of candidate indices as SVG: queries per second over index recall."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from pipeline.report.figures import to_svg

MEBI = 1 << 20
GOOD, MISSED, CHOSEN = "#1b7f4d", "#9a9a9a", "#b3261e"


def draw_tradeoff(tradeoff: Mapping[str, Any], title: str) -> bytes:
    """Candidates as measured on the sample and carried over, and the chosen index's own curve with all vectors.

    `tradeoff` is that of `pipeline.index.build.BuiltIndex`; an area tells the bytes.
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
    axes.set_xlabel("index recall@10")
    axes.set_ylabel("queries per second")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return to_svg(figure)
