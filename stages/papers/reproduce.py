"""`reproduce`: the tables of the seeds with this run's numbers beside the printed ones."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    from pipeline.config import Config


@click.command("reproduce")
@click.option("--summary", "summary_path", type=options.FILE, required=True, help="What `summarise` wrote.")
@click.option("--gong", "gong_path", type=options.FILE, help="What `tabulate` wrote, put at the end. [default: none]")
@options.config
@options.output("file", "The tables, a Markdown file.")
def command(summary_path: Path, gong_path: Path | None, config_path: Path | None, output: Path) -> None:
    """Lay the rows of a run beside the seeds' printed tables; what the data cannot support is named with its reason."""
    from benchmarks.papers.reproduction import render
    from pipeline import config
    from pipeline.storage.atomic import TABLES, publish_text, read_verified
    from pipeline.storage.evaluations import read_summary

    settings, evaluations = config.load(config_path), read_summary(summary_path)
    systems = {row: _describe(settings, row) for row in settings.models}
    text = render(evaluations, settings.reproduce.collection, settings.name, systems)
    if gong_path:
        text += "\n" + read_verified(gong_path, TABLES)[0].decode("utf-8")
    else:
        text += "\n## Gong et al.: Tables 1 to 6\n\nLeft out: no tables of `tabulate` were given; see reproduce.gong.\n"
    publish_text(output, text)


def _describe(settings: "Config", name: str) -> dict[str, str]:
    """The settings of a row in the words of benchmarks.papers.printed.SYSTEMS."""
    model = settings.model(name)
    own = model.settings.model_dump() if model.settings else {}
    encoders = [settings.encoder(encoder) for encoder in model.encoders]
    layers = [
        one.architecture if one.architecture == "standard" else f"{one.architecture} {one.layer}" for one in encoders
    ]
    described = {"encoders": ", ".join(layers)}
    if "loss" in own:
        described["loss"] = own["loss"] + (f", negatives {own['negatives']}" if own["loss"] != "squared" else "")
    described |= {what: f"{own[what]:g}" for what in ("margin", "dimensions") if what in own and "loss" in own}
    if "sum" in own:
        described["score"] = own["sum"]
    if model.spec.regions != "none":
        described["regions"] = f"{settings.regions.count} of {settings.regions.proposals}"
    return described
