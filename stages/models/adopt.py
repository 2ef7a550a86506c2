"""`adopt`: a space that encoders share already, as a model."""

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named, sentence_shards


def adopt(run: Run, job: Job, model: str) -> None:
    """Use the vectors of an image encoder and a text encoder, unchanged, as the space of MODEL."""
    from pipeline.errors import UsageError
    from pipeline.storage.parameters import origin_of
    from stages.training import describe_model

    configured = run.config.model(model)
    (encoder,), (text_encoder,) = configured.encoders, configured.text_encoders
    features = run.features.open(encoder, 0)
    sentences = run.texts({text_encoder: run.layout.sentences(text_encoder)}).open(0)[text_encoder]
    dim, text_dim = features["features"].shape[1], sentences.matrix.shape[1]
    if dim != text_dim:
        raise UsageError(
            f"{model}: {encoder} has {dim} dimensions and {text_encoder} {text_dim}; name two encoders that share a"
            " space, or use ncca"
        )
    origins = {
        "encoders": {encoder: origin_of(features.commit)},
        "text_encoders": {text_encoder: origin_of(sentences.commit)},
    }
    run.write_model(job, configured.spec.load()(encoder, text_encoder), {**describe_model(run, model), **origins})


def _reads(config, layout, model: str) -> Inputs:
    configured = config.model(model)
    return named(*map(layout.features, configured.encoders), *sentence_shards(configured, layout))


STAGE = Stage(
    adopt,
    version=1,
    names=("model",),
    choices=lambda config: [(name,) for name in config.made_by("adopt")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
