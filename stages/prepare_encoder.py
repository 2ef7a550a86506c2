"""`prepare-encoder`: an image encoder of the configuration, with its weights, as an artefact of the run."""

from pathlib import Path

import click

from stages import options


@click.command("prepare-encoder")
@click.option("--name", required=True, help="Name of the encoder in the configuration.")
@options.config
@options.output("folder", "Folder of the encoder.")
def command(name: str, config_path: Path | None, output: Path) -> None:
    """Check an encoder's weights and keep those that its layer needs."""
    import logging

    from pipeline import config
    from pipeline.images import weights
    from pipeline.images.encoders import EncoderSpec, feature_dim, trained, untrained
    from pipeline.images.preprocess import Preprocessing
    from pipeline.storage.features import read_weights
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parameters import ENCODER, digest_tensors, write_parameters

    settings = config.load(config_path)
    chosen = settings.encoder(name)
    preprocessing = Preprocessing(chosen.resize, chosen.crop, chosen.mean, chosen.std)
    spec = EncoderSpec(chosen.architecture, chosen.layer, preprocessing, chosen.flip)

    if chosen.weights == "untrained":
        encoder = untrained(spec, settings.seed)
    elif chosen.weights == "torchvision":
        state, origin = weights.download(chosen.architecture)
        encoder = trained(spec, state, {"origin": origin})
    else:
        data, sha256 = read_weights(Path(settings.weights_root) / chosen.file, chosen.sha256)
        encoder = trained(spec, weights.parse(data, chosen.file), {"origin": chosen.file, "sha256": sha256})

    parts, tensors, dim = encoder.settings(), encoder.tensors(), feature_dim(encoder)
    digest = fingerprint("encoder", 1, parts, {"tensors": digest_tensors(tensors)})
    details = {"name": name, "dim": dim}
    write_parameters(
        output / "model.safetensors", ENCODER, tensors, settings=parts, fingerprint=digest, details=details
    )
    logging.getLogger(__name__).info("%s: %s %s, %d dimensions", name, chosen.architecture, chosen.layer, dim)
