"""`prepare-encoder`: an image encoder of the configuration, with its weights, as an artefact of the run."""

import logging
from pathlib import Path

from pipeline.config.registry import TRAINED
from pipeline.run import Inputs, Job, Outside, Run, outside_files, stage


def _keys(config, encoder: str) -> dict:
    chosen = config.encoder(encoder)
    if chosen.spec.reads == "regions":
        return {**chosen.decisive(), "regions": config.regions.decisive()}
    return {"seed": config.seed, "encoder": chosen.decisive()}


def _reads(config, layout, encoder: str) -> Inputs:
    """The encoder whose regions it takes or that made its features, the images that it learns from or is compared on,
    its file of weights."""
    from pipeline.run.reading.precomputed import given_inputs

    chosen, reads = config.encoder(encoder), []
    if other := chosen.of or chosen.made_by:
        reads.append(layout.encoder(other))
    if chosen.spec.learned or chosen.made_by:
        reads.append(layout.manifest)
    if chosen.made_by:
        reads += given_inputs(config, chosen)
    if chosen.file is not None:
        reads.append(Outside("weights", Path(config.weights_root) / chosen.file))
    if chosen.spec.own_defaults and (folder := Path(config.weights_root) / chosen.architecture).is_dir():
        reads += outside_files("weights", folder)
    return reads


@stage(
    version=7,
    choices=lambda config: [(one.name,) for one in config.prepared_encoders if one.weights not in TRAINED],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.encoder(encoder),
)
def prepare_encoder(run: Run, job: Job, encoder: str) -> None:
    """Check an encoder's weights and keep those its layer needs, or learn the encoder from the train split.

    For imported features this is the encoder that made them; it is compared with them on some photos.
    """
    from pipeline.run.reading.image_encoders import encoder_material
    from pipeline.storage.parameters import ENCODER, write_parameters

    chosen = run.config.encoder(encoder)
    made = chosen.spec.load().prepare(chosen, encoder_material(run, chosen))
    parts, dim = made.settings() | chosen.spec.stored_kind, made.dim
    about = {"settings": parts, "provenance": job.provenance, "details": {"name": encoder, "dim": dim}}
    write_parameters(job.path / "model.safetensors", ENCODER, made.tensors(), **about)
    logging.getLogger(__name__).info("%s: %s %s, %d dimensions", encoder, chosen.architecture, parts["layer"], dim)
