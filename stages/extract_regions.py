"""`extract-regions`: the regions of one shard's images and their features."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stages import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline import config
    from pipeline.images.boxes import Candidates
    from pipeline.images.preparation import Preparation
    from pipeline.images.preprocess import Photograph, Preprocessing
    from pipeline.storage.manifest import Manifest, ShardRows

log = logging.getLogger(__name__)


@click.command("extract-regions")
@options.manifest
@click.option(
    "--encoder", "encoder_folder", type=options.FOLDER, required=True, help="Folder of `prepare-encoder` or `finetune`."
)
@click.option(
    "--boxes", "boxes_path", type=options.PATH, help="Boxes, a file or a folder of them. [default: the manifest's]"
)
@options.shard
@options.config
@options.output("file", "The regions, an HDF5 file.")
def command(
    manifest_folder: Path,
    encoder_folder: Path,
    boxes_path: Path | None,
    shard: int,
    config_path: Path | None,
    output: Path,
) -> None:
    """Find the regions of one shard's images and describe them, going on where a killed run has stopped."""
    from itertools import islice

    from tqdm import tqdm

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.images.preprocess import Photograph
    from pipeline.storage.features import to_stored
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.parameters import ENCODER, read_parameters
    from pipeline.storage.regions import UnfinishedRegions, read_classifier, require_few_rejects
    from pipeline.workers import isolated_map

    settings, manifest = config.load(config_path), Manifest(manifest_folder)
    chosen, extract, numbers = settings.regions, settings.extract, manifest.shard(shard)
    rows = manifest.images.slice(numbers.first_image, numbers.last_image - numbers.first_image)
    photographs, image_id = [Photograph.from_row(row) for row in rows.to_pylist()], rows["image_id"].to_numpy()
    parameters = read_parameters(encoder_folder / "model.safetensors", ENCODER)
    known, of_boxes = _known_boxes(settings, manifest, numbers, boxes_path)
    detector, of_detector = _detector_weights(settings)
    inputs = {"encoder": parameters.fingerprint, "images": numbers.fingerprints["images"], **of_boxes, **of_detector}
    classifier, of_classifier = None, {}
    if chosen.score == "classifier":
        classifier, of_classifier = read_classifier(encoder_folder, parameters.fingerprint)
    inputs |= of_classifier
    slice_ = {**chosen.decisive(), **extract.model_dump(include={"precision", "storage"})}
    unfinished = UnfinishedRegions(
        output, fingerprint("regions", 2, slice_, inputs), image_id, chosen.checkpoint_images
    )
    if unfinished.is_published():
        log.info("%s is there already", output)
        return

    from pipeline.images.classifier import Classifier
    from pipeline.images.encoders import Encoder  # torch, which nothing above has needed
    from pipeline.images.extraction import Stopwatch, choose_plan
    from pipeline.images.kinds import restore
    from pipeline.images.preparation import Request
    from pipeline.images.regions import RegionExtractor, describe

    encoder = restore(parameters.settings, parameters.tensors)
    if not isinstance(encoder, Encoder):
        raise UsageError(f"{encoder_folder} describes whole images only; give an encoder that is a network")
    plan = choose_plan(encoder, settings.device, extract.precision, extract.batch_size)
    preparation = _preparation(settings, manifest, encoder.spec.preprocessing)
    extractor = RegionExtractor(encoder, plan, preparation.cutting.view)
    judge = classifier and Classifier(**classifier)
    missing, stopwatch, share = unfinished.missing(), Stopwatch(), 0.0
    places = [row for part in missing for row in part]
    candidates = (known[row] for row in places)
    if chosen.proposals == "faster-rcnn":
        found = _detect(settings, preparation, [photographs[row] for row in places], detector)
        candidates = stopwatch.iterate("proposals", found)
    requests = (Request(photographs[row], boxes) for row, boxes in zip(places, candidates, strict=True))
    images = isolated_map(preparation, requests, extract.decode_workers)
    images = stopwatch.iterate("decode", tqdm(images, "extract-regions", len(places), unit=" images", disable=None))
    for part in missing:
        described = describe(islice(images, len(part)), extractor, judge, chosen.iou, chosen.count)
        share += described.proposal_share * len(part) / len(places)
        names = [photographs[row].name for row in part]
        with stopwatch.measure("write"):
            stored = to_stored(described.features, extract.storage, described.names(names))
            unfinished.write_part(part, described.arrays(stored), described.faults, names, described.counts)

    described_as = {"name": parameters.details["name"], "sha256": parameters.sha256, **parameters.settings}
    described_as["precision"] = plan.precision
    sidecar = unfinished.publish({"encoder": described_as, "inputs": inputs, "regions": slice_})
    stopwatch.move("decode", "proposals", share)
    log.info("shard %d: %s", shard, stopwatch.describe(len(places)))
    log.info("proposals: %s", ", ".join(f"{count} {what}" for what, count in sidecar.details["counts"].items()))
    require_few_rejects(output, sidecar, settings.collection.reject_limit)


