"""Regions of a run's images: their extraction, and the labelled boxes with the texts and phrases that name them."""

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from pipeline.compute.workers import Failure, shared_map
from pipeline.errors import InputError
from pipeline.foreign.box_formats import match_boxes
from pipeline.foreign.matching import some
from pipeline.images.boxes import NONE, Candidates, group
from pipeline.images.preprocess import RESIZING, Photograph
from pipeline.metrics.phrases import Gold, named_boxes
from pipeline.run import Run, ShardJob
from pipeline.run.reading.photos import Part, describe_parts, missing_parts, photograph_reader
from pipeline.storage.features import to_stored
from pipeline.storage.regions import (
    RegionRows,
    UnfinishedRegions,
    manifest_boxes,
    read_box_files,
    read_names,
    require_few_rejects,
)
from pipeline.storage.tables import CORNERS
from pipeline.text.tree_conversions import list_noun_phrases

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.encoders.extraction import Stopwatch
    from pipeline.encoders.preparation import Preparation, PreparedImage, Request
    from pipeline.encoders.regions import DescribedRegions
    from pipeline.generate.snippets import SnippetRegions

log = logging.getLogger(__name__)

UNMATCHED = (
    "%s has boxes for images that are not in the run, so they are ignored: %s. Correct the names if they should match."
)
DETECTED_TOGETHER = 16
"""Largest number of images of equal shape that the detector processes at once on a GPU. On the CPU, it processes one
image at a time."""
PHOTO_BYTES = 1 << 26
"""Size of the largest photo in bytes that reaches the detector through shared memory. Larger photos are pickled."""
PREPARED_TOGETHER = 4
"""Number of images whose regions a worker process sends in one message. The regions of an image have some megabytes of
pixels."""


class ShownImage(TypedDict):
    """An image or box for which a caption is generated, in the form in which the results contain it.

    `image` is the path of the image, and `box` has the corners x1, y1, x2, y2 in pixels, or is None for a whole image.
    """

    image_id: int
    image: str
    box: list[float] | None


class ShownBox(ShownImage):
    """A box with a `label` for which a caption is generated, in the form in which the results contain it."""

    label: str


Corners = tuple[float, ...]
"""The corners x1, y1, x2, y2 of a box in pixels, rounded to float32."""


