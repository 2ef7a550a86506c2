"""`tune`: a network trained on the images and sentences of the run, as an image encoder."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Outside, Run, Stage

if TYPE_CHECKING:
    from pipeline.images.networks import NetworkEncoder
    from pipeline.images.pair_tuning import PairTuning

log = logging.getLogger(__name__)
RECENT = 20
"""Losses whose mean is reported at the end."""


def tune(run: Run, job: Job, encoder: str) -> None:
    """Train the last layers of a network on the train split's images with sentences; a killed training goes on."""
    from tqdm import tqdm

    from pipeline.images.descent import DescentSchedule
    from pipeline.images.pair_tuning import PairTuning
    from pipeline.precision import choose_precision
    from pipeline.storage.checkpoints import Checkpoints
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parameters import ENCODER, digest_tensors, write_parameters
    from stages.inputs import prepare_start, read_token_vocabulary

    settings, manifest = run.config, run.manifest
    chosen, tuning = settings.encoder(encoder), settings.tune
    start = prepare_start(run, chosen, tuning)
    vocabulary, _ = read_token_vocabulary(run)
    pairs = run.pairs("train")
    batch = min(tuning.images, len(pairs.image_id))
    steps = tuning.epochs * max(1, round(len(pairs.image_id) / batch))
    task = PairTuning(
        start, len(vocabulary.terms) + 1, tuning.dimensions,
        DescentSchedule(steps, tuning.learning_rate, tuning.body_rate, tuning.clip), run.device,
        choose_precision(tuning.precision, run.device), settings.seed, tuning.loss, tuning.temperature, tuning.margin,
        tuning.unfreeze, tuning.images_at_once, tuning.weight_decay, frozen_norms=tuning.start != "untrained",
    )  # fmt: skip
    checkpoints, losses = Checkpoints(job.path / "checkpoints", job.fingerprint, tuning.checkpoint_seconds), []
    if (before := checkpoints.latest()) is not None:
        losses = list(before.settings["losses"])
        task.restore(before.tensors, len(losses))
        log.info("resumed after iteration %d", len(losses))
    batches = _batches(run, start, pairs, batch, steps, len(losses))
    for loss in tqdm(task.learn(batches), "tune", steps, initial=len(losses), disable=None):
        losses.append(loss)
        checkpoints.offer(lambda: (task.tensors(), {"losses": losses}))
    judged, recent = _judge(run, task, start), losses[-RECENT:]
    log.info("loss %.3f, recall sum on dev %s", sum(recent) / len(recent), judged)
    made = task.encoder({"origin": "tuned", "start": start.weights["origin"], "images": len(pairs.image_id)})
    parts, tensors = made.settings(), made.tensors()
    digest = fingerprint("encoder", 1, parts, {"tensors": digest_tensors(tensors)})
    made_of = {"manifest": manifest.fingerprint, "start": digest_tensors(start.tensors())}
    details = {"name": encoder, "dim": task.dim, "losses": losses, "dev_recall_sum": judged, "made_of": made_of}
    path = job.path / "model.safetensors"
    write_parameters(path, ENCODER, tensors, settings=parts, fingerprint=digest, details=details)
    checkpoints.clear()


def _batches(run: Run, start: "NetworkEncoder", pairs: Any, size: int, steps: int, done: int) -> Any:
    """The batches from number `done` on: in each epoch every image once, in another order, with one sentence."""
    import numpy as np

    from pipeline.images.decode import ImageLimits
    from pipeline.images.pair_tuning import CropSampler, Pair, batch_pairs
    from pipeline.images.preprocess import Photograph
    from pipeline.images.sampling import schedule_images
    from pipeline.text.sequences import encode_tokens
    from pipeline.workers import isolated_map
    from stages.inputs import read_token_vocabulary

    tuning, manifest = run.config.tune, run.manifest
    photographs = [Photograph.from_row(row) for row in manifest.pick(pairs.image_id)]
    texts = manifest.sentences["text"].take(pairs.sentence_id).to_pylist()
    words = list(encode_tokens(texts, read_token_vocabulary(run)[0]))
    first = np.searchsorted(pairs.owners, np.arange(len(photographs) + 1))
    order = schedule_images(len(photographs), size, steps, run.config.seed)
    drawn = np.random.default_rng([run.config.seed, 1]).random(len(order))
    sentence = first[order] + (drawn * np.diff(first)[order]).astype(int)
    sampler = CropSampler(
        run.images.read, ImageLimits.from_settings(run.config.collection), start.preprocessing, tuning.crop_area,
        run.config.seed,
    )  # fmt: skip
    items = (
        (number, Pair(photographs[order[number]], int(order[number]), words[sentence[number]]))
        for number in range(done * size, len(order))
    )
    return batch_pairs(isolated_map(sampler, items, run.decoders), size)


def _judge(run: Run, task: "PairTuning", start: "NetworkEncoder") -> float | None:
    """The sum of recalls on dev of the network with its own towers; None where dev has no sentences."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, load_all
    from pipeline.metrics.ranks import count_ranks
    from pipeline.metrics.retrieval import recall_sum
    from pipeline.text.sequences import encode_tokens
    from stages.inputs import read_token_vocabulary

    try:
        pairs = run.pairs("dev").first(run.config.fit.dev_images)
    except InputError:
        return None
    manifest, limits = run.manifest, ImageLimits.from_settings(run.config.collection)
    photographs = [Photograph.from_row(row) for row in manifest.pick(pairs.image_id)]
    pixels = load_all(photographs, run.images.read, limits, start.preprocessing, run.decoders)
    texts = manifest.sentences["text"].take(pairs.sentence_id).to_pylist()
    tokens = encode_tokens(texts, read_token_vocabulary(run)[0])

    def blocks() -> "Any":
        block: list[np.ndarray] = []
        for one in pixels:
            block.append(one)
            if len(block) == run.batch_size:
                yield np.stack(block)
                block = []
        if block:
            yield np.stack(block)

    images, sentences = task.judged_vectors(blocks(), tokens.ids.astype(np.int64), tokens.offsets[:-1])
    return round(recall_sum(count_ranks(images, sentences, pairs.owners, "inner_product")), 1)


def _keys(config, encoder: str) -> dict:
    tuning = config.tune.model_dump(exclude={"checkpoint_seconds", "images_at_once"})
    tuning["dev_images"] = config.fit.dev_images
    return {"seed": config.seed, "tune": tuning, "encoder": config.encoder(encoder).decisive()}


def _reads(config, layout, encoder: str) -> Inputs:
    start = config.tune
    weights = {"weights": Outside(Path(config.weights_root) / start.file)} if start.start == "file" else {}
    return {"manifest": layout.manifest, "vocabulary": layout.token_vocabulary, **weights}


STAGE = Stage(
    tune,
    version=1,
    memory=6000,
    gpu=True,
    names=("encoder",),
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.weights == "tuned"],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.encoder(encoder),
    threads=16,
)
