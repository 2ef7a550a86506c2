"""`extract-regions`, `pool-regions`: the regions of images with their features, and these pooled for whole images."""

import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain, islice, tee
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import IntegrityError
from pipeline.run import Input, Inputs, Job, Outside, Run, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.encoders.preparation import Preparation, Request
    from pipeline.images.boxes import Candidates
    from pipeline.run.reading.photos import Part

DETECTED = 16
"""Images in which a GPU looks for boxes at once, where they are of one shape; the processor does one after another."""
TOGETHER = 4
"""Images whose regions travel together, with some megabytes of pixels each."""
POOLED = 256
"""Images whose regions are pooled at once."""
log = logging.getLogger(__name__)


def _keys(config: "Config", *_: str) -> dict:
    return {**config.regions.decisive(), **config.extract.decisive()}


def _reads(config: "Config", layout, encoder: str) -> Inputs:
    chosen, weights = config.regions, config.regions.detector
    found: list[Input] = [layout.encoder(encoder)]
    if chosen.proposals == "faster-rcnn" and weights.weights == "file":
        found.append(Outside("detector", Path(config.weights_root) / weights.file))
    if chosen.proposals == "boxes" and chosen.boxes is not None:
        path = Path(config.data_root) / chosen.boxes
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found += [Outside(f"boxes/{file.name}", file) for file in files if not file.name.startswith(".")]
    return found


@stage(
    version=5,
    gpu=True,
    choices=lambda config: [(name,) for name in config.regions.encoders],
    wanted=lambda config: [(name,) for name in config.regions.encoders],
    keys=_keys,
    reads=_reads,
    columns=("images", "boxes"),
    writes=lambda layout, encoder: layout.regions(encoder),
    in_stream=True,
)
def extract_regions(run: Run, encoder: str) -> Callable[[Iterable[Sequence[Job]]], Iterator[int]]:
    """Find regions in images and extract their features. Resumable."""
    import numpy as np

    from pipeline.compute.workers import Failure, behind, shared_map
    from pipeline.encoders.extraction import Stopwatch, choose_plan
    from pipeline.encoders.image_encoder import ImageEncoder
    from pipeline.encoders.libraries.library_encoders import require_vectors
    from pipeline.encoders.networks import CLASSIFIER
    from pipeline.encoders.preparation import Cutting, Preparation, PreparedImage, Request
    from pipeline.encoders.regions import Classifier, DescribedRegions, RegionExtractor, describe
    from pipeline.encoders.restore import restore_encoder
    from pipeline.images.preprocess import Photograph
    from pipeline.run.reading.photos import describe_parts, missing_parts, photograph_reader
    from pipeline.storage.features import to_stored
    from pipeline.storage.regions import UnfinishedRegions, require_few_rejects

    chosen, extract = run.config.regions, run.config.extract
    parameters = run.encoder(encoder)
    network = restore_encoder(ImageEncoder, parameters, run.layout.encoder(encoder).path)
    cutting = Cutting.from_settings(chosen.model_dump(), network.preprocessing)
    preparation, view = Preparation(photograph_reader(run), cutting), cutting.view
    if chosen.features == "crops":
        require_vectors(network, encoder, view.side)
    plan = choose_plan(network, run.config.device, extract.precision, run.batch_size)
    extractor = RegionExtractor(network, plan, view)
    described_as = {"name": encoder, "sha256": parameters.sha256, **parameters.settings, "precision": plan.precision}
    known_boxes, detect = _known_boxes(run), _detector(run, preparation)
    classifier = None
    if chosen.score == "classifier":
        weight, bias = (parameters.tensors[f"{CLASSIFIER}{name}"] for name in ("weight", "bias"))
        classifier = Classifier(weight, bias, chosen.iou, chosen.count)

    def parts(job: Job) -> "Iterator[Part]":
        photographs = map(Photograph.from_row, run.manifest.table("images", job.number).to_pylist())
        requests = [Request(*pair) for pair in zip(photographs, known_boxes(job), strict=True)]
        shard = UnfinishedRegions(job.path, job.provenance, job.image_id, chosen.checkpoint_images)
        return missing_parts(job.number, {encoder: shard}, requests)

    def prepare(requests: Iterator[Request], stopwatch: Stopwatch) -> Generator[PreparedImage | Failure]:
        if detect is not None:
            requests = stopwatch.iterate("proposals", detect(requests))
        return shared_map(preparation, requests, run.decoders, cutting.room, TOGETHER)

    def describe_each(images: Iterator[PreparedImage | Failure], lengths: Iterator[int]) -> Iterator[DescribedRegions]:
        return (describe(islice(images, length), extractor, classifier) for length in lengths)

    def write(pair: "tuple[Part, DescribedRegions]") -> int | None:
        """Keep the regions of a part, and publish the shard that is whole with it; returns its number then."""
        part, described = pair
        shard = part.shards[encoder]
        names = [request.photograph.name for request in part.images]
        arrays = described.arrays
        of_regions = np.repeat(np.array(names, object), arrays["lengths"]).tolist()
        stored = to_stored(arrays["features"], extract.storage, of_regions)
        rejects = [
            {"image_id": int(shard.image_id[part.rows[i]]), "name": names[i], "reason": reason}
            for i, reason in sorted(described.faults.items())
        ]
        shard.keep(part.rows, {**arrays, "features": stored}, {"rejects": rejects, "counts": dict(described.counts)})
        if not part.last:
            return None
        commit = shard.publish({"encoder": described_as, "regions": _keys(run.config)})
        log.info("proposals: %s", ", ".join(f"{count} {what}" for what, count in commit.details["counts"].items()))
        require_few_rejects(shard.path, commit, run.config.collection.reject_limit)
        return part.number

    def make(shards: Iterable[Sequence[Job]]) -> Iterator[int]:
        every = chain.from_iterable(parts(job) for (job,) in shards)
        return behind(write, describe_parts(every, prepare, describe_each, "extract-regions"))

    return make


