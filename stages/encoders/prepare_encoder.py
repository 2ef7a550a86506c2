"""`prepare-encoder`: an encoder of the configuration, of images or of texts, as an artefact of the run."""

import logging
from typing import TYPE_CHECKING, Any

from pipeline.run import Input, Inputs, Job, Outside, Run, outside_files, stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pipeline.config.names import Config
    from pipeline.run.layout import Layout


def _choices(config: "Config") -> "Iterator[tuple[str]]":
    """The encoders by the folders of their artefacts, since an encoder of images may have the name of one of texts."""
    for entry in config.prepared_encoders:
        if not entry.finetuned:
            yield (f"encoders/{entry.name}",)
    for entry in config.prepared_text_encoders:
        yield (f"text/encoders/{entry.name}",)


def _keys(config: "Config", encoder: str) -> dict[str, Any]:
    entry = config.entry(encoder)
    if entry.spec.reads == "regions":
        return {**entry.decisive(), "regions": config.regions.decisive()}
    return {"seed": config.seed, "encoder": entry.decisive()}


def _reads(config: "Config", layout: "Layout", encoder: str) -> Inputs:
    """The encoder that it is made from, its precomputed vectors, the train split, and files of the user."""
    from pipeline.run.reading.precomputed import given_inputs

    entry = config.entry(encoder)
    root = config.weights_root
    reads: list[Input] = [Outside(name, path) for name, path in entry.files(root).items()]
    if folder := entry.folder(root):
        reads += outside_files("weights", folder)
    if entry.base is not None:
        reads.append(layout.encoder(entry.base) if entry.modality == "image" else layout.text_encoder(entry.base))
    if entry.learns or entry.spec.reads == "vectors":
        reads.append(layout.manifest)
    if entry.spec.reads == "vectors":
        reads += given_inputs(config, entry)
    if entry.corpus:
        reads += [layout.token_vocabulary, layout.word_vectors]
    return reads


@stage(
    version=8,
    choices=_choices,
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.any_encoder(encoder),
)
def prepare_encoder(run: Run, job: Job, encoder: str) -> None:
    """Prepare an encoder of images or of texts from its weights, or learn it from the train split.

    For precomputed vectors this is the encoder that made them; it is compared with them on some photos or captions.
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
    details: dict[str, Any] = {"name": entry.name, "dim": made.dim}
    if entry.remedy and entry.learns:
        details["coverage"] = measure_coverage(run, entry.name, made, entry.remedy)
    write_encoder(job, entry, made, details)
    log = logging.getLogger(__name__)
    log.info("%s: %s, %d dimensions", entry.name, made.settings().get("layer", entry.kind), made.dim)
