"""`report`: the page that a person looks at."""

from pathlib import Path

import click

from stages import options


@click.command("report")
@click.argument("bundles", type=options.FOLDER, nargs=-1, required=True)
@options.manifest
@click.option("--summary", "summary_path", type=options.FILE, required=True, help="What `summarise` wrote.")
@options.config
@options.output("file", "The page, an HTML file that needs nothing else.")
def command(
    bundles: tuple[Path, ...], manifest_folder: Path, summary_path: Path, config_path: Path | None, output: Path
) -> None:
    """Show a run: its figures, its collection, and what the best of BUNDLES, folders of indices, finds."""
    import shlex
    from functools import partial

    from pipeline import config
    from pipeline.images.decode import ImageLimits
    from pipeline.report.examples import ask, read_gallery
    from pipeline.report.page import Report, render
    from pipeline.report.tables import best_row, shown_split
    from pipeline.report.thumbnails import picture
    from pipeline.storage.atomic import publish_text, read_json
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import require_same
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.sources import ImageSource

    settings = config.load(config_path)
    manifest, evaluations = Manifest(manifest_folder), read_json(summary_path)
    opened = {bundle.card["model"]: bundle for bundle in map(Bundle, bundles)}
    made_from = {str(bundle.folder): bundle.card["inputs"]["manifest"] for bundle in opened.values()}
    require_same("manifest", {str(manifest_folder): manifest.fingerprint, **made_from})
    limits = settings.collection
    show = partial(
        picture,
        read=ImageSource(manifest.root).read,
        limits=ImageLimits(limits.max_image_pixels, limits.min_image_side, limits.max_aspect_ratio),
    )

    best = opened[best_row(evaluations, opened)]
    query = manifest.sentences["text"][0].as_py()
    page = render(
        Report(
            title=settings.name,
            search=shlex.join(["jointspace", "search", "--index", str(best.folder), query]),
            manifest=manifest.summary,
            rejects=manifest.rejects,
            evaluations=evaluations,
            cards=[bundle.card for bundle in opened.values()],
            logs={row: bundle.model().details.get("training_log", {}) for row, bundle in opened.items()},
            examples=ask(read_gallery(best, shown_split(evaluations)), show),
        )
    )

    publish_text(output, page)
