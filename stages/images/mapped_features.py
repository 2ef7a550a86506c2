"""`fit-map`, `map-features`: features mapped from another encoder's, until `extract` makes them, by a map fitted
on photographs that both have seen."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Job, ShardJob, stage

if TYPE_CHECKING:
    from pipeline.run.jobs import StageRun


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
def fit_map(run: "StageRun", job: Job, encoder: str) -> None:
    """Fit a map from another encoder's features to those of ENCODER, on a sample of photos."""
    import numpy as np

    from pipeline.compute.precision import to_float32
    from pipeline.encoders.extraction import extract_in_step
    from pipeline.images.preprocess import Photograph
    from pipeline.models.linear.ridge import fit_encoder_map
    from pipeline.run.reading.photos import open_encoder, photograph_reader
    from pipeline.storage.features import FeatureRows
    from pipeline.storage.parameters import FEATURE_MAP, write_parameters

    settings, manifest = run.config.extract, run.manifest
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
        "%s to %s: %.0f %% of the variance is left unexplained, by %d photos", old, encoder, 100 * fitted.loss, count
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
def map_features(run: "StageRun", jobs: Iterator[ShardJob], encoder: str) -> Iterator[int]:
    """Map another encoder's features to those of ENCODER, except in shards that `extract` has made."""
    import numpy as np

    from pipeline.compute.precision import to_float32
    from pipeline.models.linear.ridge import EncoderMap
    from pipeline.run.jobs import Jobs
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.parameters import FEATURE_MAP, read_parameters
    from stages.catalogue import declared

    fitted = read_parameters(run.inputs.artefact("map").path, FEATURE_MAP)
    arrays, about = fitted.tensors, fitted.details
    sampled = arrays["image_id"]
    mapping = EncoderMap(
        arrays["weight"], arrays["mean_x"], arrays["mean_y"], fitted.settings["roots"], about["ridge"], about["loss"]
    )
    origin = run.inputs.artefact("encoder").name
    extract, extracted = declared()["extract"], Jobs(run)
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
