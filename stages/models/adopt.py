"""`adopt`: a space that encoders share already, as a model."""

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import named, sentence_shards


def adopt(run: Run, job: Job, model: str) -> None:
    """Take the vectors of an encoder of images and of one of text as they are, as the space of MODEL."""
    from pipeline.errors import UsageError
    from pipeline.storage.parameters import origin_of
    from stages.training import describe_model

    known, layout = run.config.model(model), run.layout
    (encoder,), (text_encoder,) = known.encoders, known.text_encoders
    features, vectors = run.features.open(encoder, 0), run.texts({text_encoder: layout.sentences(text_encoder)}).open(0)
    sentences = vectors[text_encoder]
    dims = features["features"].shape[1], sentences.matrix.shape[1]
    if dims[0] != dims[1]:
        raise UsageError(
            f"{model}: features of {encoder} have {dims[0]} dimensions, vectors of {text_encoder} {dims[1]}; name two"
            " sides of one shared space, or take ncca"
        )
    origins = {"encoders": {encoder: origin_of(features.commit)}}
    origins["text_encoders"] = {text_encoder: origin_of(sentences.commit)}
    details = {**describe_model(run, model), **origins}
    run.write_model(job, known.spec.load()(encoder, text_encoder), details)


def _reads(config, layout, model: str) -> Inputs:
    known = config.model(model)
    return named(*map(layout.features, known.encoders), *sentence_shards(known, layout))


STAGE = Stage(
    adopt,
    version=1,
    names=("model",),
    choices=lambda config: [(name,) for name in config.made_by("adopt")],
    keys=lambda config, model: config.model(model).hyperparameters,
    reads=_reads,
    writes=lambda layout, model: layout.model(model),
)
