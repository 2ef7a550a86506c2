"""`build-index`: the bundle that a search needs, from the embeddings of one model."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.run import Inputs, Job, Run, Stage

if TYPE_CHECKING:
    from pipeline.config import Config
    from pipeline.storage.sharded_ids import ShardedIds
    from stages.pieces import Pieces


def build_index(run: Run, job: Job, model: str, on_disk: bool = False) -> None:
    """Index images and sentences, measure the indices, and put beside them what a query needs."""
    from pipeline.specs.stored import restore
    from pipeline.storage.bundle import Bundle, BundleWriter
    from pipeline.storage.bundle_regions import add_regions
    from pipeline.storage.carried_parsers import add_parser, find_carried_parser
    from pipeline.storage.commit import CARRIED, carry
    from pipeline.storage.fingerprint import fingerprint, require_same
    from pipeline.storage.own_code import code_of, remember
    from pipeline.storage.pairs import split_ids
    from pipeline.storage.phrases import PhraseVectors
    from pipeline.storage.reading import read_bytes
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.trees import ParseShards
    from stages.bundled import read_encoders, read_text_encoders, vocabulary_of
    from stages.indices import add_indices, add_table, describe_training

    config, layout, manifest = run.config, run.layout, run.manifest
    settings = config.index.model_copy(update={"on_disk": config.index.on_disk or on_disk})
    folder, words = layout.model(model).path, vocabulary_of(config, layout, model)
    embeddings, parameters = run.embedded_model(model)
    mapping = restore(embeddings.registered, parameters.settings, parameters.tensors, folder)
    encoders = read_encoders(mapping, parameters.details, folder, run.root / "encoders")
    texts = read_text_encoders(mapping, parameters.details, folder, layout)
    vocabulary = None
    if words:
        vocabulary = read_vocabulary(words.path)["fingerprint"]
        require_same("vocabulary", {str(words.path): vocabulary, str(folder): parameters.details["vocabulary"]})

    parse = None
    if _reads_trees(config, model):
        trained = layout.parser.path if _trains_parser(config) else None
        named = trained, config.parse.pipeline, Path(config.weights_root)
        parses = ParseShards(manifest, layout.parses.folder).open(0)
        parse = find_carried_parser(parameters, parses, layout.labels.path, *named)

    ids, writer = split_ids(manifest, settings.splits), BundleWriter(job.path)
    workshop = layout.pieces(model).absolute()

    def pieces(modality: str, rows: "ShardedIds") -> "Pieces":
        from stages.pieces import Pieces

        where = settings.piece, settings.worker_memory, run.sums, config.device, not settings.on_disk
        return Pieces(workshop, embeddings, modality, rows, *where)

    about = add_indices(writer, embeddings, ids, settings, run.gpu, pieces=pieces)
    for modality, rows in ids.items():
        add_table(writer, manifest, modality, rows, about)
    if phrases := [PhraseVectors(layout.phrases(model, split).path) for split in _phrase_splits(config, model)]:
        add_regions(writer, ids["images"][:], phrases)
    writer.add_parameters(folder)
    if words:
        writer.add("vocabulary.json", read_bytes(words.path))
    for name in encoders:
        writer.add_parameters(layout.encoder(name).path, f"encoders/{name}/")
    for name in texts:
        writer.add_parameters(layout.text_encoder(name).path, f"text_encoders/{name}/")
    if parse:
        add_parser(writer, parse)

    inputs = {**embeddings.inputs, "model": parameters.fingerprint}
    inputs |= {"vocabulary": vocabulary} if vocabulary else {}
    inputs |= {f"text_encoders/{name}": encoder.fingerprint for name, encoder in texts.items()}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    inputs |= {f"phrases/{one.split}": one.fingerprint for one in phrases}
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
            "name": run.config.name,
            **describe_training(run, model),
            "data_root": str(manifest.root),
            "encoders": {name: encoder.settings for name, encoder in encoders.items()},
            "text_encoders": {name: {"kind": encoder.settings["kind"]} for name, encoder in texts.items()},
            **({"parse": parse.metadata} if parse else {}),
            "inputs": inputs,
            "fingerprint": digest,
            CARRIED: carry(job.provenance, layout.index(model).commit, digest),
        }
    )
    remember(code_of(Bundle(writer.folder).card).values())
    if workshop.exists():
        from stages.pieces import remove_pieces

        remove_pieces(workshop)


def _reads_trees(config: "Config", model: str) -> bool:
    """Whether a model, or a member of an ensemble, takes sentences as trees."""
    return any(config.model(member).spec.trees for member in config.members(model) or [model])


def _trains_parser(config: "Config") -> bool:
    return config.parse.engine == "spacy" and config.parse.pipeline is None


def _phrase_splits(config: "Config", model: str) -> list[str]:
    """The splits whose regions go into the index of a model that embeds them one by one."""
    if config.model(model).spec.multi_vector:
        return []
    return [
        split
        for one, split in config.phrase_splits(config.phrases.splits)
        if one == model and split in config.index.splits
    ]


def _keys(config, model: str) -> dict:
    """Only multi-vector models have a shortlist."""
    unused = set() if config.model(model).spec.multi_vector else {"shortlist"}
    return config.index.model_dump(exclude=unused)


def _reads(config, layout, model: str) -> Inputs:
    chosen, words = config.model(model), {}
    if not config.members(model) and chosen.spec.words:
        words["vocabulary"] = layout.token_vocabulary
    for member in map(config.model, config.members(model) or [model]):
        if member.spec.sentences == "vectors":
            texts = [name for name in member.text_encoders if config.text_encoder(name).prepared]
            words |= {f"text_encoders/{name}": layout.text_encoder(name) for name in texts}
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
        **{f"phrases/{split}": layout.phrases(model, split) for split in _phrase_splits(config, model)},
    }


def _search(run: Run, model: str) -> str | None:
    """A search of what was built."""
    import shlex

    from stages.closing import example_search

    example = example_search(run.bundle(model))
    return example and shlex.join(["jointspace", *example])


STAGE = Stage(
    build_index,
    version=8,
    gpu=True,
    names=("model",),
    choices=lambda config: [(name,) for name in config.every_model()],
    wanted=lambda config: [(name,) for name in config.models],
    keys=_keys,
    reads=_reads,
    writes=lambda layout, model: layout.index(model),
    then=_search,
    options=(click.Option(["--on-disk"], is_flag=True, help="As index.on_disk: for indices larger than memory."),),
)
