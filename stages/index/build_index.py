"""`build-index`: the bundle that a search needs, from the embeddings of one model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.plan.needs import TORCH, Need, embeddings_mb, manifest_mb, network_gpu, per_image
from pipeline.run import Inputs, Job, Run, Stage

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.storage.parameters import Parameters


def build_index(run: Run, job: Job, model: str, on_disk: bool = False) -> None:
    """Index images and sentences, measure the indices, and put beside them what a query needs."""
    from pipeline.specs.stored import restore
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.carried_parsers import add_parser, find_carried_parser
    from pipeline.storage.embeddings import split_ids
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.reading import read_bytes
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.trees import ParseShards
    from stages.indices import add_indices, describe_training

    config, layout, manifest = run.config, run.layout, run.manifest
    settings = config.index.model_copy(update={"on_disk": config.index.on_disk or on_disk})
    folder, vocabulary_path = layout.model(model).path, _vocabulary(config, layout, model)
    embeddings, parameters = run.embedded_model(model)
    vocabulary = read_vocabulary(vocabulary_path)["fingerprint"]
    require_same("vocabulary", {str(vocabulary_path): vocabulary, str(folder): parameters.details["vocabulary"]})
    mapping = restore(embeddings.registered, parameters.settings, parameters.tensors, folder)
    encoders = _read_encoders(mapping, parameters.details, folder, run.root / "encoders")

    parse = None
    if _reads_trees(config, model):
        trained = layout.parser.path if _trains_parser(config) else None
        named = trained, config.parse.pipeline, Path(config.weights_root)
        parses = ParseShards(manifest, layout.parses.folder).open(0)
        parse = find_carried_parser(parameters, parses, layout.labels.path, *named)

    ids, writer = split_ids(manifest, settings.splits), BundleWriter(job.path)
    about = add_indices(writer, embeddings, ids, settings, run.gpu)
    for modality, rows in ids.items():
        writer.add_table(f"{modality}.parquet", getattr(manifest, modality).take(rows))
    writer.add_parameters(folder)
    writer.add("vocabulary.json", read_bytes(vocabulary_path))
    for name in encoders:
        writer.add_parameters(layout.encoder(name).path, f"encoders/{name}/")
    if parse:
        add_parser(writer, parse)

    inputs = {**embeddings.inputs, "model": parameters.fingerprint, "vocabulary": vocabulary}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    inputs |= {"parser": parse.digest} if parse and parse.digest else {}
    digest = job.fingerprint
    if settings.on_disk != config.index.on_disk:
        digest = fingerprint("bundle on disk", 1, inputs={"bundle": digest})
    writer.commit(
        {
            "model": embeddings.name,
            "registered": embeddings.registered,
            "metric": embeddings.metric,
            "dim": embeddings.dim,
            **about,
            "splits": list(settings.splits),
            "name": run.root.absolute().name,
            "trained_on": describe_training(run, model),
            "data_root": str(manifest.root),
            "encoders": {name: encoder.settings for name, encoder in encoders.items()},
            **({"parse": parse.metadata} if parse else {}),
            "inputs": inputs,
            "fingerprint": digest,
        }
    )


def _read_encoders(
    model: Any, details: Mapping[str, Any], model_folder: Path, encoders_root: Path
) -> "dict[str, Parameters]":
    """The encoders that made the features of the model, and of its regions, by name."""
    import logging

    from pipeline.storage.provenance import encoders_of, read_own_encoders

    used = {"encoders": model.encoders, **({"regions": model.region_encoders} if model.multi_vector else {})}
    found = {}
    for key, names in used.items():
        origins = encoders_of(model_folder, details[key], names)
        found |= read_own_encoders(encoders_root, origins, model_folder)
        for name in origins.keys() - found.keys():
            logging.getLogger(__name__).warning(
                "the features of %s were imported, and no encoder of this run makes them: the index cannot be searched"
                " with new photographs; name the encoder that made them in made_by", name,
            )  # fmt: skip
    return found


def _vocabulary(config: "Config", layout: Any, model: str) -> Path:
    """The vocabulary of a model; an ensemble has its own."""
    if config.members(model):
        return layout.model(model).path / "vocabulary.json"
    return (layout.token_vocabulary if config.model(model).spec.words else layout.vocabulary).path


def _reads_trees(config: "Config", model: str) -> bool:
    """Whether a model, or a member of an ensemble, takes sentences as trees."""
    return any(config.model(member).spec.trees for member in config.members(model) or [model])


def _trains_parser(config: "Config") -> bool:
    return config.parse.engine == "spacy" and config.parse.pipeline is None


def _keys(config, model: str) -> dict:
    """Only multi-vector models have a shortlist."""
    unused = set() if config.model(model).spec.multi_vector else {"shortlist"}
    return config.index.model_dump(exclude=unused)


def _reads(config, layout, model: str) -> Inputs:
    chosen, words = config.model(model), {}
    if not config.members(model):
        words["vocabulary"] = layout.token_vocabulary if chosen.spec.words else layout.vocabulary
    if _reads_trees(config, model):
        words |= {"parses": layout.parses, "labels": layout.labels}
        words |= {"parser": layout.parser} if _trains_parser(config) else {}
    regions = config.regions.encoders if chosen.spec.multi_vector else ()
    given = {one.name for one in config.encoders if not one.prepared}
    prepared = [name for name in chosen.encoders if name not in given]
    return {
        "manifest": layout.manifest,
        "model": layout.model(model),
        f"embeddings/{model}": layout.embeddings(model),
        **{f"encoders/{name}": layout.encoder(name) for name in (*prepared, *regions)},
        **words,
    }


STAGE = Stage(
    build_index,
    version=5,
    needs=Need(
        lambda s: TORCH + 600 + manifest_mb(s) + 3 * embeddings_mb(s),
        embeddings_mb,
        per_image(200),
        "vectors times dimensions, for the exact search that measures it; candidates ten times that",
        network_gpu,
    ),
    names=("model",),
    threads=8,
    choices=lambda config: [(name,) for name in config.every_model()],
    wanted=lambda config: [(name,) for name in config.models],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, model: layout.index(model),
    options=(click.Option(["--on-disk"], is_flag=True, help="As index.on_disk: for indices larger than memory."),),
)
