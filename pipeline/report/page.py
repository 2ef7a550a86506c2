"""Pages for people that need nothing else, no script, no font, no image from elsewhere: the report, what generators
say, and what transfer finds."""

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

ASKED = ("by_sentence", "by_image", "successes", "failures")
"""The examples of an Examples."""
INDEXED = ("images", "sentences", "regions", "words")


class Sections(Protocol):
    """The sections of the page. Its template reads more of them."""

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
    """Render the page of a run. `report` gives the sections: see pipeline.run.reading.report.

    Every text from outside is escaped.
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
    """The figures of the page, without its pictures."""
    values = {
        "name": report.title,
        "best_model": report.examples.model,
        "search": report.search,
        "collection": {"counts": report.manifest["counts"], "splits": report.manifest["splits"]},
        "rejects": report.reasons,
        "coverage": report.coverage,
        "retrieval": report.comparisons,
        "examples": {"split": report.examples.split, **{name: getattr(report.examples, name) for name in ASKED}},
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
    """The page of the first images of `value`, what `describe` writes; `pictures` are their `data:` addresses."""
    pairs = list(zip(value["images"], pictures, strict=False))
    return _templates().get_template("descriptions.html").render(value=value, pairs=pairs)


def descriptions_as_text(value: JsonObject) -> str:
    """The name and box of every image, then its sentences with their scores and the nearest training sentences,
    without what a terminal would obey."""
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
    """The page of the `transfer` that `study` has recorded (Gong et al. 2014, Figures 3 and 4); `picture` shows an
    image by its id."""
    return _templates().get_template("transfer.html").render(cases=cases, picture=picture)


def render_compared(
    rows: Sequence[ComparedRow], reference: ComparedSystem, split: str, protocol: str, warnings: Sequence[str]
) -> str:
    """Renders the rows that `compare_systems` returns as a page, which begins with the `warnings`."""
    values = {"rows": rows, "reference": reference, "split": split, "protocol": protocol, "warnings": warnings}
    return _templates().get_template("compared.html").render(values, directions=DIRECTIONS)


def compared_as_text(rows: Sequence[ComparedRow]) -> str:
    """A heading, and a line for each system: its recalls, their sum, and its difference with the interval."""
    names = [printable(f"{row['system'].name} ({row['system'].source})") for row in rows]
    lines = [
        "recall@1, 5, 10 image-to-sentence and sentence-to-image, their sum, and its difference from the reference:"
    ]
    for name, row in zip(names, rows, strict=True):
        cells = ["    -" if value is None else f"{value:5.1f}" for value in (*row["system"].recalls, row["system"].sum)]
        difference = f"  {row['minus']['difference']:+.1f}" if row["minus"] else ""
        interval = "  ({:+.1f} to {:+.1f})".format(*row["minus"]["ci95"]) if "ci95" in row["minus"] else ""
        lines.append(f"{name:{max(map(len, names))}}  {' '.join(cells)}{difference}{interval}")
    if any(row["minus"] and "ci95" not in row["minus"] for row in rows):
        lines.append(
            "a difference has no interval where the two were tested on different photos, or no ranks are known"
        )
    return "\n".join(lines)


def _templates() -> Environment:
    """Return the templates of this package, which escape every text from outside."""
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
    """Three of an example's answers, among them the best right one."""
    right = next((answer for answer in example.answers if answer.right), None)
    first = list(example.answers[:3])
    return first if right is None or right in first else [*first[:2], right]


def _recalls(comparison: Comparison) -> str:
    """Recall@10 of each model in both directions, the greatest sum first."""
    found = {model: [own[one]["recall@10"] for one in DIRECTIONS] for model, own in comparison.cells.items()}
    ordered = sorted(found, key=lambda model: -sum(cell.value for cell in found[model]))
    rows = {model: [(cell.value, cell.interval) for cell in found[model]] for model in ordered}
    return draw_intervals(f"Recall@10 of {len(rows)} models with intervals", rows, list(map(spoken, DIRECTIONS)))


def _times(costs: Sequence[RuleCost]) -> str:
    """A bar for each stage that has run, the longest first."""
    took = {row["rule"].replace("_", "-"): row["seconds"] for row in costs if row["seconds"]}
    rows = {name: (seconds, duration(seconds)) for name, seconds in sorted(took.items(), key=lambda item: -item[1])}
    return draw_bars("Time by stage", rows) if rows else ""


def _size(count: int) -> str:
    """`1.2 MB` for bytes."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _figure(value: float, measure: str) -> str:
    """Recall always with one decimal, ranks only where they have one."""
    return f"{round(value, 1):g}" if measure == "median_rank" else f"{value:.1f}"
