"""`reproduce`: the tables of the seeds with this run's numbers beside the printed ones."""

from typing import TYPE_CHECKING

from pipeline.plan.needs import Need, fixed
from pipeline.run import Inputs, Job, Run, Stage

if TYPE_CHECKING:
    from pipeline.config import Config


def reproduce(run: Run, job: Job) -> None:
    """Lay the rows of a run beside the seeds' printed tables; what the data cannot support is named with its reason."""
    from benchmarks.papers.reproduction import render
    from pipeline.storage.atomic import TABLES, publish_text, read_verified
    from pipeline.storage.evaluations import read_summary

    config, evaluations = run.config, read_summary(run.layout.summary.path)
    systems = {name: _describe(config, name) for name in config.models}
    text = render(evaluations, config.reproduce.collection, config.name, systems)
    if config.reproduce.gong:
        text += "\n" + read_verified(run.layout.tables.path, TABLES)[0].decode("utf-8")
    else:
        text += "\n## Gong et al.: Tables 1 to 6\n\nLeft out: reproduce.gong is false.\n"
    publish_text(job.path, text)


def _describe(config: "Config", name: str) -> dict[str, str]:
    """The settings of a model in the words of benchmarks.papers.printed.SYSTEMS."""
    model = config.model(name)
    own = model.settings.model_dump() if model.settings else {}
    encoders = [config.encoder(encoder) for encoder in model.encoders]
    layers = [f"{one.architecture} {one.layer}" if one.spec.weights else one.architecture for one in encoders]
    described = {"encoders": ", ".join(layers)}
    if "loss" in own:
        described["loss"] = own["loss"] + (f", negatives {own['negatives']}" if own["loss"] != "squared" else "")
    described |= {what: f"{own[what]:g}" for what in ("margin", "dimensions") if what in own and "loss" in own}
    if "sum" in own:
        described["score"] = own["sum"]
    if model.spec.regions != "none":
        described["regions"] = f"{config.regions.count} of {config.regions.proposals}"
    return described


def _reads(config, layout) -> Inputs:
    tables = {"tables": layout.tables} if config.reproduce.gong else {}
    return {"summary": layout.summary, **tables}


STAGE = Stage(
    reproduce,
    version=2,
    needs=Need(fixed(2500), fixed(50), fixed(60), "models"),
    keys=lambda config: {"name": config.name, "reproduce": config.reproduce.model_dump()},
    reads=_reads,
    writes=lambda layout: layout.reproduction,
    shown={"reproduction": "Tables"},
)
