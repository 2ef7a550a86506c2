"""`map-features`: features that are mapped from another encoder's, until `extract` makes them."""

from collections.abc import Callable

from pipeline.run import Job, Run, stage


@stage(
    version=1,
    choices=lambda config: [(name,) for name in config.extract.mapped],
    keys=lambda config, encoder: {"storage": config.extract.storage},
    reads=lambda config, layout, encoder: [
        layout.encoder(encoder),
        layout.feature_map(encoder),
        layout.features(config.extract.mapped[encoder]),
    ],
    columns=("images",),
    writes=lambda layout, encoder: layout.features(encoder),
)
def map_features(run: Run, encoder: str) -> Callable[[Job], None]:
    """Map another encoder's features to those of ENCODER, except in shards that `extract` has made."""
    import numpy as np

    from pipeline.models.linear.encoder_map import EncoderMap
    from pipeline.precision import to_float32
    from pipeline.storage.features import to_stored, write_features
    from pipeline.storage.parameters import FEATURE_MAP, read_parameters
    from stages.catalogue import declared

    stored = read_parameters(run.layout.feature_map(encoder).path, FEATURE_MAP)
    arrays, about = stored.tensors, stored.details
    sampled, weights = arrays["image_id"], (arrays[name] for name in ("weight", "mean_x", "mean_y"))
    mapping = EncoderMap(*weights, stored.settings["roots"], about["ridge"], about["loss"])

    extract = declared()["extract"]

    def make(job: Job) -> None:
        if run.is_done(run.job(extract, (encoder,), job.number)):
            return
        features = mapping(to_float32(run.features.open(about["from"], job.number)["features"]))
        here = np.flatnonzero(np.isin(job.image_id, sampled))
        features[here] = arrays["vectors"][np.isin(sampled, job.image_id)]
        names = [f"image {image_id}" for image_id in job.image_id]
        mapped = {key: about[key] for key in ("from", "images", "loss")}
        details = {
            "encoder": about["encoder"],
            "origin": {"encoder": job.inputs[run.layout.encoder(encoder).name]},
            "mapped": {**mapped, "but_for": here.tolist()},
        }
        stored = to_stored(features, run.config.extract.storage, names)
        write_features(job.path, stored, job.image_id, job.provenance, details)

    return make
