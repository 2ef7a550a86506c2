"""`prepare-encoder`: loads or learns an image encoder or a text encoder, and stores it in the run."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.run import Artefact, Inputs, Job, Layout, Outside, StageRun, outside_files, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.storage.json_files import Json


def _choices(config: "Config") -> Iterator[tuple[str]]:
    """Yield each encoder that this stage prepares as (encoders/NAME,) or (text/encoders/NAME,).

    The folder is part of the name, because an image encoder and a text encoder may have the same name.
    """
    for entry in config.prepared_encoders:
        if not entry.finetuned:
            yield (f"encoders/{entry.name}",)
    for entry in config.prepared_text_encoders:
        yield (f"text/encoders/{entry.name}",)


def _keys(config: "Config", encoder: str) -> dict[str, object]:
    entry = config.entry(encoder)
    if entry.spec.reads == "regions":
        return {**entry.decisive(), "regions": config.regions.decisive()}
    return {"seed": config.seed, "encoder": entry.decisive()}


def _reads(config: "Config", layout: Layout, encoder: str) -> Inputs:
    """Return the inputs of an encoder.

    The inputs are the files of the weights, the encoder on which the encoder is based, the precomputed vectors, the
    manifest if the encoder has precomputed vectors or learns from train, and the token vocabulary and the word vectors
    of the run if the encoder uses them. Inputs that the encoder does not have are None or empty.
    """
    from pipeline.run.reading.precomputed import given_inputs

    entry = config.entry(encoder)
    is_precomputed = entry.spec.reads == "vectors"
    weights = [Outside(name, path) for name, path in entry.files(config.weights_root).items()]
    if folder := entry.folder(config.weights_root):
        weights += outside_files("weights", folder)
    base: Artefact | None = None
    if entry.base is not None:
        base = layout.encoder(entry.base) if entry.modality == "image" else layout.text_encoder(entry.base)
    return {
        "weights": weights,
        "encoder": base,
        "manifest": layout.manifest if entry.learns or is_precomputed else None,
        "source": given_inputs(config, entry) if is_precomputed else None,
        "vocabulary": layout.token_vocabulary if entry.corpus else None,
        "word_vectors": layout.word_vectors if entry.corpus else None,
    }


@stage(
    version=9,
    threads=8,
    memory=3000,
    choices=_choices,
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.any_encoder(encoder),
)
def prepare_encoder(run: StageRun, job: Job, encoder: str) -> None:
    """Prepare an image encoder or a text encoder from its weights, or learn it from the train split.

    An entry with precomputed vectors names the encoder that made them. This encoder is prepared, and its vectors of
    some photos or captions are compared with the precomputed vectors.
    """
    from pipeline.config.encoders import TextEntry
    from pipeline.encoders.centred import Centred
    from pipeline.run.reading.encoders import encoder_material, write_encoder
    from pipeline.run.reading.texts import measure_coverage

    entry = run.config.entry(encoder)
    material = encoder_material(run, entry)
    made = entry.spec.load().prepare(entry, material)
    if isinstance(entry, TextEntry) and entry.centre != "none":
        assert material.texts is not None
        made = Centred.fit(made, material.texts.texts(), entry.centre == "whiten")
    details: dict[str, Json] = {"name": entry.name, "dim": made.dim}
    if entry.remedy and entry.learns:
        details["coverage"] = measure_coverage(run, entry.name, made, entry.remedy)
    write_encoder(job, entry, made, details)
    log = logging.getLogger(__name__)
    layer = made.settings().get("layer", entry.kind)
    log.info("The encoder %s (%s) is ready. Its vectors have %d dimensions", entry.name, layer, made.dim)
