"""`extract`, `fit-map`, `map-features`: image features from photos, or mapped from the features of another encoder.

A run uses mapped features until `extract` has encoded all photos. The map is fitted on a sample of photos that both
encoders have encoded.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from pipeline.run import Job, ShardJob, StageRun, stage

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config


def _extracted(config: "Config", encoders: "Iterable[EncoderEntry]") -> list[tuple[str]]:
    """Return (name,) for each of the `encoders` that reads pixels, except for encoders whose features are computed
    from the features of another encoder by a linear map (key `extract.mapped`)."""
    return [(one.name,) for one in encoders if one.spec.reads == "pixels" and one.name not in config.extract.mapped]


@stage(
    version=7,
    gpu=True,
    decodes=True,
    threads=16,
    memory=4000,
    choices=lambda config: _extracted(config, config.every_encoder),
    wanted=lambda config: _extracted(config, config.encoders),
    keys=lambda config, encoder: config.extract.decisive(),
    reads=lambda config, layout, encoder: {"encoders": {encoder: layout.encoder(encoder)}},
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def extract(run: StageRun, jobs: Iterator[ShardJob], *encoders: str) -> Iterator[int]:
    """Extract image features from photos, with one encoder or with every encoder of the run.

    Each photo is decoded once for all encoders.
    If the job is killed, run it again: it continues at the last checkpoint.
    """
    from pipeline.compute.workers import behind
    from pipeline.images.preprocess import Photograph
    from pipeline.run.reading.photos import FeatureExtraction, missing_parts
    from pipeline.storage.features import UnfinishedShard

    extraction = FeatureExtraction(run, encoders)

    def list_parts() -> Iterator:
        for number, jobs_of_shard in groupby(jobs, key=attrgetter("number")):
            photographs = [Photograph.from_row(row) for row in run.manifest.table("images", number).to_pylist()]
            shards = {
                job.names[0]: UnfinishedShard(
                    job.path, job.provenance, job.image_id, run.config.extract.checkpoint_images
                )
                for job in jobs_of_shard
            }
            yield from missing_parts(number, shards, photographs)

    return behind(extraction.write, extraction.extract_parts(list_parts()))


@stage(
    version=1,
    gpu=True,
    choices=lambda config: [(name,) for name in config.extract.mapped],
    keys=lambda config, encoder: {
        **config.extract.decisive(), "images": config.extract.mapping_images, "seed": config.seed
    },
    threads=16,
    memory=4000,
    reads=lambda config, layout, encoder: {
        "manifest": layout.manifest,
        "encoder": layout.encoder(encoder),
        "features": layout.features(config.extract.mapped[encoder]),
    },
    writes=lambda layout, encoder: layout.feature_map(encoder),
)  # fmt: skip
def fit_map(run: StageRun, job: Job, encoder: str) -> None:
    """Fit a linear map from the features of an earlier encoder to the features of ENCODER, on a sample of photos.

    `extract.mapped` names the earlier encoder of each ENCODER. ENCODER encodes `extract.mapping_images` photos of the
    run, drawn at random.
    """
    import numpy as np

    from pipeline.compute.precision import to_float32
    from pipeline.encoders.extraction import extract_in_step
    from pipeline.images.preprocess import Photograph
    from pipeline.models.linear.ridge import fit_encoder_map
    from pipeline.run.reading.photos import open_encoder, photograph_reader
    from pipeline.storage.features import FeatureRows
    from pipeline.storage.parameters import FEATURE_MAP, write_parameters

    settings = run.config.extract
    manifest = run.manifest
    opened = open_encoder(run, encoder)
    count = min(settings.mapping_images, manifest.n_images)
    image_id = np.sort(np.random.default_rng(run.config.seed).choice(manifest.n_images, count, replace=False))
    photographs = [Photograph.from_row(row) for row in manifest.pick(image_id)]
    pictures = photograph_reader(run).views(photographs, [opened.view])
    ((vectors,),) = extract_in_step(pictures, [opened.extractor], [count])
    old = settings.mapped[encoder]
    features = to_float32(FeatureRows(run.features, old, image_id)[np.arange(count)])
    fitted = fit_encoder_map(features, vectors, run.config.seed)
    tensors = {name: getattr(fitted, name) for name in ("weight", "mean_x", "mean_y")}
    tensors |= {"image_id": image_id, "vectors": vectors}
    details = {"from": old, "images": count, "ridge": fitted.ridge, "loss": fitted.loss, "encoder": opened.details}
    write_parameters(
        job.path, FEATURE_MAP, tensors, settings={"roots": fitted.roots}, provenance=job.provenance, details=details
    )
    logging.getLogger(__name__).info(
        "The map from %s to %s, fitted on %d photos, leaves %.0f %% of the variance unexplained",
        old,
        encoder,
        count,
        100 * fitted.loss,
    )


@stage(
    version=1,
    choices=lambda config: [(name,) for name in config.extract.mapped],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    threads=8,
    reads=lambda config, layout, encoder: {
        "encoder": layout.encoder(encoder),
        "map": layout.feature_map(encoder),
        "features": layout.features(config.extract.mapped[encoder]),
    },
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def map_features(run: StageRun, jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Map the features of an earlier encoder to the features of ENCODER, without encoding the photos.

    Shards that `extract` has finished for ENCODER are skipped. The photos of the sample of `fit-map` get the features
    that ENCODER extracted from them.
    """
    import numpy as np

    from pipeline.compute.precision import to_float32
    from pipeline.models.linear.ridge import EncoderMap
    from pipeline.run.jobs import Jobs
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.parameters import FEATURE_MAP, read_parameters

    fitted = read_parameters(run.inputs.artefact("map").path, FEATURE_MAP)
    arrays = fitted.tensors
    about = fitted.details
    sampled = arrays["image_id"]
    mapping = EncoderMap(
        arrays["weight"], arrays["mean_x"], arrays["mean_y"], fitted.settings["roots"], about["ridge"], about["loss"]
    )
    origin = run.inputs.artefact("encoder").name
    extracted = Jobs(run)
    for job in jobs:
        if not extracted.is_done(extracted.shard_job(extract, (encoder,), job.number)):
            features = mapping(to_float32(run.features.open(about["from"], job.number)["features"]))
            here = np.flatnonzero(np.isin(job.image_id, sampled))
            features[here] = arrays["vectors"][np.isin(sampled, job.image_id)]
            mapped = {key: about[key] for key in ("from", "images", "loss")}
            details = {
                "encoder": about["encoder"],
                "origin": {"encoder": job.digests[origin]},
                "mapped": {**mapped, "but_for": here.tolist()},
            }
            names = [f"image {image_id}" for image_id in job.image_id]
            rows = to_stored(features, run.config.extract.storage, names)
            write_features(job.path, rows, job.image_id, job.provenance, details)
        yield job.number
