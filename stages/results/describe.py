"""`describe`: sentences for photographs, for the images of an index, or for a split of stored features."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from pipeline.config import Config


@click.command("describe")
@click.argument("paths", type=options.PATH, nargs=-1)
@click.option(
    "--generator", "generator_folder", type=options.FOLDER, required=True, help="Folder that `train-generator` wrote."
)
@options.manifest
@options.tokens
@click.option(
    "--vocabulary", "vocabulary_path", type=options.FILE, required=True, help="What `build-token-vocabulary` wrote."
)
@click.option("--index", "bundle_folder", type=options.FOLDER, help="Bundle: encoders, joint space, and its images.")
@click.option("--features", "features_root", type=options.FOLDER, help="Stored features, for the images of --split.")
@options.regions
@click.option(
    "--split", help="Describe the images of this split, of --features, else of --index; or its boxes, of --regions."
)
@click.option(
    "--boxes", "boxes_path", type=options.PATH,
    help="Boxes with labels, as `rank-phrases` takes them, for --regions. [default: the manifest's]",
)  # fmt: skip
@click.option(
    "--box", "boxes", type=(float, float, float, float), multiple=True, help="Regions x1 y1 x2 y2 of one photograph."
)
@options.config
@options.output("folder", "Folder of descriptions.json, descriptions.txt and index.html.")
def command(
    paths: tuple[Path, ...],
    generator_folder: Path,
    manifest_folder: Path,
    tokens_folder: Path | None,
    vocabulary_path: Path,
    bundle_folder: Path | None,
    features_root: Path | None,
    regions_root: Path | None,
    split: str | None,
    boxes_path: Path | None,
    boxes: tuple[tuple[float, float, float, float], ...],
    config_path: Path | None,
    output: Path,
) -> None:
    """Describe PATHS, photographs or folders of them; or the images of a split, or their boxes with labels."""
    from tqdm import tqdm

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.generate.batches import stored_batches
    from pipeline.generate.describing import describe_images
    from pipeline.report.descriptions import as_text, render
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.bundle import Bundle
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.places import require_output
    from stages.boxes import read_boxes, read_gold
    from stages.generators import gather_sources, read_generator, read_training_text

    settings, manifest = config.load(config_path), Manifest(manifest_folder)
    stored = read_generator(generator_folder, settings)
    about = {"generator": stored.name, "of": "boxes" if regions_root else "images", "split": split}
    require_output(output / "descriptions.json", about)
    bundle = Bundle(bundle_folder) if bundle_folder else None
    text = read_training_text(manifest, tokens_folder, vocabulary_path)
    sources = gather_sources(stored, text, bundle, settings)
    if regions_root is not None:
        if split is None or paths or features_root:
            raise UsageError("--regions go with --split alone: they describe its boxes, --features its images")
        gold = read_gold(settings, manifest, boxes_path)
        features, shown = read_boxes(gold, manifest, regions_root, stored.encoders, stored.folder, split)
        images, inputs = stored_batches(features, shown, settings.describe.batch_size), {}
    else:
        images, inputs = _choose_images(settings, manifest, stored, paths, bundle, features_root, split, boxes)

    described = []
    for batch in tqdm(images, f"describe with {stored.name}", unit="batch", disable=None):
        found = describe_images(stored.generator, batch.features, sources, settings.describe.top)
        for shown, sentences in zip(batch.images, found, strict=True):
            described.append({**shown, "sentences": [one.to_dict() for one in sentences]})

    about |= {"settings": settings.describe.model_dump(), "precision": stored.precision}
    inputs |= {"manifest": manifest.fingerprint, "generator": stored.parameters.fingerprint}
    value = {
        **about,
        "inputs": inputs,
        "fingerprint": fingerprint("descriptions", 2, about, inputs),
        "images": described,
    }
    page = render(value, _thumbnails(settings, manifest, described[: settings.describe.shown]))
    beside = {"index.html": page.encode(), "descriptions.txt": as_text(value).encode()}
    publish_record(output / "descriptions.json", value, beside)


def _choose_images(
    settings: "Config", manifest: Any, stored: Any, paths: tuple[Path, ...], bundle: Any, features_root: Path | None,
    split: str | None, boxes: tuple,
) -> tuple[Iterator[Any], dict[str, str]]:  # fmt: skip
    """The images to describe, in batches with their features, and what these were made from. UsageError where the
    options do not go together, IntegrityError where the features are of other encoders than the generator's."""
    from functools import partial

    import numpy as np

    from pipeline.errors import InputError, UsageError
    from pipeline.generate.batches import Photograph, encode_photographs, stored_batches
    from pipeline.images.decode import ImageLimits
    from pipeline.storage.gather import Features
    from pipeline.storage.provenance import require_origins
    from pipeline.storage.rows import FeatureRows
    from pipeline.storage.sources import ImageSource
    from stages.generators import read_bundled_encoders

    size, limits = settings.describe.batch_size, settings.collection
    if bool(paths) == bool(split) or (boxes and len(paths) != 1):
        raise UsageError("give photographs (one with --box), or a --split of --features or --index")
    if features_root is not None:
        if split is None:
            raise UsageError("--features go with --split; photographs are encoded by the encoders of --index")
        ids = np.flatnonzero(manifest.splits == split)
        if not len(ids):
            raise InputError(f"the {split} split of {manifest.folder} has no image; describe another one")
        rows = {name: FeatureRows(Features(manifest, features_root), name, ids) for name in stored.generator.encoders}
        require_origins(stored.encoders, stored.folder, {name: block.origins for name, block in rows.items()})
        shown = [
            {"image_id": r["image_id"], "image": r["path"], "box": None} for r in manifest.images.take(ids).to_pylist()
        ]
        inputs = {key: digest for block in rows.values() for key, digest in block.fingerprints.items()}
        return stored_batches(rows, shown, size), inputs
    if bundle is None:
        raise UsageError("photographs need encoders; give what build-index wrote as --index")
    encoders = read_bundled_encoders(stored, bundle)
    bounds = ImageLimits.from_settings(limits)
    if split is not None:
        read = ImageSource(Path(bundle.card["data_root"]), limits.follow_links).read
        rows = [row for row in bundle.table("images").to_pylist() if row["split"] == split]
        photographs = [
            Photograph(
                {"image_id": row["image_id"], "image": row["path"], "box": None},
                None,
                partial(read, row["path"], row["offset"], row["size"]),
            )  # fmt: skip
            for row in rows
        ]
    else:
        files = [
            file
            for path in paths
            for file in (sorted(filter(Path.is_file, path.iterdir())) if path.is_dir() else [path])
        ]
        photographs = [
            Photograph({"image_id": None, "image": str(file), "box": box}, box, file.read_bytes)
            for file in files
            for box in [None, *boxes]
        ]
    return encode_photographs(photographs, encoders, bounds, size), {"bundle": bundle.card["fingerprint"]}


def _thumbnails(settings: "Config", manifest: Any, described: list[dict]) -> list[str | None]:
    """The address of a small picture of each described image or box; None where it cannot be read."""
    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.report.thumbnails import thumbnail
    from pipeline.storage.sources import ImageSource, find_photographs

    limits = settings.collection
    bounds = ImageLimits.from_settings(limits)
    rows = {}
    if any(one["image_id"] is not None for one in described):
        rows = {row["image_id"]: row for row in manifest.images.to_pylist()}
    source, addresses = ImageSource(find_photographs(manifest.root, Path(settings.data_root)), limits.follow_links), []
    for one in described:
        try:
            row = rows.get(one["image_id"])
            data = source.read(row["path"], row["offset"], row["size"]) if row else Path(one["image"]).read_bytes()
            addresses.append(thumbnail(data, bounds, one["box"]))
        except (InputError, OSError):
            addresses.append(None)
    return addresses
