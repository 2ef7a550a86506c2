"""Image encoders of a run: what they are made from, and one opened to describe photographs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.encoders.image_encoder import EncoderMaterial, GivenFeatures, TrainImages
from pipeline.errors import InputError
from pipeline.run import Run
from pipeline.run.reading.photos import open_photographs, photograph_reader
from pipeline.run.reading.precomputed import match_given

if TYPE_CHECKING:
    from pipeline.config.images import Encoder
    from pipeline.encoders.networks import NetworkEncoder

COMPARED = 4
"""Images on which features made elsewhere are compared with what the encoder named for them makes."""


def encoder_material(run: Run, entry: "Encoder") -> EncoderMaterial:
    """What the encoder of an `entry` of the configuration is made from."""
    config, other, learned = run.config, entry.of or entry.made_by, None
    if entry.spec.learned:
        manifest = run.manifest
        of_train = np.flatnonzero(manifest.splits == "train")
        learned = TrainImages(manifest.images, of_train, manifest.fingerprint, photograph_reader(run))
    return EncoderMaterial(
        config.seed,
        Path(config.weights_root),
        config.regions.decisive(),
        run.encoder(other) if other else None,
        learned,
        _given_features(run, entry) if entry.made_by else None,
    )


def prepare_start(run: Run, encoder: "Encoder", training: Any) -> "NetworkEncoder":
    """The network that the training of an encoder begins with: with the weights that `training`, a section with
    `start`, `file` and `sha256`, names."""
    entry = encoder.model_copy(update={"weights": training.start, "file": training.file, "sha256": training.sha256})
    return entry.spec.load().prepare(entry, encoder_material(run, entry))


def _given_features(run: Run, entry: "Encoder") -> GivenFeatures:
    """Of the first images."""
    matched = match_given(run, entry)
    rows = range(min(COMPARED, len(matched.labels)))
    images, reasons = zip(*open_photographs(run, list(rows)), strict=True)
    if any(reasons):
        raise InputError(f"{max(reasons)}; it was readable before; run ingest again")
    return GivenFeatures(images, matched.names(rows), matched.features(rows))
