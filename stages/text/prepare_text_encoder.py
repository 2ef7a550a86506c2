"""`prepare-text-encoder`: a text encoder of the configuration, as an artefact of the run."""

from pipeline.run import Inputs, Job, Outside, Run, Stage, outside_files


def prepare_text_encoder(run: Run, job: Job, encoder: str) -> None:
    """Make a text encoder, from the training sentences, word vectors or what a person brought.

    Of vectors made elsewhere it is the encoder that made them, compared with them on some sentences.
    """
    import logging

    from pipeline.storage.parameters import TEXT_ENCODER, write_parameters
    from pipeline.text.text_encoder import Centred
    from stages.texts import TextMaterial, measure_coverage

    chosen, material = run.config.text_encoder(encoder), TextMaterial(run, encoder)
    made = chosen.spec.load().prepare(chosen, material)
    if chosen.centre != "none":
        made = Centred.fit(made, material.texts(), chosen.centre == "whiten")
    details = {"name": encoder, "dim": made.dim}
    if chosen.own.learns:
        details["coverage"] = measure_coverage(run, encoder, made, chosen.own.remedy)
    about = {"settings": made.settings(), "provenance": job.provenance, "details": details}
    write_parameters(job.path / "model.safetensors", TEXT_ENCODER, made.tensors(), **about)
    logging.getLogger(__name__).info("%s: %s, %d dimensions", encoder, chosen.kind, made.dim)


def _reads(config, layout, encoder: str) -> Inputs:
    """The training sentences, the run's word vectors, the file that a person brought, the encoder that made vectors."""
    from stages.given import given_inputs

    chosen = config.text_encoder(encoder)
    own, reads = chosen.own, {}
    if chosen.learns or own.maker:
        reads["manifest"] = layout.manifest
    if own.maker:
        reads["of"] = layout.text_encoder(own.maker)
        reads |= given_inputs(config, chosen)
    if own.corpus:
        reads |= {"vocabulary": layout.token_vocabulary, "words": layout.word_vectors}
    reads |= {name: Outside(path) for name, path in own.files(config.weights_root).items()}
    if folder := own.folder(config.weights_root):
        reads |= outside_files("file", folder)
    return reads


def _keys(config, encoder: str) -> dict:
    return {"seed": config.seed, "encoder": config.text_encoder(encoder).decisive()}


STAGE = Stage(
    prepare_text_encoder,
    version=8,
    names=("encoder",),
    choices=lambda config: [(one.name,) for one in config.prepared_text_encoders],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.text_encoder(encoder),
)
