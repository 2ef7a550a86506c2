"""`finetune`: an image encoder of the configuration, trained on the labelled boxes of the run's own images."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run import Inputs, Job, Outside, Run, Stage

if TYPE_CHECKING:
    from pipeline.config.images import Encoder, FinetuneSettings
    from pipeline.images.finetune import Finetuning, Precision
    from pipeline.images.networks import NetworkEncoder
    from pipeline.images.preparation import LabelledImage, RegionSampler
    from pipeline.images.region_features import Classifier
    from pipeline.storage.manifest import Manifest

log = logging.getLogger(__name__)

SUPPRESSION_IOU = 0.3
"""Of two detections of a class that overlap more, the weaker is left out (Girshick et al. 2014)."""
RECENT = 50
"""Iterations over which the loss that is reported is averaged."""
CLIP = 100
"""Greatest norm of the gradient."""
JUDGED = 50
"""The first so many dev images that have boxes are those whose mean average precision is measured."""
CANDIDATES = 300
"""The most places in an image where objects are sought."""
WINDOWS = (0.5, 0.35, 0.25, 0.18), (1, 0.5)
"""Scales and aspects of the windows of proposals `grid`, which are smaller than those of regions."""


def finetune(run: Run, job: Job, encoder: str) -> None:
    """Finetune an encoder's network to classify labelled boxes. Resumable."""
    from tqdm import tqdm

    from pipeline.images.finetune import DescentSchedule, Finetuning
    from pipeline.images.preparation import batch_samples, schedule_images
    from pipeline.precision import choose_precision
    from pipeline.storage.parameters import Checkpoints, digest_tensors
    from pipeline.workers import isolated_map
    from stages.photographs import prepare_start

    settings, manifest = run.config, run.manifest
    chosen, tuning = settings.encoder(encoder), settings.finetune
    labels, training, held_out = _labelled(manifest, tuning)
    start = prepare_start(run, chosen, tuning)
    made_of = {"start": digest_tensors(start.tensors())}

    pretrained = tuning.start != "untrained"
    body_rate = tuning.body_rate if pretrained else 1
    schedule = DescentSchedule(tuning.iterations, tuning.learning_rate, body_rate, CLIP)
    precision = choose_precision(tuning.precision, run.device)
    task = Finetuning(start, len(labels), schedule, run.device, precision, settings.seed, pretrained)
    checkpoints, losses = Checkpoints(job.path / "checkpoints", job.fingerprint, tuning.checkpoint_seconds), []
    if (before := checkpoints.latest()) is not None:
        losses = list(before.settings["losses"])
        task.restore(before.tensors, len(losses))
        log.info("resumed after iteration %d", len(losses))
    sampler = _sampler(run, chosen)
    order = schedule_images(len(training), tuning.images, tuning.iterations, settings.seed)
    items = ((number, training[order[number]]) for number in range(len(losses) * tuning.images, len(order)))
    batches = batch_samples(isolated_map(sampler, items, run.decoders), tuning.images)
    for loss in tqdm(task.learn(batches), "finetune", tuning.iterations, initial=len(losses), disable=None):
        losses.append(loss)
        checkpoints.offer(lambda: (task.tensors(), {"losses": losses}))

    found = _judge(run, sampler, task, held_out)
    recent = losses[-RECENT:]
    log.info("loss %.3f, mean average precision %.3f", sum(recent) / len(recent), found.mean)
    origin = {"origin": "finetuned", "start": start.weights["origin"], "images": len(training)}
    details = {"name": encoder, "dim": task.dim, "labels": labels, "losses": losses, **found.to_dict(labels)}
    _publish(job, task.encoder(origin), task.classifier(), {**details, "made_of": made_of})
    checkpoints.clear()


