"""`report`: the page that a person looks at."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.config import Config
    from pipeline.report.examples import Gallery
    from pipeline.report.thumbnails import Photographs
    from pipeline.storage.bundle import Bundle
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
    import logging
    import shlex

    from benchmarks.papers.printed import ranking_tables
    from pipeline import config
    from pipeline.report.atlas import draw_map
    from pipeline.report.examples import ask
    from pipeline.report.generated import compare_generators
    from pipeline.report.page import Report, render
    from pipeline.report.samples import draw_samples
    from pipeline.report.tables import best_row, shown_split
    from pipeline.report.thumbnails import drawing, vector_drawing
    from pipeline.storage.atomic import DRAWING, publish_text, read_verified
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.evaluations import read_summary
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.forms import Descriptions, Judgement, Plan
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.records import read_record
    from pipeline.storage.sources import find_photographs

    settings = config.load(config_path)
    manifest, evaluations = Manifest(manifest_folder), read_summary(summary_path)
    opened = {bundle.card["model"]: bundle for bundle in map(Bundle, bundles)}
    plan = read_record(plan_path, Plan) if plan_path else None
    told = [read_record(path, Descriptions) for path in descriptions]
    assessed = [read_record(path, Judgement) for path in judged]
    records = dict(zip((*descriptions, *judged), (*told, *assessed), strict=True)) | ({plan_path: plan} if plan else {})
    made_from = {str(path): record["inputs"]["manifest"] for path, record in records.items()}
    made_from |= {str(bundle.folder): bundle.card["inputs"]["manifest"] for bundle in opened.values()}
    require_same("manifest", {str(manifest_folder): manifest.fingerprint, **made_from})
    _require_own(evaluations, summary_path, manifest, opened)
    photographs = find_photographs(manifest.root, Path(settings.data_root))
    show = _photographs(settings, photographs, moved=photographs != manifest.root)
    # Of multi-vector models all pairs must be scored, so that they are shown only where there is no other.
    single = {row: bundle for row, bundle in opened.items() if bundle.index_name("images") == "images"}
    best = opened[best_row(evaluations, single or opened)]
    gallery = _read_gallery(manifest, embeddings_root, best, shown_split(evaluations))

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
            models={name: bundle.model().details for name, bundle in opened.items()},
            examples=ask(gallery, show),
            samples=draw_samples(manifest.images, manifest.sentences, manifest.documents, show),
            atlas=draw_map(gallery, show) if single else None,
            health=_health(settings, manifest, features_root, benchmarks_root),
            costs=_costs(settings, manifest, benchmarks_root, plan),
            share=plan["rates"]["share"] if plan else 1.0,
            tradeoffs=[
                vector_drawing(name.removesuffix(".tradeoff.svg"), best.read(name))
                for name in sorted(best.card["files"])
                if name.endswith(".tradeoff.svg")
            ],
            sheets=[drawing(f"{path.parent.name}, {path.stem}", read_verified(path, DRAWING)[0]) for path in sheets],
            generated=compare_generators(told, manifest.images, show),
            judged=assessed,
            versions=_versions(),
            printed=ranking_tables(settings.reproduce.collection),
        )
    )

    publish_text(output, page)
    if missing := list(show.shown.values()).count(False):
        logging.getLogger(__name__).warning(
            "%d of %d photographs are not shown: they cannot be read in %s; set data_root to where they are",
            missing, len(show.shown), photographs,
        )  # fmt: skip


def _require_own(
    evaluations: "list[dict[str, Any]]", summary_path: Path, manifest: "Manifest", bundles: "Mapping[str, Bundle]"
) -> None:
    """Raises IntegrityError where the summary is of another run than the manifest and the bundles."""
    from pipeline.storage.evaluations import embedded, require_one_run
    from pipeline.storage.fingerprint import require_same

    files = {f"{summary_path}, evaluation {number}": value for number, value in enumerate(evaluations)}
    require_one_run(files)
    for file, value in files.items():
        require_same("manifest", {str(manifest.folder): manifest.fingerprint, file: value["inputs"]["manifest"]})
        if bundle := bundles.get(value["model"]):
            own = {str(bundle.folder): embedded(bundle.card["inputs"]), file: embedded(value["inputs"])}
            require_same(f"embeddings of {value['model']}", own)


def _read_gallery(manifest: "Manifest", embeddings_root: Path, bundle: "Bundle", split: str) -> "Gallery":
    """The images and sentences of `split` as the row of `bundle` compares them."""
    from pipeline.report.examples import read_gallery
    from pipeline.storage.bundle import CARD
    from pipeline.storage.embeddings import Embeddings, split_pairs
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.names import plain

    row = bundle.card["model"]
    embeddings = Embeddings(manifest, embeddings_root / plain(row, bundle.folder / CARD), row)
    require_same(
        "model", {str(bundle.folder): bundle.card["inputs"]["model"], str(embeddings.folder): embeddings.model}
    )
    pairs = split_pairs(manifest, split)
    return read_gallery(embeddings, pairs, split, manifest.images, manifest.sentences)


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
    import logging

    from pipeline.errors import IntegrityError
    from pipeline.plan.comparison import add_up, compare
    from pipeline.plan.forecast import forecast
    from pipeline.plan.rates import Rates
    from pipeline.plan.sizes import sizes_of
    from pipeline.storage.benchmarks import read_benchmarks

    stages, facts = [], {}
    if plan:
        sizes = sizes_of(settings, manifest.summary, plan["dims"], plan["terms"])
        stages = forecast(settings, sizes, Rates(**plan["rates"]), plan["gpu"])
    if benchmarks_root:
        try:
            facts = add_up(read_benchmarks(benchmarks_root))
        except IntegrityError as error:
            logging.getLogger(__name__).warning("%s; what the run took is not shown", error)
    return compare(stages, facts)


def _photographs(settings: "Config", root: Path, moved: bool) -> "Photographs":
    """What makes a small picture of a row of the manifest's images."""
    from pipeline.images.decode import ImageLimits
    from pipeline.report.thumbnails import Photographs
    from pipeline.storage.sources import ImageSource

    limits = settings.collection
    source = ImageSource(root, limits.follow_links)
    return Photographs(source.read, ImageLimits.from_settings(limits), moved)


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
