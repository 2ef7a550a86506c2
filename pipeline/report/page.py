"""HTML pages in a single file, without scripts and without fonts or images from elsewhere.

The pages are the report of a run, generated captions, the comparison of runs, and the results of transfer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.metrics.summary import spoken
from pipeline.printable import printable, printable_json, tidy
from pipeline.report.charts import draw_bars, draw_intervals, draw_logs
from pipeline.report.examples import Answer, Example, Examples
from pipeline.report.photographs import ReportPicture
from pipeline.report.tables import (
    COLUMNS,
    DIRECTIONS,
    JUDGEMENTS,
    ComparedRow,
    ComparedSystem,
    Comparison,
    duration,
    explain_dashes,
    with_total,
)
from pipeline.storage.card import Card
from pipeline.storage.json_files import Json, JsonObject
from pipeline.storage.records import RuleCost
from pipeline.text.vocabulary import Coverage

EXAMPLE_LISTS = ("by_sentence", "by_image", "successes", "failures")
"""The attributes of pipeline.report.examples.Examples that are lists of examples."""
INDEXED = ("images", "sentences", "regions", "words")
"""The names of FAISS indexes on a card."""


class Sections(Protocol):
    """The sections of the report that this module uses. RunReport in pipeline.run.reading.report makes them. The
    template uses further attributes."""

    title: str
    manifest: JsonObject
    details: Mapping[str, JsonObject]
    comparisons: Sequence[Comparison]
    costs: Sequence[RuleCost]
    judged: Sequence[JsonObject]
    phrases: Sequence[JsonObject]
    search: str
    examples: Examples
    reasons: Sequence[JsonObject]
    coverage: Mapping[str, Coverage]
    encoders: Sequence[JsonObject]
    health: Sequence[JsonObject]
    cards: Sequence[Card]
    models: Sequence[JsonObject]
    magnitudes: Sequence[JsonObject]
    versions: Mapping[str, str]


def render(report: Sections) -> str:
    """Render the report of a run as an HTML page. `report` has its sections (see pipeline.run.reading.report).

    Texts from outside are escaped.
    """
    template = _templates().get_template("page.html")
    return template.render(
        report=report,
        shortened=_shortened,
        charts=draw_logs({name: details.get("training_log", {}) for name, details in report.details.items()}),
        recall_chart=_recalls(report.comparisons[0]) if report.comparisons else "",
        time_chart=_times(report.costs),
        columns=COLUMNS,
        directions=DIRECTIONS,
        indexed=INDEXED,
        judgements=JUDGEMENTS,
        unmeasured=explain_dashes(report.judged),
    )


def as_json(report: Sections) -> str:
    """Return the numbers of the report as JSON, without its pictures."""
    values = {
        "name": report.title,
        "best_model": report.examples.model,
        "search": report.search,
        "collection": {"counts": report.manifest["counts"], "splits": report.manifest["splits"]},
        "rejects": report.reasons,
        "coverage": report.coverage,
        "retrieval": report.comparisons,
        "examples": {
            "split": report.examples.split,
            **{name: getattr(report.examples, name) for name in EXAMPLE_LISTS},
        },
        "encoders": report.encoders,
        "features": report.health,
        "indices": {card.model: _indexes(card) for card in report.cards},
        "models": report.models,
        "judged": report.judged,
        "magnitudes": report.magnitudes,
        "phrases": report.phrases,
        "costs": report.costs,
        "versions": report.versions,
    }
    return printable_json(values, lambda value: value.name if isinstance(value, ReportPicture) else vars(value))


def _indexes(card: Card) -> dict[str, Json]:
    """Return the FAISS indexes on a card, as JSON objects."""
    return {name: value for name, value in card.to_json().items() if name in INDEXED}


def render_descriptions(value: JsonObject, pictures: Sequence[str | None]) -> str:
    """Render the captions that a generator has generated as an HTML page.

    `value` is the JSON object that `describe` writes. Its first images are shown, whose `data:` addresses are
    `pictures`. An address is None if the image cannot be read.
    """
    pairs = list(zip(value["images"], pictures, strict=False))
    return _templates().get_template("descriptions.html").render(value=value, pairs=pairs)


def descriptions_as_text(value: JsonObject) -> str:
    """Return the captions that a generator has generated as text, without control characters.

    Each image has a line with its name and box, and a line for each caption with its score and the nearest training
    caption.
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


