"""`prepare-encoder`: an image encoder of the configuration, with its weights, as an artefact of the run."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.config.registry import TRAINED
from pipeline.run import Inputs, Job, Outside, outside_files, stage

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout


def _keys(config: "Config", encoder: str) -> dict[str, object]:
    chosen = config.encoder(encoder)
    if chosen.spec.reads == "regions":
        return {**chosen.decisive(), "regions": config.regions.decisive()}
    return {"seed": config.seed, "encoder": chosen.decisive()}


def _reads(config: "Config", layout: "Layout", encoder: str) -> Inputs:
    """The encoder whose regions it takes or that made its features, the images that it learns from or is compared on,
    its file of weights."""
    from pipeline.run.reading.precomputed import given_inputs

    chosen, weights = config.encoder(encoder), []
    if chosen.file is not None:
        weights.append(Outside("weights", Path(config.weights_root) / chosen.file))
    if chosen.spec.own_defaults and (folder := Path(config.weights_root) / chosen.architecture).is_dir():
        weights += outside_files("weights", folder)
    other = chosen.of or chosen.made_by
    return {
        "encoder": layout.encoder(other) if other else None,
        "manifest": layout.manifest if chosen.spec.learned or chosen.made_by else None,
        "source": given_inputs(config, chosen) if chosen.made_by else None,
        "weights": weights,
    }


@stage(
    version=7,
    threads=8,
    memory=3000,
    choices=lambda config: [(one.name,) for one in config.prepared_encoders if one.weights not in TRAINED],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.encoder(encoder),
)
def prepare_encoder(run: "StageRun", job: Job, encoder: str) -> None:
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
