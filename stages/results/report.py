"""`report`: writes the web page with the results of a run."""

import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.errors import IntegrityError
from pipeline.run import Artefact, Inputs, Job, Layout, Names, Outside, StageRun, stage
from pipeline.run.reading.inputs import feature_shards, region_shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pipeline.config.names import Config

FORMS = click.Choice(["html", "json"])


def _reads(config: "Config", layout: Layout) -> Inputs:
    aligned = config.aligned_splits(config.align.splits)
    phrases = config.phrase_splits(config.phrases.splits)
    learned = [entry.name for entry in config.prepared_text_encoders if entry.remedy and entry.learns]
    reads_tokens = any(config.model(name).spec.sentences != "vectors" for name in config.models)
    described = [(name, split) for name in config.generators for split in config.describe.splits[:1]]
    return {
        "manifest": layout.manifest,
        "summary": layout.summary,
        "indexes": {bundle: layout.index(bundle) for name in config.models for bundle in config.bundle_names(name)},
        "embeddings": {name: layout.embeddings(name) for name in config.models},
        "described": _by_name(layout.descriptions, described),
        "judged": _by_name(layout.description_evaluation, config.descriptions(config.describe.splits)),
        "phrase_rankings": _by_name(layout.phrase_ranking, phrases),
        "phrases": _by_name(layout.phrases, phrases),
        "regions": region_shards(config.regions.encoders, layout),
        "text_encoders": {name: layout.text_encoder(name) for name in learned},
        "vocabulary": layout.token_vocabulary if reads_tokens or aligned else None,
    }


def _may_read(config: "Config", layout: Layout) -> Inputs:
    """Return the inputs that the report uses only if they exist: image features, the findings of `audit` if they are
    up to date, and the decisions about findings that `serve --review` has stored."""
    features = feature_shards([encoder.name for encoder in config.encoders], layout)
    return {
        "features": {name: shards for name, shards in features.items() if shards.folder.is_dir()},
        "audit": layout.audit if _is_current(layout.root, layout.audit.commit) else None,
        "decisions": Outside("decisions", layout.decisions) if layout.decisions.exists() else None,
    }


def _by_name(line: "Callable[..., Artefact]", names: "Iterable[Names]") -> dict[str, Artefact]:
    return {".".join(each): line(*each) for each in names}


def _is_current(root: Path, commit: Path) -> bool:
    """Return whether the artefact with the commit record `commit` exists in the run `root` and was made from the
    current versions of its inputs."""
    from pipeline.storage.commit import Commits

    with suppress(IntegrityError):
        return not any(Commits(root).faults(commit.relative_to(root).as_posix()))
    return False


@stage(
    version=11,
    memory=4000,
    shown=("report", "Report"),
    wanted=lambda config: [()],
    keys=lambda config: {
        "collection": config.reproduce.collection,
        "arithmetic": config.reproduce.arithmetic,
        "align": config.align.model_dump(),
        "phrases": config.phrases.splits,
        "seed": config.seed,
    },
    reads=_reads,
    may_read=_may_read,
    writes=lambda layout: layout.report,
    then=lambda run: f"open {run.layout.report.path} in a browser",
    options=(
        click.Option(
            ["--format", "form"], type=FORMS, default="html", help="json: print the results, and write no page."
        ),
    ),
)
def report(run: StageRun, job: Job, form: str = "html") -> None:
    """Write the report of a run: the recalls of its models, its collection, and example searches with the best
    model."""
    from pipeline.run.reading.report import RunReport
    from pipeline.storage.batch import publish_text

    shown = RunReport(run)
    if form == "json":
        click.echo(shown.to_json())
        return
    publish_text(job.path, shown.to_html())
    photographs = shown.picture.shown
    missing = list(photographs.values()).count(False)
    if missing and run.config.collection.format != "vectors":  # A collection of vectors has no photos.
        logging.getLogger(__name__).warning(
            "%d of %d photos are not shown, because they cannot be read in %s. Set data_root to their folder.",
            missing, len(photographs), run.photographs.root,
        )  # fmt: skip
