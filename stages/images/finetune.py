"""`finetune`: trains the network of an image encoder on the labelled boxes of the run's images."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import UsageError
from pipeline.run import Inputs, Job, Layout, Outside, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.images import FinetuneSettings
    from pipeline.config.names import Config
    from pipeline.encoders.preparation import LabelledImage
    from pipeline.storage.manifest import Manifest

log = logging.getLogger(__name__)

REPORTED_ITERATIONS = 50
"""Number of the last iterations whose mean loss is logged at the end."""
MAX_GRADIENT_NORM = 100
"""Maximum Euclidean norm of the gradient of all parameters together. A gradient with a greater norm is scaled to this
norm."""


def _keys(config: "Config", encoder: str) -> dict[str, object]:
    tuning = config.finetune.model_dump(exclude={"checkpoint_seconds"})
    chosen = config.encoder(encoder).decisive()
    return {"seed": config.seed, "finetune": tuning, "encoder": chosen}


def _reads(config: "Config", layout: Layout, encoder: str) -> Inputs:
    file = config.finetune.file
    weights = Outside("weights", Path(config.weights_root) / file) if file is not None else None
    return {"manifest": layout.manifest, "weights": weights}


@stage(
    version=11,
    gpu=True,
    threads=8,
    memory=4000,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.finetuned],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.encoder(encoder),
)
def finetune(run: StageRun, job: Job, encoder: str) -> None:
    """Finetune the network of an image encoder to classify the labelled boxes of the images in `finetune.splits`.

    If the job is killed, run it again: it continues at the last checkpoint.
    """
    from tqdm import tqdm

    from pipeline.compute.precision import choose_precision
    from pipeline.compute.workers import isolated_map
    from pipeline.encoders.finetune import DescentSchedule, Finetuning
    from pipeline.encoders.preparation import Crops, RegionSampler, batch_samples, schedule_images
    from pipeline.images.preprocess import RESIZING
    from pipeline.run.reading.encoders import prepare_start
    from pipeline.run.reading.photos import photograph_reader
    from pipeline.storage.parameters import ENCODER, Checkpoints, digest_tensors, write_parameters

    settings = run.config
    manifest = run.manifest
    chosen = settings.encoder(encoder)
    tuning = settings.finetune
    labels, training = _labelled(manifest, tuning)
    start = prepare_start(run, chosen, tuning)

    pretrained = tuning.start != "untrained"
    body_rate = tuning.body_rate if pretrained else 1
    schedule = DescentSchedule(tuning.iterations, tuning.learning_rate, body_rate, MAX_GRADIENT_NORM)
    precision = choose_precision(tuning.precision, run.device)
    task = Finetuning(start, len(labels), schedule, run.device, precision, settings.seed, pretrained)
    checkpoints = Checkpoints(job.path / "checkpoints", job.provenance.fingerprint, tuning.checkpoint_seconds)
    losses = []
    if (before := checkpoints.latest()) is not None:
        losses = list(before.settings["losses"])
        task.restore(before.tensors, len(losses))
        log.info("The finetuning is resumed after iteration %d", len(losses))
    crops = Crops(tuning.side, tuning.context, start.spec.preprocessing.mean)
    sampler = RegionSampler(photograph_reader(run), crops, settings.seed)
    order = schedule_images(len(training), tuning.images, tuning.iterations, settings.seed)
    items = ((number, training[order[number]]) for number in range(len(losses) * tuning.images, len(order)))
    batches = batch_samples(isolated_map(sampler, items, run.decoders, preload=RESIZING), tuning.images)
    for loss in tqdm(task.learn(batches), "finetune", tuning.iterations, initial=len(losses), disable=None):
        losses.append(loss)
        checkpoints.offer(lambda: (task.tensors(), {"losses": losses}))

    recent = losses[-REPORTED_ITERATIONS:]
    log.info("The mean loss of the last %d iterations is %.3f", len(recent), sum(recent) / len(recent))
    learned = task.encoder({"origin": "finetuned", "start": start.weights["origin"], "images": len(training)})
    made_of = {"start": digest_tensors(start.tensors())}
    details = {"name": encoder, "dim": task.dim, "labels": labels, "losses": losses, "made_of": made_of}
    path = job.path / "model.safetensors"
    tensors = {**learned.tensors(), **task.classifier()}
    write_parameters(path, ENCODER, tensors, settings=learned.settings(), provenance=job.provenance, details=details)
    checkpoints.clear()


def _labelled(manifest: "Manifest", tuning: "FinetuneSettings") -> "tuple[list[str], list[LabelledImage]]":
    """Return the sorted labels of the boxes in the splits of `finetune.splits`, and the images with such boxes.

    Each image comes with its labelled boxes and their classes. A class is the number of a label, counted from 1.
    Raises UsageError if these splits have no labelled box.
    """
    import numpy as np

    from pipeline.encoders.preparation import LabelledImage
    from pipeline.images.preprocess import Photograph

    table = manifest.boxes
    splits = manifest.splits
    owners = table["image_id"].to_numpy()
    corners = np.stack([table[side].to_numpy() for side in ("x1", "y1", "x2", "y2")], axis=1)
    names = np.asarray([label or "" for label in table["label"].to_pylist()], dtype=object)
    learned = np.isin(splits[owners].astype(str), tuning.splits) & (names != "")
    labels = sorted(set(names[learned]))
    if not labels:
        raise UsageError(
            f"No image of the splits {', '.join(tuning.splits)} has a labelled box. Name other splits in"
            " finetune.splits, or add labelled boxes to the collection."
        )
    classes = {label: number for number, label in enumerate(labels, start=1)}
    rows = np.flatnonzero(learned)  # The boxes of a manifest are ordered by image.
    photographs = map(Photograph.from_row, manifest.pick(np.unique(owners[rows])))
    images = [
        LabelledImage(photograph, corners[boxes], np.array([classes[name] for name in names[boxes]], np.int64))
        for photograph, boxes in zip(
            photographs, np.split(rows, np.flatnonzero(np.diff(owners[rows])) + 1), strict=True
        )
    ]
    return labels, images