class RegionExtraction:
    """Extractor that finds regions in photos of a run and computes their features with one image encoder.

    The methods are called in turn: `list_parts`, `extract_parts` for the parts, and `write` for each part.
    `detector` is the path of the detector's weights if the user supplied them, and else None.
    """

    def __init__(self, run: Run, encoder: str, detector: Path | None) -> None:
        from pipeline.encoders.extraction import choose_plan
        from pipeline.encoders.image_encoder import ModuleEncoder
        from pipeline.encoders.libraries.library_encoders import require_vectors
        from pipeline.encoders.networks import CLASSIFIER
        from pipeline.encoders.preparation import Cutting, Preparation
        from pipeline.encoders.regions import Classifier, RegionExtractor
        from pipeline.encoders.restore import restore_encoder

        settings = run.config.regions
        extract = run.config.extract
        parameters = run.encoder(encoder)
        network = restore_encoder(ModuleEncoder, parameters, run.layout.encoder(encoder).path)
        cutting = Cutting.from_settings(settings.model_dump(), network.preprocessing)
        if settings.features == "crops":
            require_vectors(network, encoder, cutting.view.side)
        plan = choose_plan(network, run.config.device, extract.precision, run.batch_size)
        self._run = run
        self._encoder = encoder
        self._preparation = Preparation(photograph_reader(run), cutting)
        self._extractor = RegionExtractor(network, plan, cutting.view)
        self._details = {
            "encoder": {
                "name": encoder, "sha256": parameters.sha256, **parameters.settings, "precision": plan.precision,
            },
            "regions": {**settings.decisive(), **extract.decisive()},
        }  # fmt: skip
        self._known_boxes = _read_known_boxes(run)
        self._detect = _open_detector(run, self._preparation, detector)
        self._classifier = None
        if settings.score == "classifier":
            weight, bias = (parameters.tensors[f"{CLASSIFIER}{name}"] for name in ("weight", "bias"))
            self._classifier = Classifier(weight, bias, settings.iou, settings.count)

    def list_parts(self, jobs: Iterable[ShardJob]) -> "Iterator[Part[Request]]":
        """Yield the parts of the shards of `jobs` for which regions are missing.

        A part is a group of successive images of a shard. Its items are requests, each of which has a photo and the
        known boxes of the photo.
        """
        from pipeline.encoders.preparation import Request

        for job in jobs:
            photographs = map(Photograph.from_row, self._run.manifest.table("images", job.number).to_pylist())
            requests = [Request(*pair) for pair in zip(photographs, self._known_boxes(job), strict=True)]
            size = self._run.config.regions.checkpoint_images
            shard = UnfinishedRegions(job.path, job.provenance, job.image_id, size)
            yield from missing_parts(job.number, {self._encoder: shard}, requests)

    def extract_parts(self, parts: "Iterable[Part[Request]]") -> "Iterator[tuple[Part[Request], DescribedRegions]]":
        """Yield each part together with the regions of its images and the features of these regions."""
        return describe_parts(parts, self._prepare, self._describe_each, "extract-regions")

    def _prepare(self, requests: "Iterator[Request]", stopwatch: "Stopwatch") -> "Generator[PreparedImage | Failure]":
        if self._detect is not None:
            requests = stopwatch.iterate("proposals", self._detect(requests))
        room = self._preparation.cutting.room
        yield from shared_map(self._preparation, requests, self._run.decoders, room, PREPARED_TOGETHER, RESIZING)

    def _describe_each(
        self, images: "Iterator[PreparedImage | Failure]", lengths: Iterator[int]
    ) -> "Iterator[DescribedRegions]":
        from pipeline.encoders.regions import extract_regions

        return (extract_regions(islice(images, length), self._extractor, self._classifier) for length in lengths)

    def write(self, described: "tuple[Part[Request], DescribedRegions]") -> int | None:
        """Store the regions of a part. After the last part of a shard, publish the shard and return its number.

        Return None after any other part. Raises RejectLimitError if too many images of the published shard have no
        regions.
        """
        part, regions = described
        shard = part.shards[self._encoder]
        names = [request.photograph.name for request in part.images]
        arrays = regions.arrays
        names_of_regions = np.repeat(np.array(names, object), arrays["lengths"]).tolist()
        stored = to_stored(arrays["features"], self._run.config.extract.storage, names_of_regions)
        rejects = [
            {"image_id": int(shard.image_id[part.rows[i]]), "name": names[i], "reason": reason}
            for i, reason in sorted(regions.faults.items())
        ]
        shard.keep(part.rows, {**arrays, "features": stored}, {"rejects": rejects, "counts": dict(regions.counts)})
        if not part.last:
            return None
        commit = shard.publish(self._details)
        counts = ", ".join(f"{count} {what}" for what, count in commit.details["counts"].items())
        log.info(
            "The shard %s was made. The shard has these numbers of regions that were changed, dropped or added: %s.",
            shard.path,
            counts or "none",
        )
        require_few_rejects(shard.path, commit, self._run.config.collection.reject_limit)
        return part.number


def _read_known_boxes(run: Run) -> Callable[[ShardJob], list[Candidates]]:
    """Return a function that reads the known boxes of each image of a shard.

    The boxes are from the files of `regions.boxes`, or from the manifest. Unless `regions.proposals` is `boxes`, the
    images have no known boxes.
    """
    manifest = run.manifest
    if run.config.regions.proposals != "boxes":
        return lambda job: [NONE] * len(job.image_id)
    if run.config.regions.boxes is None:

        def read_from_manifest(job: ShardJob) -> list[Candidates]:
            owners, *arrays = manifest_boxes(manifest, job.rows)
            return group(owners, Candidates(*arrays), len(job.image_id))

        return read_from_manifest
    path = Path(run.config.data_root) / run.config.regions.boxes
    matched = match_boxes(read_box_files(path), manifest.images["path"].to_pylist(), manifest.root)
    if matched.unmatched:
        log.warning(UNMATCHED, path, some(matched.unmatched))
    candidates = matched.candidates(len(manifest.images))
    return lambda job: candidates[job.rows.first_image : job.rows.last_image]


