"""`report`: the page that a person looks at."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.run import Inputs, Job, Run, Stage
from pipeline.run.layout import Artefact
from stages.inputs import named

if TYPE_CHECKING:
    from pipeline.storage.bundle import Bundle
    from pipeline.text.text_encoder import Coverage

LIBRARIES = ("jointspace", "torch", "torchvision", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "h5py", "snakemake")
FORMS = click.Choice(["html", "json"])
MAPPED = 1000
"""Photographs on the map, where none has a sentence."""
SHARDS, ROWS = 4, 512
"""How many shards of features are sampled, evenly spaced, and how many rows of each."""


def report(run: Run, job: Job, form: str = "html") -> None:
    """Show a run: its figures, its collection, and what the best of its models finds."""
    import logging
    import shlex
    from functools import partial

    from pipeline.images.decode import ImageLimits
    from pipeline.papers.printed import ranking_tables
    from pipeline.printable import printable_json
    from pipeline.report.examples import ask, compare_generators, draw_map, read_gallery
    from pipeline.report.page import Report, as_values, render
    from pipeline.report.photographs import Photographs, draw_samples, first_sentence, vector_drawing
    from pipeline.report.tables import best_model, count_reasons, shown_split
    from pipeline.storage.batch import publish_text
    from pipeline.storage.commit import read_record
    from pipeline.storage.pairs import undescribed
    from pipeline.storage.records import read_summary
    from stages.closing import example_search
    from stages.pictures import draw_alignments, draw_phrases, draw_regions

    settings, layout, manifest = run.config, run.layout, run.manifest
    evaluations = read_summary(layout.summary.path)
    bundles = {name: run.bundle(name) for name in settings.models}
    described = [read_record(artefact.commit) for artefact in _descriptions(settings, layout)]
    judged = [read_record(artefact.path) for artefact in _judged(settings, layout)]
    phrases = [read_record(artefact.path) for artefact in _phrase_rankings(settings, layout)]
    photographs, limits = run.photographs, ImageLimits.from_settings(settings.collection)
    moved = Path(photographs.root) != manifest.root
    show = Photographs(photographs.read, limits, moved, partial(first_sentence, manifest))
    # A multi-vector model must score all pairs, so it is shown only where there is no other.
    single = {name: bundle for name, bundle in bundles.items() if bundle.index_name("images") == "images"}
    if evaluations:
        name = best_model(evaluations, single or bundles)
        split = shown_split(evaluations)
        pairs = run.pairs(split)
    else:
        name = next(iter(single or bundles))
        split = next(iter(manifest.summary["splits"]))
        pairs = undescribed(manifest, split, MAPPED)
    best = bundles[name]
    gallery = read_gallery(run.embeddings(name), pairs, split)
    sheets = [draw_regions(run, encoder) for encoder in settings.regions.encoders]
    magnitudes = []
    for names in settings.aligned_splits(settings.align.splits):
        drawn, words = draw_alignments(run, *names)
        sheets += drawn
        magnitudes.append(words)
    for names in settings.phrase_splits(settings.phrases.splits):
        sheets += draw_phrases(run, *names)

    contents = Report(
        title=settings.name,
        search=shlex.join(["jointspace", *example]) if (example := example_search(best)) else "",
        manifest=manifest.summary,
        reasons=count_reasons(manifest.each_reject()),
        coverage=_coverage(run),
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
        sheets=sheets,
        magnitudes=magnitudes,
        generated=compare_generators(described, manifest.pick, show),
        judged=judged,
        phrases=phrases,
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
    from pipeline.config.registry import model_spec

    names = {bundle.card["registered"] for bundle in bundles.values()}
    return {name: " ".join((model_spec(name).load().__doc__ or "").split("\n\n")[0].split()) for name in names}


def _coverage(run: Run) -> "dict[str, Coverage]":
    """What the vocabularies that were learned from the training sentences know of dev's."""
    from pipeline.storage.records import read_vocabulary
    from pipeline.text.text_encoder import Coverage

    measured = {name: run.text_encoder(name).details.get("coverage") for name in _text_encoders(run.config)}
    if _reads_tokens(run.config):
        measured["tokens"] = read_vocabulary(run.layout.token_vocabulary.path).get("coverage")
    coverage = {name: Coverage(**counts) for name, counts in measured.items() if counts}
    return {name: share for name, share in coverage.items() if share.sentences}


