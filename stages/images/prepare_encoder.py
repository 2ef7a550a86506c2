"""`prepare-encoder`: an image encoder of the configuration, with its weights, as an artefact of the run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from pipeline import config
    from pipeline.images.pooled_regions import PooledEncoder
    from pipeline.images.standard import StandardEncoder
    from pipeline.settings import images as sections


@click.command("prepare-encoder")
@click.option("--name", required=True, help="Name of the encoder in the configuration.")
@click.option(
    "--manifest",
    "manifest_folder",
    type=options.FOLDER,
    help="Folder that `ingest` wrote; needed where the encoder learns from its images.",
)
@click.option(
    "--of", "network_folder", type=options.FOLDER, help="Folder of the encoder whose regions it pools, if it does."
)
@options.config
@options.output("folder", "Folder of the encoder.")
def command(
    name: str, manifest_folder: Path | None, network_folder: Path | None, config_path: Path | None, output: Path
) -> None:
    """Check an encoder's weights and keep those that its layer needs, or learn an encoder of standard features."""
    import logging

    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.images.encoders import feature_dim
    from pipeline.images.kinds import POOLED, STANDARD
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parameters import ENCODER, digest_tensors, write_parameters
    from stages.inputs import read_network

    settings = config.load(config_path)
    chosen = settings.encoder(name)
    if chosen.weights == "finetuned":
        raise UsageError(f"the weights of encoder {name} are finetuned; another command makes them")
    details: dict[str, Any] = {"name": name}
    if chosen.architecture == STANDARD:
        encoder = _learn_standard(settings, chosen, manifest_folder)
    elif chosen.architecture == POOLED:
        encoder, details["of"] = _pool(settings, chosen, network_folder)
    else:
        encoder = read_network(settings, chosen, chosen.weights, chosen.file, chosen.sha256)

    parts, tensors = encoder.settings(), encoder.tensors()
    dim = feature_dim(encoder.network if chosen.architecture == POOLED else encoder)
    digest = fingerprint("encoder", 1, parts, {"tensors": digest_tensors(tensors)})
    details["dim"] = dim
    write_parameters(
        output / "model.safetensors", ENCODER, tensors, settings=parts, fingerprint=digest, details=details
    )
    logging.getLogger(__name__).info("%s: %s %s, %d dimensions", name, chosen.architecture, parts["layer"], dim)


def _pool(
    settings: "config.Config", chosen: "sections.Encoder", network_folder: Path | None
) -> "tuple[PooledEncoder, str]":
    """The encoder that pools the regions of the network in `network_folder`, and that one's fingerprint."""
    from pipeline.errors import UsageError
    from pipeline.images.encoders import Encoder
    from pipeline.images.pooled_regions import PooledEncoder
    from pipeline.storage.parameters import ENCODER, read_parameters

    if network_folder is None:
        raise UsageError(f"encoder {chosen.name} pools regions; give --of, the folder of the encoder {chosen.of}")
    network = read_parameters(network_folder / "model.safetensors", ENCODER)
    restored = Encoder.from_parts(network.settings, network.tensors)
    return PooledEncoder(restored, settings.regions.decisive(), chosen.pooling), network.fingerprint


def _learn_standard(
    settings: "config.Config", chosen: "sections.Encoder", manifest_folder: Path | None
) -> "StandardEncoder":
    """The encoder of standard features, learned from images of the train split; the codebooks' are read twice."""
    import numpy as np
    from tqdm import tqdm

    from pipeline.errors import UsageError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.preprocess import Photograph, Preprocessing, load_all
    from pipeline.storage.manifest import Manifest
    from pipeline.storage.sources import ImageSource

    if manifest_folder is None:
        raise UsageError(f"encoder {chosen.name} learns from images; give --manifest, the folder that `ingest` wrote")
    from pipeline.images.descriptors import Grid  # OpenCV, which may not be installed
    from pipeline.images.pooling import Describer, Sampler
    from pipeline.images.standard import StandardEncoder, StandardSpec, learn_codebooks, learn_projection

    manifest, collection, plan, seed = Manifest(manifest_folder), settings.collection, chosen.standard, settings.seed
    train = np.flatnonzero(manifest.splits == "train")
    if len(train) < 2:
        raise UsageError(f"encoder {chosen.name} learns from the train split, which has {len(train)} images; add some")
    rows = np.random.default_rng(seed).permutation(train)[: plan.images]
    photographs = [Photograph.from_row(row) for row in manifest.images.take(rows).to_pylist()]
    limits = ImageLimits.from_settings(collection)
    preprocessing = Preprocessing(chosen.resize, chosen.crop, chosen.mean, chosen.std)
    spec = StandardSpec(preprocessing, Grid(plan.grid_step, plan.patch), chosen.flip)
    read, workers = ImageSource(manifest.root, collection.follow_links).read, settings.extract.decode_workers

    def describe_all(what: str, photographs: list[Photograph], describe: Callable) -> list:
        described = load_all(photographs, read, limits, preprocessing, workers, describe)
        return list(tqdm(described, what, len(photographs), unit=" images", disable=None))

    sampler = Sampler(spec.grid, plan.descriptors, seed)
    samples = describe_all("codebooks", photographs[: plan.codebook_images], sampler)
    codebooks = learn_codebooks(samples, plan.codebook, plan.descriptor_dim, seed)
    described = describe_all("reductions", photographs, Describer(spec.grid, spec.flip, codebooks).parts)
    projection = learn_projection(described, plan.dimensions.model_dump(), seed)
    weights = {"origin": "learned", "images": len(rows), "seed": seed, "manifest": manifest.fingerprint}
    return StandardEncoder(spec, codebooks, projection, weights)
