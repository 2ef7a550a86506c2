"""`search`: images for a sentence, or sentences for an image."""

from pathlib import Path

import click

from stages import options


@click.command("search")
@click.argument("sentence", required=False)
@click.option("--index", "bundle_folder", type=options.FOLDER, required=True, help="Folder that `build-index` wrote.")
@click.option("--image", "image_path", type=options.FILE, help="Rank sentences for this image instead.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, help="Number of results.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
@options.config
def command(
    sentence: str | None,
    bundle_folder: Path,
    image_path: Path | None,
    top: int,
    as_json: bool,
    config_path: Path | None,
) -> None:
    """Rank the images of an index for SENTENCE, or its sentences for an image."""
    import json

    from pipeline.errors import UsageError
    from pipeline.index.search import Searcher
    from pipeline.storage.bundle import Bundle

    if (sentence is None) == (image_path is None):
        raise UsageError("give either a sentence or --image FILE")
    bundle = Bundle(bundle_folder)
    searcher = Searcher(bundle)
    if sentence is not None:
        hits = searcher.images(sentence, top)
    else:
        encoders = {name: bundle.encoder(name) for name in searcher.encoders}
        hits = searcher.sentences(_features(image_path, encoders, config_path), top)

    if as_json:
        click.echo(json.dumps([{"rank": hit.rank, "score": hit.score, **hit.row} for hit in hits], ensure_ascii=False))
        return
    for hit in hits:
        what = hit.row["text"] if image_path else "::".join(filter(None, (hit.row["path"], hit.row["member"])))
        click.echo(f"{hit.rank:>4}  {hit.score:>8.4f}  {what}")


def _features(image_path: Path, encoders: dict, config_path: Path | None) -> dict:
    """The photograph as the bundle's encoders see it. InputError names a file that cannot be used."""
    from pipeline import config
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.index.query import image_features

    collection = config.load(config_path).collection
    limits = ImageLimits(collection.max_image_pixels, collection.min_image_side, collection.max_aspect_ratio)
    try:
        return image_features(image_path.read_bytes(), encoders, limits)
    except OSError as error:
        raise InputError(f"{image_path} cannot be read: {error.strerror}; give another image") from error
    except InputError as error:
        raise InputError(f"{image_path}: {error}; give another image") from error