def _open_detector(
    run: Run, preparation: "Preparation", weights: Path | None
) -> "Callable[[Iterable[Request]], Iterator[Request]] | None":
    """Return a function that replaces the known boxes of requests by the boxes that a detector finds in the photos.

    A request has a photo and its known boxes. Return None if the run does not use a detector. `weights` is the path of
    the detector's weights if the user supplied them, and else None.
    """
    from pipeline.encoders import weights as states
    from pipeline.encoders.detectors import build_detector, detect
    from pipeline.foreign.files import read_weights

    settings = run.config.regions.detector
    if run.config.regions.proposals != "faster-rcnn":
        return None
    if weights is not None:
        data, _ = read_weights(weights, settings.sha256)
        source = str(settings.file)
        state = states.parse(data, source)
    else:
        state, source = states.fetch(settings.architecture, run.config.weights_root, "name it in regions.detector.file")
    network = build_detector(settings.architecture, state, source)
    device = run.device
    most = 1 if device.type == "cpu" else DETECTED_TOGETHER
    in_tf32 = device.type == "cuda" and run.config.extract.precision != "float32"

    def find(requests: "Iterable[Request]") -> "Iterator[Request]":
        requests, ahead = tee(requests)
        photographs = (request.photograph for request in ahead)
        pixels = shared_map(preparation.open, photographs, run.decoders, PHOTO_BYTES, chunk=1, preload=RESIZING)
        found = detect(network, pixels, device, settings.stage, most, in_tf32)
        return (request._replace(known=boxes) for request, boxes in zip(requests, found, strict=True))

    return find


def read_gold(run: Run, texts: Path | None = None) -> Gold:
    """Read labelled boxes, and the names of their labels.

    If `texts` is None, the boxes are read from the manifest, and the names from the file `phrases.names`. Otherwise,
    `texts` is a file of boxes with texts. The first text of a box is then its label, and the labels have no names.
    """
    if texts:
        by_box = read_region_texts(run, texts)
        images, corners = zip(*by_box, strict=True)
        return Gold(np.array(images), np.array(corners, np.float32), [first for first, *_ in by_box.values()], {})
    table = run.manifest.boxes
    labels = table["label"].to_pylist()
    corners = np.stack([table[name].to_numpy() for name in CORNERS], axis=1)
    labelled = [row for row, label in enumerate(labels) if label]
    names = [labels[row].lower() for row in labelled]
    return Gold(table["image_id"].to_numpy()[labelled], corners[labelled], names, read_label_names(run.config))


def read_region_texts(run: Run, path: Path) -> dict[tuple[int, Corners], list[str]]:
    """Read a file of boxes whose column `label` has texts. Return (image id, corners) of each box -> its texts.

    Boxes of images that are not in the run are ignored with a warning. Boxes without a text are left out. Raises
    InputError if no box of the run has a text.
    """
    texts: dict[tuple[int, Corners], list[str]] = {}
    manifest = run.manifest
    matched = match_boxes(read_box_files(path), manifest.images["path"].to_pylist(), manifest.root)
    if matched.unmatched:
        log.warning(UNMATCHED, path, some(matched.unmatched))
    for image, corners, box in zip(matched.images.tolist(), matched.corners.tolist(), matched.boxes, strict=True):
        if box.label.strip():
            texts.setdefault((image, tuple(corners)), []).append(box.label)
    if not texts:
        raise InputError(
            f"{path} has no text for any box of this run. Write a text for each box, in the column `label` of a table."
        )
    return texts


def read_label_names(config: "Config") -> dict[str, frozenset[str]]:
    """Read the file that the key `phrases.names` names, and return the names of each label of a box, in lower case.

    Return an empty mapping if this file does not exist. Raises InputError if the file cannot be read or has a faulty
    line.
    """
    path = Path(config.data_root) / (config.phrases.names or "")
    return read_names(path) if path.is_file() else {}