def _health(run: Run) -> "list[dict[str, Any]]":
    """The state of the stored features of every encoder that the run has features of.

    ROWS rows of each of SHARDS shards are sampled (shards are checked against their sha256), and their
    bytes are extrapolated to all. `rate` is of the jobs that wrote all parts, None where some of these are unknown.
    """
    import numpy as np

    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.tables import measure_rows
    from pipeline.storage.records import read_part_jobs

    jobs: dict[str, Any] = {}
    for folder in (run.layout.benchmarks / rule for rule in ("extract", "pool_regions")):
        jobs |= read_part_jobs(folder) if folder.is_dir() else {}
    n_images, n_shards = run.manifest.n_images, run.manifest.n_shards
    health = []
    for name in (encoder.name for encoder in run.config.encoders):
        if not run.layout.features(name).folder.is_dir():
            continue
        shards = [run.features.open(name, int(number)) for number in evenly_spaced(n_shards, SHARDS)]
        sample = np.concatenate([shard["features"][evenly_spaced(shard.rows, ROWS)] for shard in shards])
        bytes_a_row = sum(shard.commit.bytes for shard in shards) / sum(shard.rows for shard in shards)
        seconds = sum(job.seconds for job in jobs.get(name, []))
        is_timed = seconds and len(jobs[name]) == len(run.parts)
        health.append(
            {
                "encoder": name,
                "rows": n_images,
                "shards": n_shards,
                "dim": sample.shape[1],
                "dtype": str(sample.dtype),
                "bytes": round(bytes_a_row * n_images),
                "rate": n_images / seconds if is_timed else None,
                **vars(measure_rows(sample.astype(np.float32))),
            }
        )
    return health


def _costs(run: Run) -> "list[dict[str, Any]]":
    """What each rule took; empty where no job was measured."""
    import logging

    from pipeline.errors import IntegrityError
    from pipeline.storage.records import add_up, read_benchmarks

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
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    return versions


def _descriptions(config, layout) -> list[Artefact]:
    """What each generator says of the first split."""
    return [layout.descriptions(name, split) for name in config.generators for split in config.describe.splits[:1]]


def _judged(config, layout) -> list[Artefact]:
    return [layout.description_evaluation(*names) for names in config.descriptions(config.describe.splits)]


def _phrase_rankings(config, layout) -> list[Artefact]:
    return [layout.phrase_ranking(*names) for names in config.phrase_splits(config.phrases.splits)]


def _text_encoders(config) -> list[str]:
    """Those with a vocabulary that was learned."""
    return [encoder.name for encoder in config.prepared_text_encoders if encoder.own.learns]


def _reads_tokens(config) -> bool:
    return any(config.model(name).spec.sentences != "vectors" for name in config.models)


def _reads(config, layout) -> Inputs:
    aligned = config.aligned_splits(config.align.splits)
    read = [layout.manifest, layout.summary]
    read += [layout.index(bundle) for name in config.models for bundle in config.bundle_names(name)]
    read += [*_descriptions(config, layout), *_judged(config, layout), *_phrase_rankings(config, layout)]
    read += [layout.phrases(*names) for names in config.phrase_splits(config.phrases.splits)]
    read += [layout.regions(name) for name in config.regions.encoders]
    read += [layout.text_encoder(name) for name in _text_encoders(config)]
    read += [layout.embeddings(model) for model, _ in aligned]
    if aligned or _reads_tokens(config):
        read.append(layout.token_vocabulary)
    return named(*read)


STAGE = Stage(
    report,
    version=7,
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
