"""Pages for people that need nothing else, no script, no font, no image from elsewhere: the report, what generators
say, and what transfer finds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.evaluate.summary import spoken
from pipeline.printable import printable
from pipeline.report.charts import draw_bars, draw_intervals, draw_logs
from pipeline.report.examples import Answer, Atlas, Example, Examples, Generated
from pipeline.report.photographs import CollectionSample, ReportPicture
from pipeline.report.tables import (
    COLUMNS,
    DIRECTIONS,
    JUDGEMENTS,
    Comparison,
    Reason,
    compare_models,
    cost_table,
    describe_encoders,
    describe_models,
    duration,
    explain_dashes,
)

ASKED = ("by_sentence", "by_image", "successes", "failures")
"""The examples of an Examples."""


@dataclass(frozen=True)
class Report:
    """What the page shows: `search` is a command to try, if there is one (else ""), `manifest` the manifest's summary,
    `reasons` why it left out what, `coverage` each vocabulary's (pipeline.text.text_encoder), `evaluations` the
    summary of evaluations, `cards` those of the bundles, `models` what is recorded of each, `kinds` a line on each
    registered model, `health` that of each encoder's stored features, `costs` the rows of
    pipeline.storage.records.add_up, `tradeoffs` the drawings of how indices were chosen, `sheets` photographs with
    their regions, alignments and phrases, `magnitudes` the words of each model and split whose vectors are longest and
    shortest, `versions` library -> version; `printed` are the tables that papers print of this collection.
    """

    title: str
    search: str
    manifest: Mapping[str, Any]
    reasons: Sequence[Reason]
    coverage: Mapping[str, Any]
    evaluations: Sequence[Mapping[str, Any]]
    cards: Sequence[Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    kinds: Mapping[str, str]
    examples: Examples
    samples: Sequence[CollectionSample]
    health: Sequence[Mapping[str, Any]]
    atlas: Atlas | None
    costs: Sequence[Mapping[str, Any]]
    tradeoffs: Sequence[ReportPicture]
    sheets: Sequence[ReportPicture]
    magnitudes: Sequence[Mapping[str, Any]]
    generated: Sequence[Generated]
    judged: Sequence[Mapping[str, Any]]
    phrases: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]
    printed: Sequence[Any]


def render(report: Report) -> str:
    """The page. Every text from outside is escaped."""
    environment = _templates()
    environment.filters |= {"spoken": spoken, "thousands": "{:,}".format, "size": _size, "figure": _figure}
    comparisons, models = compare_models(report.evaluations), describe_models(report.models, report.kinds)
    costs = cost_table(report.costs)
    return environment.get_template("page.html").render(
        report=report,
        contents=_contents(report, bool(comparisons), bool(models), costs is not None),
        shortened=_shortened,
        reasons=report.reasons,
        encoders=describe_encoders(report.cards),
        models=models,
        charts=draw_logs({name: model.get("training_log", {}) for name, model in report.models.items()}),
        comparisons=comparisons,
        recall_chart=_recalls(comparisons[0]) if comparisons else "",
        time_chart=_times(report.costs),
        columns=COLUMNS,
        directions=DIRECTIONS,
        costs=costs,
        judgements=JUDGEMENTS,
        unmeasured=explain_dashes(report.judged),
    )


def render_descriptions(value: Mapping[str, Any], pictures: Sequence[str | None]) -> str:
    """The page of the first images of `value`, what `describe` writes; `pictures` are their `data:` addresses."""
    pairs = list(zip(value["images"], pictures, strict=False))
    return _templates().get_template("descriptions.html").render(value=value, pairs=pairs)


def descriptions_as_text(value: Mapping[str, Any]) -> str:
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


def render_transfer(cases: Sequence[Mapping[str, Any]], picture: Callable[[int], ReportPicture]) -> str:
    """The page of the `transfer` that `study` has recorded (Gong et al. 2014, Figures 3 and 4); `picture` shows an
    image by its id."""
    return _templates().get_template("transfer.html").render(cases=cases, picture=picture)


def _templates() -> Environment:
    """The templates of this package, which escape every text from outside."""
    blocks = {"trim_blocks": True, "lstrip_blocks": True}
    return Environment(loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined, **blocks)


def as_values(report: Report) -> dict[str, Any]:
    """The figures of the page, without its pictures, as JSON can hold them."""
    examples = report.examples
    asked = {name: list(map(_example, getattr(examples, name))) for name in ASKED}
    return {
        "name": report.title,
        "best_model": examples.model,
        "search": report.search,
        "collection": {"counts": report.manifest["counts"], "splits": report.manifest["splits"]},
        "rejects": list(map(asdict, report.reasons)),
        "coverage": {name: vars(coverage) for name, coverage in report.coverage.items()},
        "retrieval": [asdict(comparison) for comparison in compare_models(report.evaluations)],
        "examples": {"split": examples.split, **asked},
        "encoders": [asdict(encoder) for encoder in describe_encoders(report.cards)],
        "features": list(map(dict, report.health)),
        "indices": {
            card["model"]: {name: card[name] for name in ("images", "sentences", "regions", "words") if name in card}
            for card in report.cards
        },
        "models": [asdict(model) for model in describe_models(report.models, report.kinds)],
        "judged": list(map(dict, report.judged)),
        "magnitudes": list(map(dict, report.magnitudes)),
        "phrases": list(map(dict, report.phrases)),
        "costs": list(map(dict, report.costs)),
        "versions": dict(report.versions),
    }


def _example(example: Example) -> dict[str, Any]:
    answers = [
        {"what": _name(one.what), "rank": one.rank, "score": one.score, "right": one.right} for one in example.answers
    ]
    return {"query": _name(example.query), "rank": example.rank, "answers": answers}


def _name(what: ReportPicture | str) -> str:
    return what.name if isinstance(what, ReportPicture) else what


def _contents(report: Report, compared: bool, models: bool, costs: bool) -> list[tuple[str, str]]:
    """The anchors of the parts that the page has, with their titles."""
    parts = [
        ("retrieval", "Retrieval", compared),
        ("answers", f"What {report.examples.model} finds", report.examples.by_sentence),
        ("map", "Map", report.atlas),
        ("collection", "Collection", True),
        ("encoders", "Encoders", True),
        ("indices", "Indices", True),
        ("models", "Models", models),
        ("regions", "Regions", report.sheets),
        ("phrases", "Phrases", report.phrases),
        ("generated", "Generated sentences", report.generated),
        ("judged", "Judged sentences", report.judged),
        ("costs", "Cost", costs),
    ]
    return [(anchor, title) for anchor, title, there in parts if there]


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


def _times(costs: Sequence[Mapping[str, Any]]) -> str:
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