def read_regions(run: Run, encoders: Iterable[str], image_id: np.ndarray) -> "dict[str, SnippetRegions]":
    """Read the stored regions of the images with the ids `image_id` (n,), which must ascend.

    Return encoder -> the regions, with their features by this encoder. An image may have no regions.
    """
    from pipeline.generate.snippets import SnippetRegions

    regions = {}
    for name in encoders:
        stored = RegionRows(run.manifest, {name: run.layout.regions(name).folder}, image_id, complete=False)
        block = stored.packed(np.arange(len(image_id)))
        regions[name] = SnippetRegions(image_id, block.offsets, block.boxes, block.features)
    return regions


def read_boxes(
    run: Run, gold: Gold, encoders: Iterable[str], split: str, whole: bool
) -> tuple[dict[str, np.ndarray], list[ShownBox]]:
    """Read the features of the labelled boxes in `gold` that are in a split and are also stored regions.

    Return the features (k, dim) for each encoder, and a description of each of the k boxes for the results. If `whole`
    is true, the features are (k, 2 dim) and include the whole image, as in SnippetRegions. Labelled boxes of the split
    that are not stored regions are ignored with a warning. Raises InputError if the split has no labelled box, or if no
    labelled box of the split is a stored region.
    """
    from pipeline.generate.snippets import find_regions

    rows = np.flatnonzero(run.manifest.splits[gold.images] == split)
    if not len(rows):
        raise InputError(
            f"The {split} split has no labelled boxes. Add labelled boxes, or generate captions for whole images with"
            f" the subject {split}."
        )
    rows = rows[np.argsort(gold.images[rows], kind="stable")]
    images = gold.images[rows]
    corners = gold.boxes[rows]
    regions = read_regions(run, encoders, np.unique(images))
    region_rows = {name: find_regions(stored, images, corners) for name, stored in regions.items()}
    is_stored = np.all([rows_found >= 0 for rows_found in region_rows.values()], axis=0)
    if not is_stored.any():
        raise InputError(
            f"None of the labelled boxes of the {split} split is a stored region of {run.root}. Set regions.proposals"
            " to boxes, and extract the regions again with `jointspace run CONFIG`."
        )
    if not is_stored.all():
        log.warning(
            "%d of %d labelled boxes of the split %s are ignored, because these boxes are not stored regions. To use"
            " them, set regions.proposals to boxes and extract the regions again with `jointspace run CONFIG`.",
            (~is_stored).sum(),
            len(rows),
            split,
        )
    paths = run.manifest.images["path"].take(images[is_stored]).to_pylist()
    shown: list[ShownBox] = [
        {"image_id": int(images[at]), "image": path, "box": corners[at].tolist(), "label": str(gold.labels[rows[at]])}
        for at, path in zip(np.flatnonzero(is_stored), paths, strict=True)
    ]
    return {name: stored.take(region_rows[name][is_stored], whole) for name, stored in regions.items()}, shown


def read_naming_phrases(
    run: Run, boxes: Sequence[ShownBox], analyze: Callable[[str], list[str]]
) -> list[list[list[str]]]:
    """Return for each box the noun phrases that name the label of the box, from the captions of the box's image.

    A phrase is a list of words. `analyze` splits a caption into words. The list of a box is empty if no phrase names
    its label.
    """
    from pipeline.run.reading.texts import read_sentence_trees

    images = np.array([box["image_id"] for box in boxes])
    owners = run.manifest.sentence_images
    sentence_id = np.flatnonzero(np.isin(owners, images))
    trees = read_sentence_trees(run, analyze, sentence_id)
    spoken = [
        (phrase, owners[sentence])
        for sentence, parsed in zip(sentence_id, trees, strict=True)
        for phrase in list_noun_phrases(parsed.tree)
    ]
    texts = [phrase.text.lower() for phrase, _ in spoken]
    heads = [phrase.head.lower() for phrase, _ in spoken]
    phrase_images = np.array([image for _, image in spoken], np.int64)
    labels = [box["label"] for box in boxes]
    phrases: list[list[list[str]]] = [[] for _ in boxes]
    pairs = named_boxes(texts, heads, phrase_images, labels, images, read_label_names(run.config))
    for phrase, box in pairs.tolist():
        phrases[box].append(spoken[phrase][0].text.split(" "))
    return phrases
