"""HTML pages in a single file, without scripts and without fonts or images from elsewhere.

The pages are the report of a run, generated captions, the comparison of runs, the results of `bench`, and the figures
of Gong et al.
"""

from collections.abc import Sequence
from math import isfinite

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.metrics.summary import DIRECTIONS, spoken
from pipeline.printable import printable, tidy
from pipeline.report.tables import ComparedRow, duration, with_total
from pipeline.storage.json_files import JsonObject


def descriptions_as_text(value: JsonObject) -> str:
    """Format generated captions as plain text without control characters.

    `value` is the JSON object that `describe` writes. Each image or box has a line with the name of the image and the
    corners of the box, and a line for each caption with its score and the nearest training caption.
    """
    lines = []
    for image in value["images"]:
        box = "" if image["box"] is None else f" [{' '.join(f'{side:g}' for side in image['box'])}]"
        lines.append(f"{image['image']}{box}")
        for sentence in image["sentences"]:
            nearest = sentence["nearest"]
            near = "copied" if sentence["verbatim"] else f"{nearest['cosine']:.2f}"
            lines.append(f"  {sentence['score']:>8.3f}  {sentence['text']}  ({near}: {nearest['text']})")
    return "".join(f"{printable(line)}\n" for line in lines)


def render_page(template: str, **values: object) -> str:
    """Render a template of this package as an HTML page. Texts in `values` are escaped."""
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "figure": _figure, "size": _size, "spoken": spoken, "tidy": tidy}
    environment.globals["directions"] = DIRECTIONS
    environment.filters |= {"interval": _interval, "thousands": "{:,}".format, "with_total": with_total}
    return environment.get_template(template).render(values)


def compared_as_text(rows: Sequence[ComparedRow]) -> str:
    """Return the comparison of systems as text.

    A heading names the reference. Below the heading, each system has a line with its recalls, the sum of its recalls,
    and the difference between this sum and the sum of the reference, with the interval of the difference. The interval
    is `-` if there is none.
    """
    names = [printable(f"{row['system'].name} ({row['system'].source})") for row in rows]
    lines = [
        "Recall@1, 5, 10 photo to caption and caption to photo, their sum, and its difference from the sum of the"
        f" reference {names[0]}:"
    ]
    has_seeds = any(row["system"].deviations[0] is not None for row in rows)
    for name, row in zip(names, rows, strict=True):
        cells = ["    -" if value is None else f"{value:5.1f}" for value, _ in row["system"].cells]
        if has_seeds:
            deviations = ["" if one is None else f" ±{one:4.1f}" for _, one in row["system"].cells]
            cells = [f"{cell}{deviation:6}" for cell, deviation in zip(cells, deviations, strict=True)]
        difference = f"  {row['minus']['difference']:+.1f}" if row["minus"] else ""
        interval = f"  ({_interval(row['minus'].get('ci95'))})" if row["minus"] else ""
        lines.append(f"{name:{max(map(len, names))}}  {' '.join(cells)}{difference}{interval}")
    if any(row["minus"] and _interval(row["minus"].get("ci95")) == "-" for row in rows):
        lines.append(
            "A difference has no interval if the two systems were tested on different photos, if ranks are unknown, or"
            " if evaluate.bootstrap is 0."
        )
    return "\n".join(lines)


def _interval(ends: Sequence[float] | None, missing: str = "-") -> str:
    """Format the two `ends` of an interval, as in `-1.2 to +0.3`. Return `missing` if `ends` is None or an end is not
    finite."""
    if ends is None or not all(map(isfinite, ends)):
        return missing
    low, high = ends
    return f"{low:+.1f} to {high:+.1f}"


def _size(count: int) -> str:
    """Format a number of bytes, as in `1.2 MB`."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _figure(value: float, measure: str) -> str:
    """Format a measure: a recall with one decimal, and a rank with a decimal only if it is not an integer."""
    return f"{round(value, 1):g}" if measure == "median_rank" else f"{value:.1f}"
