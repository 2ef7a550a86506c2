"""`report`: the page that a person looks at."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pipeline.config import Config
    from pipeline.report.examples import Gallery, Picture, ScoredGallery
    from pipeline.storage.manifest import Manifest

LIBRARIES = ("jointspace", "torch", "torchvision", "faiss-gpu", "faiss-cpu", "numpy", "scipy", "h5py", "snakemake")
SHARDS, ROWS = 4, 512
"""How many shards of features are looked at, evenly spaced, and how many rows of each."""


@click.command("report")
@click.argument("bundles", type=options.FOLDER, nargs=-1, required=True)
@options.manifest
@click.option(
    "--embeddings", "embeddings_root", type=options.FOLDER, required=True, help="Folder with the shards of each row."
)
@click.option("--features", "features_root", type=options.FOLDER, help="Stored features, to look at how they are.")
@click.option("--summary", "summary_path", type=options.FILE, required=True, help="What `summarise` wrote.")
@click.option("--benchmarks", "benchmarks_root", type=options.FOLDER, help="Snakemake's, a folder for each rule.")
@click.option("--plan", "plan_path", type=options.FILE, help="What `plan` wrote, to lay beside what the run took.")
@click.option(
    "--sheet",
    "sheets",
    type=options.FILE,
    multiple=True,
    help="A drawing of `show-regions`, `align` or `show-phrases`.",
)
@click.option("--descriptions", type=options.FILE, multiple=True, help="JSON that `describe` wrote, one a generator.")
@click.option("--judged", type=options.FILE, multiple=True, help="JSON that `evaluate-descriptions` wrote.")
@options.config
@options.output("file", "The page, an HTML file that needs nothing else.")
def command(
    bundles: tuple[Path, ...],
    manifest_folder: Path,
    embeddings_root: Path,
    features_root: Path | None,
    summary_path: Path,
    benchmarks_root: Path | None,
    plan_path: Path | None,
    sheets: tuple[Path, ...],
    descriptions: tuple[Path, ...],
    judged: tuple[Path, ...],
    config_path: Path | None,
    output: Path,
) -> None:
    """Show a run: its figures, its collection, and what the best of BUNDLES, folders of indices, finds."""
    import shlex

    from pipeline import config
    from pipeline.report.atlas import draw_map
    from pipeline.report.examples import ask
    from pipeline.report.generated import compare_generators
    from pipeline.report.page import Report, render
    from pipeline.report.samples import draw_samples
    from pipeline.report.tables import best_row, shown_split
    from pipeline.report.thumbnails import drawing, vector_drawing
    from pipeline.storage.atomic import publish_text, read_json
    from pipeline.storage.bundle import CARD, Bundle
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.names import plain

    settings = config.load(config_path)
    manifest, evaluations = Manifest(manifest_folder), read_json(summary_path)
    opened = {bundle.card["model"]: bundle for bundle in map(Bundle, bundles)}
    made_from = {str(bundle.folder): bundle.card["inputs"]["manifest"] for bundle in opened.values()}
    require_same("manifest", {str(manifest_folder): manifest.fingerprint, **made_from})
    # Of rows of sets all pairs must be scored, so that they are shown only where there is no other row.
    single = {row: bundle for row, bundle in opened.items() if bundle.card.get("kind") != "fragments"}
    best, show = opened[best_row(evaluations, single or opened)], _pictures(settings, manifest)
    gallery = _read_gallery(
        manifest, embeddings_root / plain(best.card["model"], best.folder / CARD), shown_split(evaluations)
    )

    plan = read_json(plan_path) if plan_path else None
    page = render(
        Report(
            title=settings.name,
            search=shlex.join(
                ["jointspace", "search", "--index", str(best.folder), manifest.sentences["text"][0].as_py()]
            ),
            manifest=manifest.summary,
            rejects=manifest.rejects,
            evaluations=evaluations,
            cards=[bundle.card for bundle in opened.values()],
            logs={row: bundle.model().details.get("training_log", {}) for row, bundle in opened.items()},
            examples=ask(gallery, show),
            samples=draw_samples(manifest.images, manifest.sentences, manifest.documents, show),
            atlas=draw_map(gallery, show) if single else None,
            health=_health(settings, manifest, features_root, benchmarks_root),
            costs=_costs(settings, manifest, benchmarks_root, plan),
            share=plan["rates"]["share"] if plan else 1.0,
            tradeoffs=[
                vector_drawing(path.name.removesuffix(".tradeoff.svg"), path.read_bytes())
                for path in sorted(best.folder.glob("*.tradeoff.svg"))
            ],
            sheets=[drawing(f"{path.parent.name}, {path.stem}", path.read_bytes()) for path in sheets],
            generated=compare_generators([read_json(path) for path in descriptions], manifest.images, show),
            judged=[read_json(path) for path in judged],
            versions=_versions(),
            collection=settings.reproduce.collection,
        )
    )

    publish_text(output, page)


def _read_gallery(manifest: "Manifest", embeddings_folder: Path, split: str) -> "Gallery | ScoredGallery":
    """The images and sentences of `split` as a row compares them."""
    from pipeline.report.examples import ScoredGallery, read_gallery
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fragments import open_embedded
    from stages.scores import read_side

    embeddings, pairs = open_embedded(manifest, embeddings_folder), split_pairs(manifest, split)
    if isinstance(embeddings, Embeddings):
        return read_gallery(embeddings, pairs, split, manifest.images, manifest.sentences)
    from pipeline.neural.fragment_scores import ScoreRule, exact_scores  # torch

    asked = read_side(embeddings, "images", pairs.image_id), read_side(embeddings, "sentences", pairs.sentence_id)
    scores = exact_scores(*asked, ScoreRule.from_dict(embeddings.score))
    images, sentences = manifest.images.take(pairs.image_id), manifest.sentences.take(pairs.sentence_id)
    return ScoredGallery(embeddings.row, split, images, sentences, scores, pairs.owners)


def _health(
    settings: "Config", manifest: "Manifest", features_root: Path | None, benchmarks_root: Path | None
) -> "list[dict[str, Any]]":
    """How the stored features of every encoder are; nothing where their folder was not given.

    Of SHARDS shards, checked against their sha256 and the manifest, ROWS rows each are looked at, and their bytes are
    carried over to all. `rate` is of the jobs that wrote all shards, None where some of these are not known.
    """
    import numpy as np

    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.health import measure_rows
    from pipeline.storage.benchmarks import read_shard_jobs
    from pipeline.storage.gather import Features

    if not features_root:
        return []
    rules = ("extract", "pool_regions") if benchmarks_root else ()
    jobs = {name: found for rule in rules for name, found in read_shard_jobs(benchmarks_root / rule).items()}
    features, found = Features(manifest, features_root), []
    for name in (encoder.name for encoder in settings.encoders if (features_root / encoder.name).is_dir()):
        shards = [features.open(name, int(number)) for number in evenly_spaced(manifest.n_shards, SHARDS)]
        sample = np.concatenate([shard["features"][evenly_spaced(shard.rows, ROWS)] for shard in shards])
        images, own = manifest.images.num_rows, jobs.get(name, [])
        seconds = sum(job.seconds for job in own)
        found.append(
            {
                "encoder": name,
                "rows": images,
                "shards": manifest.n_shards,
                "dim": sample.shape[1],
                "dtype": str(sample.dtype),
                "bytes": round(sum(s.sidecar.bytes for s in shards) / sum(s.rows for s in shards) * images),
                "rate": images / seconds if seconds and len(own) == manifest.n_shards else None,
                **vars(measure_rows(sample.astype(np.float32))),
            }
        )
    return found


def _costs(
    settings: "Config", manifest: "Manifest", benchmarks_root: Path | None, plan: "dict[str, Any] | None"
) -> "list[dict[str, Any]]":
    """What `jointspace plan --compare` shows, by the rates that the run's plan has measured; without a plan, only what
    the run took."""
    from pipeline.plan.comparison import add_up, compare
    from pipeline.plan.forecast import forecast
    from pipeline.plan.rates import Rates
    from pipeline.plan.sizes import sizes_of
    from pipeline.storage.benchmarks import read_benchmarks

    stages = []
    if plan:
        sizes = sizes_of(settings, manifest.summary, plan["dims"], plan["terms"])
        stages = forecast(settings, sizes, Rates(**plan["rates"]), plan["gpu"])
    return compare(stages, add_up(read_benchmarks(benchmarks_root)) if benchmarks_root else {})


def _pictures(settings: "Config", manifest: "Manifest") -> "Callable[[Mapping], Picture]":
    """What makes a small picture of a row of the manifest's images."""
    from functools import partial

    from pipeline.images.decode import ImageLimits
    from pipeline.report.thumbnails import picture
    from pipeline.storage.sources import ImageSource

    limits = settings.collection
    return partial(
        picture,
        read=ImageSource(manifest.root, limits.follow_links).read,
        limits=ImageLimits.from_settings(limits),
    )


def _versions() -> dict[str, str]:
    """The libraries that figures depend on, as far as they are installed."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
