"""`report`: the page that a person looks at."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.run import Inputs, Job, Run, Stage
from pipeline.run.layout import Artefact

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle

LIBRARIES = ("jointspace", "torch", "torchvision", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "h5py", "snakemake")
FORMS = click.Choice(["html", "json"])
SHARDS, ROWS = 4, 512
"""How many shards of features are sampled, evenly spaced, and how many rows of each."""


def report(run: Run, job: Job, form: str = "html") -> None:
    """Show a run: its figures, its collection, and what the best of its models finds."""
    import logging
    import shlex
    from functools import partial

    from benchmarks.papers.printed import ranking_tables
    from pipeline.images.decode import ImageLimits
    from pipeline.printable import printable_json
    from pipeline.report.atlas import draw_map
    from pipeline.report.examples import ask, read_gallery
    from pipeline.report.generated import compare_generators
    from pipeline.report.page import Report, as_values, render
    from pipeline.report.samples import draw_samples, first_sentence
    from pipeline.report.tables import best_model, count_reasons, shown_split
    from pipeline.report.thumbnails import Photographs, drawing, vector_drawing
    from pipeline.storage.atomic import publish_text
    from pipeline.storage.commit import DRAWING, read_verified
    from pipeline.storage.evaluations import read_summary
    from pipeline.storage.forms import Descriptions, JudgementForm
    from pipeline.storage.phrases import PhraseRanking
    from pipeline.storage.records import read_record
    from stages.closing import example_search

    settings, layout, manifest = run.config, run.layout, run.manifest
    evaluations = read_summary(layout.summary.path)
    bundles = {name: run.bundle(name) for name in settings.models}
    described = {one.commit: read_record(one.commit, Descriptions) for one in _descriptions(settings, layout)}
    judged = {one.path: read_record(one.path, JudgementForm) for one in _judged(settings, layout)}
    phrases = {one.path: read_record(one.path, PhraseRanking) for one in _phrase_rankings(settings, layout)}
    photographs, limits = run.photographs, ImageLimits.from_settings(settings.collection)
    moved = Path(photographs.root) != manifest.root
    show = Photographs(photographs.read, limits, moved, partial(first_sentence, manifest))
    # A multi-vector model must score all pairs, so it is shown only where there is no other.
    single = {name: bundle for name, bundle in bundles.items() if bundle.index_name("images") == "images"}
    name = best_model(evaluations, single or bundles)
    best, split = bundles[name], shown_split(evaluations)
    gallery = read_gallery(run.embeddings(name), run.pairs(split), split)
    sheets = [one.path for one in _sheets(settings, layout)]

    contents = Report(
        title=settings.name,
        search=shlex.join(["jointspace", *example]) if (example := example_search(best)) else "",
        manifest=manifest.summary,
        reasons=count_reasons(manifest.each_reject()),
        evaluations=evaluations,
        cards=[bundle.card for bundle in bundles.values()],
        models={name: bundle.model().details for name, bundle in bundles.items()},
        kinds=_kinds(bundles),
        examples=ask(gallery, show),
        samples=draw_samples(manifest, show),
        atlas=draw_map(gallery, show) if single else None,
        health=_health(run),
        costs=_costs(run),
        tradeoffs=[
            vector_drawing(name.removesuffix(".tradeoff.svg"), best.read(name))
            for name in sorted(best.card["files"])
            if name.endswith(".tradeoff.svg")
        ],
        sheets=[drawing(f"{path.parent.name}, {path.stem}", read_verified(path, DRAWING)[0]) for path in sheets],
        generated=compare_generators(list(described.values()), manifest.pick, show),
        judged=list(judged.values()),
        phrases=list(phrases.values()),
        versions=_versions(),
        printed=ranking_tables(settings.reproduce.collection),
    )
    if form == "json":
        click.echo(printable_json(as_values(contents)))
        return
    publish_text(job.path, render(contents))
    if missing := list(show.shown.values()).count(False):
        logging.getLogger(__name__).warning(
            "%d of %d photographs are not shown: they cannot be read in %s; set data_root to where they are",
            missing, len(show.shown), photographs.root,
        )  # fmt: skip


def _kinds(bundles: "Mapping[str, Bundle]") -> dict[str, str]:
    """Of each registered model among those of some bundles, what its class says that it is."""
    from pipeline.specs.models import model_spec

    names = {bundle.card["registered"] for bundle in bundles.values()}
    return {name: " ".join((model_spec(name).load().__doc__ or "").split("\n\n")[0].split()) for name in names}


def _health(run: Run) -> "list[dict[str, Any]]":
    """The state of the stored features of every encoder that the run has features of.

    ROWS rows of each of SHARDS shards are sampled (shards are checked against their sha256), and their
    bytes are extrapolated to all. `rate` is of the jobs that wrote all parts, None where some of these are unknown.
    """
    import numpy as np

    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.tables import measure_rows
    from pipeline.storage.benchmarks import read_part_jobs

    manifest, folders = run.manifest, (run.layout.benchmarks / rule for rule in ("extract", "pool_regions"))
    jobs = {name: one for folder in folders if folder.is_dir() for name, one in read_part_jobs(folder).items()}
    found = []
    for name in (one.name for one in run.config.encoders if run.layout.features(one.name).folder.is_dir()):
        shards = [run.features.open(name, int(number)) for number in evenly_spaced(manifest.n_shards, SHARDS)]
        sample = np.concatenate([shard["features"][evenly_spaced(shard.rows, ROWS)] for shard in shards])
        images, own = manifest.n_images, jobs.get(name, [])
        seconds = sum(job.seconds for job in own)
        found.append(
            {
                "encoder": name,
                "rows": images,
                "shards": manifest.n_shards,
                "dim": sample.shape[1],
                "dtype": str(sample.dtype),
                "bytes": round(sum(s.commit.bytes for s in shards) / sum(s.rows for s in shards) * images),
                "rate": images / seconds if seconds and len(own) == len(run.parts) else None,
                **vars(measure_rows(sample.astype(np.float32))),
            }
        )
    return found


def _costs(run: Run) -> "list[dict[str, Any]]":
    """What each rule took; empty where no job was measured."""
    import logging

    from pipeline.errors import IntegrityError
    from pipeline.report.costs import add_up
    from pipeline.storage.benchmarks import read_benchmarks

    folder = run.layout.benchmarks
    if not folder.is_dir():
        return []
    try:
        return add_up(read_benchmarks(folder))
    except IntegrityError as error:
        logging.getLogger(__name__).warning("%s; what the run took is not shown", error)
        return []


def _versions() -> dict[str, str]:
    """The installed versions of the libraries that results depend on."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found