def _known_boxes(
    settings: "config.Config", manifest: "Manifest", rows: "ShardRows", boxes_path: Path | None
) -> "tuple[list[Candidates], dict[str, str]]":
    """For each image of a shard the boxes that are known before any pixel is seen, and their digest."""
    from pipeline.images.box_formats import parse_all
    from pipeline.images.boxes import NONE, Candidates, digest_boxes, group
    from pipeline.images.matching import some
    from pipeline.storage.regions import manifest_boxes, read_box_files

    count = rows.last_image - rows.first_image
    if settings.regions.proposals != "boxes":
        return [NONE] * count, {}
    if boxes_path is None:
        owners, *arrays = manifest_boxes(manifest, rows)
        known = group(owners, Candidates(*arrays), count)
    else:
        everything = parse_all(read_box_files(boxes_path), manifest.images["path"].to_pylist())
        if everything.unmatched:
            log.warning("%s has boxes of images that are not here: %s", boxes_path, some(everything.unmatched))
        known = everything.candidates[rows.first_image : rows.last_image]
    return known, {"boxes": digest_boxes(known)}


def _detector_weights(settings: "config.Config") -> tuple[bytes, dict[str, str]]:
    """The bytes of the detector's file, where there is one, and their SHA-256."""
    from pipeline.storage.features import read_weights

    detector = settings.regions.detector
    if settings.regions.proposals != "faster-rcnn" or detector.weights != "file":
        return b"", {}
    data, sha256 = read_weights(Path(settings.weights_root) / detector.file, detector.sha256)
    return data, {"detector": sha256}


def _detect(
    settings: "config.Config", preparation: "Preparation", photographs: "list[Photograph]", weights: bytes
) -> "Iterator[Candidates]":
    """What the detector finds in each photograph."""
    from pipeline.device import find_device
    from pipeline.images import weights as states
    from pipeline.images.detectors import build_detector, detect, download_detector
    from pipeline.workers import isolated_map

    chosen = settings.regions.detector
    if chosen.weights == "file":
        state, source = states.parse(weights, chosen.file), chosen.file
    else:
        state, source = download_detector(chosen.architecture)
    network = build_detector(chosen.architecture, state, source, settings.regions.min_score)
    pixels = isolated_map(preparation.open, photographs, settings.extract.decode_workers)
    return detect(network, pixels, find_device(settings.device), chosen.stage)


def _preparation(settings: "config.Config", manifest: "Manifest", preprocessing: "Preprocessing") -> "Preparation":
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preparation import Cutting, Preparation
    from pipeline.storage.sources import ImageSource

    collection, cutting = settings.collection, Cutting.from_settings(settings.regions.model_dump(), preprocessing)
    limits = ImageLimits.from_settings(collection)
    return Preparation(ImageSource(manifest.root, collection.follow_links).read, limits, cutting)
