"""`prepare-text-encoder`: a text encoder of the configuration, as an artefact of the run."""

from pipeline.run import Inputs, Job, Outside, Run, Stage, outside_files
from stages.inputs import named


def prepare_text_encoder(run: Run, job: Job, encoder: str) -> None:
    """Prepare a text encoder from the training captions, word vectors or files of your own.

    Of vectors made elsewhere it is the encoder that made them, compared with them on some sentences.
    """
    import logging

    from pipeline.storage.parameters import TEXT_ENCODER, write_parameters
    from pipeline.text.centred import Centred
    from stages.texts import RunTextMaterial, measure_coverage

    entry, material = run.config.text_encoder(encoder), RunTextMaterial(run, encoder)
    prepared = entry.spec.load().prepare(entry, material)
    if entry.centre != "none":
        prepared = Centred.fit(prepared, material.texts(), entry.centre == "whiten")
    details = {"name": encoder, "dim": prepared.dim}
    if entry.own.learns:
        details["coverage"] = measure_coverage(run, encoder, prepared, entry.own.remedy)
    about = {"settings": prepared.settings() | entry.spec.stored_kind, "provenance": job.provenance, "details": details}
    write_parameters(job.path / "model.safetensors", TEXT_ENCODER, prepared.tensors(), **about)
    logging.getLogger(__name__).info("%s: %s, %d dimensions", encoder, entry.kind, prepared.dim)


def _reads(config, layout, encoder: str) -> Inputs:
    """The training sentences, the run's word vectors, the file that a person brought, the encoder that made vectors."""
    from stages.given import given_inputs

    entry = config.text_encoder(encoder)
    own, root = entry.own, config.weights_root
    reads = {name: Outside(path) for name, path in own.files(root).items()}
    if folder := own.folder(root):
        reads |= outside_files("file", folder)
    if entry.learns or own.maker:
        reads |= named(layout.manifest)
    if own.maker:
        reads |= {**named(layout.text_encoder(own.maker)), **given_inputs(config, entry)}
    if own.corpus:
        reads |= named(layout.token_vocabulary, layout.word_vectors)
    return reads


STAGE = Stage(
    prepare_text_encoder,
    version=9,
    names=("encoder",),
    choices=lambda config: [(entry.name,) for entry in config.prepared_text_encoders],
    keys=lambda config, encoder: {"seed": config.seed, "encoder": config.text_encoder(encoder).decisive()},
    reads=_reads,
    writes=lambda layout, encoder: layout.text_encoder(encoder),
)
