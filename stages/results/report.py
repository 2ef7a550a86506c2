"""`report`: the page that a person looks at."""

import logging

import click

from pipeline.run import Inputs, Job, Run, stage
from pipeline.run.layout import Artefact

FORMS = click.Choice(["html", "json"])


def _artefacts(config, layout) -> dict[str, list[Artefact]]:
    """What is shown where it is there, by section; of what generators say, the first split."""
    described = [layout.descriptions(name, split) for name in config.generators for split in config.describe.splits[:1]]
    reads_tokens = any(config.model(name).spec.sentences != "vectors" for name in config.models)
    return {
        "described": described,
        "judged": [layout.description_evaluation(*names) for names in config.descriptions(config.describe.splits)],
        "phrases": [layout.phrase_ranking(*names) for names in config.phrase_splits(config.phrases.splits)],
        "vocabulary": [layout.token_vocabulary] if reads_tokens else [],
    }


def _reads(config, layout) -> Inputs:
    aligned = config.aligned_splits(config.align.splits)
    read = [layout.manifest, layout.summary]
    read += [layout.index(bundle) for name in config.models for bundle in config.bundle_names(name)]
    for artefacts in _artefacts(config, layout).values():
        read += artefacts
    read += [layout.phrases(*names) for names in config.phrase_splits(config.phrases.splits)]
    read += [layout.regions(name) for name in config.regions.encoders]
    read += [
        layout.text_encoder(entry.name) for entry in config.prepared_text_encoders if entry.remedy and entry.learns
    ]
    read += [layout.embeddings(model) for model, _ in aligned]
    if aligned:
        read.append(layout.token_vocabulary)
    return read


@stage(
    version=11,
    wanted=lambda config: [()],
    keys=lambda config: {
        "collection": config.reproduce.collection,
        "align": config.align.model_dump(),
        "phrases": config.phrases.splits,
        "seed": config.seed,
    },
    reads=_reads,
    writes=lambda layout: layout.report,
    then=lambda run: f"open {run.layout.report.path} in a browser",
    options=(
        click.Option(
            ["--format", "form"], type=FORMS, default="html", help="json: print the figures; no page is written."
        ),
    ),
)
def report(run: Run, job: Job, form: str = "html") -> None:
    """Write the report of a run: recalls, collection, and examples of what its best model finds."""
    from pipeline.report.page import as_json, render
    from pipeline.run.reading.report import RunReport
    from pipeline.storage.batch import publish_text

    shown = RunReport(run, _artefacts(run.config, run.layout))
    if form == "json":
        click.echo(as_json(shown))
        return
    publish_text(job.path, render(shown))
    photographs = shown.picture.shown
    missing = list(photographs.values()).count(False)
    if missing and run.config.collection.format != "vectors":  # which has none
        logging.getLogger(__name__).warning(
            "%d of %d photos are not shown: they cannot be read in %s; set data_root to where they are",
            missing, len(photographs), run.photographs.root,
        )  # fmt: skip