def render_transfer(cases: Sequence[JsonObject], picture: Callable[[int], ReportPicture]) -> str:
    """Render the results of the `transfer` experiment of `study` as an HTML page (Gong et al. 2014, Figures 3 and 4).

    `cases` are the examples that `study` stores. `picture(image_id)` returns the picture of an image.
    """
    return _templates().get_template("transfer.html").render(cases=cases, picture=picture)


def render_compared(
    rows: Sequence[ComparedRow], reference: ComparedSystem, split: str, protocol: str, warnings: Sequence[str]
) -> str:
    """Render the rows that `compare_systems` returns as an HTML page, which begins with the `warnings`.

    `reference` is the system with which the others are compared. All were evaluated on `split` by `protocol`.
    """
    values = {"rows": rows, "reference": reference, "split": split, "protocol": protocol, "warnings": warnings}
    return _templates().get_template("compared.html").render(values, directions=DIRECTIONS)


def render_page(template: str, **values: object) -> str:
    """Render a template of this package as an HTML page. Texts in `values` are escaped."""
    return _templates().get_template(template).render(values)


def compared_as_text(rows: Sequence[ComparedRow]) -> str:
    """Return the comparison of systems as text.

    After a heading that names the reference, there is a line for each system with its recalls, their sum, and the
    difference of the sum from the reference with its interval.
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
        interval = "  ({:+.1f} to {:+.1f})".format(*row["minus"]["ci95"]) if "ci95" in row["minus"] else ""
        lines.append(f"{name:{max(map(len, names))}}  {' '.join(cells)}{difference}{interval}")
    if any(row["minus"] and "ci95" not in row["minus"] for row in rows):
        lines.append(
            "A difference has no interval if the two systems were tested on different photos, or if ranks are unknown."
        )
    return "\n".join(lines)


def _templates() -> Environment:
    """Return the templates of this package, which escape all texts that are inserted."""
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "figure": _figure, "size": _size, "spoken": spoken, "tidy": tidy}
    environment.filters |= {"thousands": "{:,}".format, "with_total": with_total}
    return environment


def _shortened(example: Example) -> list[Answer]:
    """Return three results of an example. The best right result is one of them."""
    right = next((answer for answer in example.answers if answer.right), None)
    first = list(example.answers[:3])
    return first if right is None or right in first else [*first[:2], right]


def _recalls(comparison: Comparison) -> str:
    """Draw recall@10 of each model in both directions. The model with the greatest sum comes first."""
    found = {model: [own[one]["recall@10"] for one in DIRECTIONS] for model, own in comparison.cells.items()}
    ordered = sorted(found, key=lambda model: -sum(cell.value for cell in found[model]))
    rows = {model: [(cell.value, cell.interval) for cell in found[model]] for model in ordered}
    return draw_intervals(f"Recall@10 of {len(rows)} models with 95% intervals", rows, list(map(spoken, DIRECTIONS)))


def _times(costs: Sequence[RuleCost]) -> str:
    """Draw the time of each stage as a bar. The longest time comes first."""
    took = {row["rule"].replace("_", "-"): row["seconds"] for row in costs if row["seconds"]}
    rows = {name: (seconds, duration(seconds)) for name, seconds in sorted(took.items(), key=lambda item: -item[1])}
    return draw_bars("Time by stage", rows) if rows else ""


def _size(count: int) -> str:
    """Format a number of bytes, as in `1.2 MB`."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _figure(value: float, measure: str) -> str:
    """Format a measure: a recall with one decimal, and a rank with a decimal only if it is not an integer."""
    return f"{round(value, 1):g}" if measure == "median_rank" else f"{value:.1f}"