def _known_boxes(run: Run) -> "Callable[[Job], list[Candidates]]":
    """What reads the known boxes of each image of a shard."""
    from pipeline.foreign.box_formats import match_boxes
    from pipeline.foreign.matching import some
    from pipeline.images.boxes import NONE, Candidates, group
    from pipeline.storage.regions import manifest_boxes, read_box_files

    chosen, manifest = run.config.regions, run.manifest
    if chosen.proposals != "boxes":
        return lambda job: [NONE] * len(job.image_id)
    if chosen.boxes is None:

        def of_manifest(job: Job) -> "list[Candidates]":
            owners, *arrays = manifest_boxes(manifest, job.rows)
            return group(owners, Candidates(*arrays), len(job.image_id))

        return of_manifest
    path = Path(run.config.data_root) / chosen.boxes
    matched = match_boxes(read_box_files(path), manifest.images["path"].to_pylist(), manifest.root)
    if matched.unmatched:
        log.warning("%s has boxes for images that are not in the run: %s", path, some(matched.unmatched))
    candidates = matched.candidates(len(manifest.images))
    return lambda job: candidates[job.rows.first_image : job.rows.last_image]


def _detector(run: Run, preparation: "Preparation") -> "Callable[[Iterable[Request]], Iterator[Request]] | None":
    """What adds the boxes that it finds to requests; None where they are proposed otherwise."""
    from pipeline.compute.workers import isolated_map
    from pipeline.encoders import weights as states
    from pipeline.encoders.detectors import build_detector, detect
    from pipeline.foreign.files import read_weights

    chosen, settings = run.config.regions.detector, run.config
    if settings.regions.proposals != "faster-rcnn":
        return None
    if chosen.weights == "file":
        data, _ = read_weights(Path(settings.weights_root) / chosen.file, chosen.sha256)
        state, source = states.parse(data, chosen.file), chosen.file
    else:
        state, source = states.fetch(chosen.architecture, "name it in regions.detector.file")
    network = build_detector(chosen.architecture, state, source)
    device = run.device

    def find(requests: "Iterable[Request]") -> "Iterator[Request]":
        requests, ahead = tee(requests)
        pixels = isolated_map(preparation.open, (request.photograph for request in ahead), run.decoders)
        found = detect(network, pixels, device, chosen.stage, 1 if device.type == "cpu" else DETECTED)
        return (request._replace(known=boxes) for request, boxes in zip(requests, found, strict=True))

    return find


@stage(
    version=3,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "regions"],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    reads=lambda config, layout, encoder: [layout.encoder(encoder), layout.regions(config.encoder(encoder).base or "")],
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def pool_regions(run: Run, encoder: str) -> Callable[[Job], None]:
    """Pool the features of each image's regions into one vector per image."""
    import numpy as np

    from pipeline.encoders.regions import pool
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.json_files import require_same
    from pipeline.storage.regions import RegionShard

    storage, parameters = run.config.extract.storage, run.encoder(encoder)
    folder, cut = run.layout.encoder(encoder).path, parameters.settings["regions"]
    pooling = parameters.settings["pooling"]
    source = run.layout.regions(run.config.encoder(encoder).base or "")
    described = {"name": encoder, "sha256": parameters.sha256, **parameters.settings}

    def make(job: Job) -> None:
        regions = RegionShard(source.shard(job.number))
        # The regions may be of an earlier configuration.
        cuts = {str(regions.path): {key: regions.details["regions"].get(key) for key in cut}, str(folder): cut}
        require_same("the regions", {path: json.dumps(keys, sort_keys=True) for path, keys in cuts.items()})
        if not np.diff(regions.offsets).all():
            first = regions.image_id[np.diff(regions.offsets).argmin()]
            raise IntegrityError(f"image {first} has no regions in {regions.path}; ingest again without this image")
        n = len(regions.image_id)
        blocks = (regions.packed(np.arange(start, min(start + POOLED, n))) for start in range(0, n, POOLED))
        features = np.concatenate([pool(block.features, block.offsets, pooling) for block in blocks])
        stored = to_stored(features, storage, [f"image {number}" for number in regions.image_id])
        details = {"encoder": described}
        write_features(job.path, stored, regions.image_id, job.provenance, details)

    return make