def _sheets(config, layout) -> Iterator[Artefact]:
    """The drawings of regions, alignments and phrases."""
    yield from (layout.region_sheet(name) for name in config.regions.encoders)
    yield from (layout.alignment_sheet(*names) for names in config.aligned_splits(config.align.splits))
    for names in config.phrase_splits(config.phrases.splits):
        yield from (layout.phrase_sheet(*names), layout.phrase_plane(*names))


def _descriptions(config, layout) -> list[Artefact]:
    """What each generator says of the first split."""
    return [layout.descriptions(name, split) for name in config.generators for split in config.describe.splits[:1]]


def _judged(config, layout) -> list[Artefact]:
    return [layout.description_evaluation(*names) for names in config.descriptions(config.describe.splits)]


def _phrase_rankings(config, layout) -> list[Artefact]:
    return [layout.phrase_ranking(*names) for names in config.phrase_splits(config.phrases.splits)]


def _reads(config, layout) -> Inputs:
    indices = [layout.index(name) for name in config.models]
    read = [*indices, *_sheets(config, layout), *_descriptions(config, layout), *_judged(config, layout)]
    read += _phrase_rankings(config, layout)
    return {"manifest": layout.manifest, "summary": layout.summary} | {one.name: one for one in read}


STAGE = Stage(
    report,
    version=5,
    wanted=lambda config: [()],
    keys=lambda config: {"collection": config.reproduce.collection},
    reads=_reads,
    writes=lambda layout: layout.report,
    then=lambda run: f"open {run.layout.report.path} in a browser",
    options=(
        click.Option(
            ["--format", "form"], type=FORMS, default="html", help="json: print the figures; no page is written."
        ),
    ),
)
