"""`fit-map`: a map between two encoders, from a sample of photographs that both have seen."""

from pipeline.run import Job, Run, stage


@stage(
    version=1,
    gpu=True,
    choices=lambda config: [(name,) for name in config.extract.mapped],
    keys=lambda config, encoder: {
        **config.extract.decisive(), "images": config.extract.mapping_images, "seed": config.seed
    },
    reads=lambda config, layout, encoder: [
        layout.manifest,
        layout.encoder(encoder),
        layout.features(config.extract.mapped[encoder]),
    ],
    writes=lambda layout, encoder: layout.feature_map(encoder),
)  # fmt: skip
def fit_map(run: Run, job: Job, encoder: str) -> None:
    """Fit a map from another encoder's features to those of ENCODER, on a sample of photos."""
    import logging

    import numpy as np

    from pipeline.images.extraction import extract_in_step
    from pipeline.images.preprocess import Photograph
    from pipeline.models.linear.encoder_map import fit_encoder_map
    from pipeline.precision import to_float32
    from pipeline.storage.features import FeatureRows
    from pipeline.storage.parameters import FEATURE_MAP, write_parameters
    from stages.photographs import open_encoder, photograph_reader

    settings, manifest = run.config.extract, run.manifest
    extractor, described = open_encoder(run, encoder)
    count = min(settings.mapping_images, manifest.n_images)
    image_id = np.sort(np.random.default_rng(run.config.seed).choice(manifest.n_images, count, replace=False))
    photographs = [Photograph.from_row(row) for row in manifest.pick(image_id)]
    pictures = photograph_reader(run).views(photographs, [extractor.view])
    ((vectors,),) = extract_in_step(pictures, [extractor], [count])
    old = settings.mapped[encoder]
    features = to_float32(FeatureRows(run.features, old, image_id)[np.arange(count)])
    fitted = fit_encoder_map(features, vectors, run.config.seed)
    tensors = {name: getattr(fitted, name) for name in ("weight", "mean_x", "mean_y")}
    tensors |= {"image_id": image_id, "vectors": vectors}
    details = {"from": old, "images": count, "ridge": fitted.ridge, "loss": fitted.loss, "encoder": described}
    write_parameters(
        job.path, FEATURE_MAP, tensors, settings={"roots": fitted.roots}, provenance=job.provenance, details=details
    )
    logging.getLogger(__name__).info(
        "%s to %s: %.0f %% of the variance is left unexplained, by %d photos", old, encoder, 100 * fitted.loss, count
    )
