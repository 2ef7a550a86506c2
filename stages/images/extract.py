"""`extract`: features of images."""

from collections.abc import Callable

from pipeline.plan.needs import MB, TORCH, Need, encoder_gpu, per_shard, rows_mb
from pipeline.run import Job, Run, Stage


def extract(run: Run, encoder: str) -> Callable[[Job], None]:
    """Extract the features of images; a killed run is resumed."""
    import logging
    from itertools import islice

    import numpy as np
    from tqdm import tqdm

    from pipeline.images.decode import ImageLimits
    from pipeline.images.extraction import Stopwatch
    from pipeline.images.preprocess import Photograph, load_all
    from pipeline.specs.stored import restore_encoder
    from pipeline.storage.features import UnfinishedShard, to_stored

    chosen, manifest = run.config.extract, run.manifest
    parameters = run.encoder(encoder)
    network = restore_encoder(parameters.settings, parameters.tensors)
    work = network.work(run.config.device, chosen.precision, run.batch_size, chosen.engine, run.images_per_job)
    if chosen.batch_size is None:
        work.extractor.grow(network.preprocessing.side)
    limits, read = ImageLimits.from_settings(run.config.collection), run.images.read
    described = {"name": encoder, "sha256": parameters.sha256, **parameters.settings, **work.extractor.plan.described}

    def make(job: Job) -> None:
        photographs = [Photograph.from_row(row) for row in manifest.table("images", job.number).to_pylist()]
        unfinished = UnfinishedShard(job.path, job.fingerprint, job.image_id, chosen.checkpoint_images)
        missing, stopwatch = unfinished.missing(), Stopwatch()
        todo = [photographs[row] for part in missing for row in part]
        pictures = load_all(todo, read, limits, network.preprocessing, run.decoders, work.describe)
        pictures = stopwatch.iterate("decode", tqdm(pictures, "extract", len(todo), unit=" images", disable=None))
        for part in missing:
            features = np.concatenate(list(work.extractor(islice(pictures, len(part)))))
            with stopwatch.measure("write"):
                stored = to_stored(features, chosen.storage, [photographs[row].name for row in part])
                unfinished.write(part, stored)
        unfinished.publish({"encoder": described, "inputs": job.inputs, "batch_size": work.extractor.plan.batch_size})
        logging.getLogger(__name__).info("shard %d: %s", job.number, stopwatch.describe(len(todo)))

    return make


STAGE = Stage(
    extract,
    version=4,
    needs=Need(
        lambda s: TORCH + 2500 + rows_mb(s) + 8 * s.shard_images * s.widest / MB,
        lambda s: 4 * s.shard_images * s.widest / MB,
        per_shard(2),
        "images over the encoder's rate",
        encoder_gpu,
    ),
    names=("encoder",),
    sharded=True,
    threads=16,
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.spec.reads == "pixels"],
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: {"encoder": layout.encoder(encoder)},
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