def _labelled(
    manifest: "Manifest", tuning: "FinetuneSettings"
) -> "tuple[list[str], list[LabelledImage], list[LabelledImage]]":
    """The labels of the training splits' boxes, those splits' images that have any, and the held-out ones."""
    import numpy as np

    from pipeline.errors import UsageError
    from pipeline.images.preparation import LabelledImage
    from pipeline.images.preprocess import Photograph

    table, splits = manifest.boxes, manifest.splits
    owners = table["image_id"].to_numpy()
    corners = np.stack([table[side].to_numpy() for side in ("x1", "y1", "x2", "y2")], axis=1)
    names = np.asarray([label or "" for label in table["label"].to_pylist()], dtype=object)
    learned = np.isin(splits[owners].astype(str), tuning.splits) & (names != "")
    labels = sorted(set(names[learned]))
    if not labels:
        raise UsageError(f"no image of the splits {', '.join(tuning.splits)} has a labelled box: see finetune.splits")
    numbers = {label: number for number, label in enumerate(labels, start=1)}
    classes = np.array([numbers.get(name, 0) for name in names], np.int64)

    def images(wanted: np.ndarray) -> "list[LabelledImage]":
        rows = np.flatnonzero(wanted)
        photographs = map(Photograph.from_row, manifest.pick(np.unique(owners[rows])))
        parts = np.split(rows, np.flatnonzero(np.diff(owners[rows])) + 1)  # a manifest has its boxes image by image
        return [LabelledImage(p, corners[part], classes[part]) for p, part in zip(photographs, parts, strict=False)]

    held_out = images((splits[owners] == "dev") & (classes > 0))
    return labels, images(learned), held_out[:JUDGED]


def _sampler(run: Run, chosen: "Encoder") -> "RegionSampler":
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preparation import Crops, Proportions, RegionSampler

    tuning, limits = run.config.finetune, ImageLimits.from_settings(run.config.collection)
    crops = Crops(tuning.side, tuning.context, chosen.mean)
    return RegionSampler(run.images.read, limits, crops, Proportions(), run.config.seed)


def _judge(run: Run, sampler: "RegionSampler", task: "Finetuning", images: "list[LabelledImage]") -> "Precision":
    """Average precision of what the network finds in held-out images."""
    from pipeline.images.boxes import LEAST_SCORE, LEAST_SIDE, NONE, Selection, WindowGrid, proposer
    from pipeline.images.extraction import ExtractionPlan
    from pipeline.images.finetune import judge_regions
    from pipeline.images.preparation import Cutting, Preparation, Request
    from pipeline.images.regions import RegionExtractor, describe
    from pipeline.workers import isolated_map

    settings, tuning = run.config, run.config.finetune
    grid = WindowGrid(*WINDOWS)
    propose = proposer(tuning.proposals, grid)
    selection = Selection(LEAST_SCORE, LEAST_SIDE, settings.regions.iou, CANDIDATES, False, grid)
    preparation = Preparation(sampler.read, sampler.limits, Cutting(propose, selection, sampler.crops))
    requests = [Request(image.photograph, NONE) for image in images]
    prepared = isolated_map(preparation, requests, run.decoders)
    plan = ExtractionPlan(task.device, task.dtype, run.batch_size)
    extractor = RegionExtractor(task.encoder({}), plan, sampler.crops)
    described = describe(prepared, extractor, None, selection.iou, selection.count)
    return judge_regions(described, task.classifier(), images, SUPPRESSION_IOU)


def _publish(job: Job, encoder: "NetworkEncoder", classifier: "Classifier", details: dict) -> None:
    """The encoder as `prepare-encoder` leaves it, together with the classifier beside it, which is of this encoder."""
    from dataclasses import replace

    from pipeline.storage.batch import FileBatch
    from pipeline.storage.features import CLASSIFIER
    from pipeline.storage.parameters import ENCODER, write_parameters

    batch, provenance, (encoder_of, classifier_of) = FileBatch(), job.provenance, job.outputs
    parts, tensors, path = encoder.settings(), encoder.tensors(), encoder_of.path / "model.safetensors"
    commit = write_parameters(
        path, ENCODER, tensors, settings=parts, provenance=provenance, details=details, batch=batch
    )
    judge, settings = {"weight": classifier.weight, "bias": classifier.bias}, {"labels": details["labels"]}
    of = replace(provenance, inputs={**provenance.inputs, commit.place: commit.digest})
    write_parameters(classifier_of.path, CLASSIFIER, judge, settings=settings, provenance=of, batch=batch)
    batch.publish()


def _keys(config, encoder: str) -> dict:
    tuning = config.finetune.model_dump(exclude={"checkpoint_seconds"})
    judged = config.regions.model_dump(include={"iou"})
    chosen = config.encoder(encoder).decisive()
    return {"seed": config.seed, "finetune": tuning, "encoder": chosen, "judged": judged}


def _reads(config, layout, encoder: str) -> Inputs:
    start = config.finetune
    weights = {"weights": Outside(Path(config.weights_root) / start.file)} if start.start == "file" else {}
    return {"manifest": layout.manifest, **weights}


STAGE = Stage(
    finetune,
    version=7,
    gpu=True,
    names=("encoder",),
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.weights == "finetuned"],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: (layout.encoder(encoder), layout.classifier(encoder)),
)
