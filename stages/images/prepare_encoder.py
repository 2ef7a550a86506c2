"""`prepare-encoder`: an image encoder of the configuration, with its weights, as an artefact of the run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.run.run import Run
from pipeline.run.stage import Input, Job, Outside, Stage

if TYPE_CHECKING:
    from pipeline.images.pooled_regions import PooledEncoder
    from pipeline.images.standard import StandardEncoder
    from pipeline.settings import images as sections


def prepare_encoder(run: Run, job: Job, encoder: str) -> None:
    """Check an encoder's weights and keep those that its layer needs, or learn an encoder of standard features."""
    import logging

    from pipeline.images.encoders import feature_dim
    from pipeline.images.kinds import POOLED, STANDARD
    from pipeline.storage.fingerprint import fingerprint
    from pipeline.storage.parameters import ENCODER, digest_tensors, write_parameters
    from stages.inputs import read_network

    chosen = run.config.encoder(encoder)
    details: dict[str, Any] = {"name": encoder}
    if chosen.architecture == STANDARD:
        made = _learn_standard(run, chosen)
    elif chosen.architecture == POOLED:
        made, details["of"] = _pool(run, chosen)
    else:
        made = read_network(run.config, chosen, chosen.weights, chosen.file, chosen.sha256)

    parts, tensors = made.settings(), made.tensors()
    dim = feature_dim(made.network if chosen.architecture == POOLED else made)
    digest = fingerprint("encoder", 1, parts, {"tensors": digest_tensors(tensors)})
    details["dim"] = dim
    path = job.path / "model.safetensors"
    write_parameters(path, ENCODER, tensors, settings=parts, fingerprint=digest, details=details)
    logging.getLogger(__name__).info("%s: %s %s, %d dimensions", encoder, chosen.architecture, parts["layer"], dim)


def _pool(run: Run, chosen: "sections.Encoder") -> "tuple[PooledEncoder, str]":
    """The encoder that pools the regions of another one's network, and that one's fingerprint."""
    from pipeline.images.encoders import Encoder
    from pipeline.images.pooled_regions import PooledEncoder

    network = run.encoder(chosen.of)
    restored = Encoder.from_parts(network.settings, network.tensors)
    return PooledEncoder(restored, run.config.regions.decisive(), chosen.pooling), network.fingerprint


def _learn_standard(run: Run, chosen: "sections.Encoder") -> "StandardEncoder":
    """The encoder of standard features, learned from images of the train split; the codebooks' are read twice."""
    import numpy as np
    from tqdm import tqdm

    from pipeline.errors import UsageError
    from pipeline.images.decode import ImageLimits
    from pipeline.images.descriptors import Grid  # OpenCV, which may not be installed
    from pipeline.images.pooling import Describer, Sampler
    from pipeline.images.preprocess import Photograph, Preprocessing, load_all
    from pipeline.images.standard import StandardEncoder, StandardSpec, learn_codebooks, learn_projection
    from pipeline.storage.sources import ImageSource

    manifest, settings, plan, seed = run.manifest, run.config, chosen.standard, run.config.seed
    collection = settings.collection
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


def _keys(config, encoder: str) -> Mapping[str, Any]:
    """How other kinds of encoder are made is nothing to one."""
    chosen = config.encoder(encoder)
    if chosen.of is not None:
        return {"of": chosen.of, "pooling": chosen.pooling, "regions": config.regions.decisive()}
    unused = {"of", "pooling"} | ({"standard"} if chosen.architecture != "standard" else set())
    return {"seed": config.seed, "encoder": chosen.model_dump(exclude=unused)}


def _reads(config, layout, encoder: str) -> Mapping[str, Input]:
    """A network for the regions of one, the images for standard features, a file of weights."""
    chosen = config.encoder(encoder)
    if chosen.of is not None:
        return {"of": layout.encoder(chosen.of)}
    if chosen.architecture == "standard":
        return {"manifest": layout.manifest}
    return {"weights": Outside(Path(config.weights_root) / chosen.file)} if chosen.weights == "file" else {}


STAGE = Stage(
    prepare_encoder,
    version=2,
    names=("encoder",),
    choices=lambda config: [(one.name,) for one in config.every_encoder if one.weights != "finetuned"],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, encoder: layout.encoder(encoder),
    threads=8,
)
