"""The report as one HTML page that needs nothing else: no script, no font, no image from elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.evaluate.summary import spoken
from pipeline.plan.comparison import cost_table
from pipeline.report.atlas import Atlas
from pipeline.report.descriptions import templates
from pipeline.report.examples import Examples, ReportPicture
from pipeline.report.generated import HEADINGS, Generated, explain_dashes
from pipeline.report.learning import draw_logs
from pipeline.report.samples import CollectionSample
from pipeline.report.tables import (
    COLUMNS,
    DIRECTIONS,
    compare_models,
    count_reasons,
    describe_encoders,
    describe_models,
)


@dataclass(frozen=True)
class Report:
    """What the page shows: `search` is a command to try, if there is one (else ""), `manifest` the manifest's summary,
    `rejects` what it left out, `evaluations` the summary of evaluations, `cards` those of the bundles, `models` what is
    recorded of each, `health` that of each encoder's stored features, `costs` the rows of pipeline.plan.comparison with
    the `share` of the processors that the plan's rates had, `tradeoffs` the drawings of how indices were chosen,
    `sheets` drawings that other commands have made, `versions` library -> version; `printed` are the tables that papers
    print of this collection.
    """

    title: str
    search: str
    manifest: Mapping[str, Any]
    rejects: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    cards: Sequence[Mapping[str, Any]]
    models: Mapping[str, Mapping[str, Any]]
    examples: Examples
    samples: Sequence[CollectionSample]
    health: Sequence[Mapping[str, Any]]
    atlas: Atlas | None
    costs: Sequence[Mapping[str, Any]]
    share: float
    tradeoffs: Sequence[ReportPicture]
    sheets: Sequence[ReportPicture]
    generated: Sequence[Generated]
    judged: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]
    printed: Sequence[Any]


def render(report: Report) -> str:
    """The page. Every text from outside is escaped."""
    environment = templates()
    environment.filters |= {"spoken": spoken, "thousands": "{:,}".format, "size": _size, "figure": _figure}
    return environment.get_template("page.html").render(
        report=report,
        reasons=count_reasons(report.rejects),
        encoders=describe_encoders(report.cards),
        models=describe_models(report.models),
        charts=draw_logs({name: model.get("training_log", {}) for name, model in report.models.items()}),
        comparisons=compare_models(report.evaluations),
        columns=COLUMNS,
        directions=DIRECTIONS,
        costs=cost_table(report.costs),
        judgements=HEADINGS,
        unmeasured=explain_dashes(report.judged),
    )


def _size(count: int) -> str:
    """`1.2 MB` for bytes."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _figure(value: float, measure: str) -> str:
    """Recall always with one decimal, ranks only where they have one."""
    return f"{round(value, 1):g}" if measure == "median_rank" else f"{value:.1f}"
