"""`build-index`: the index that a search needs, or one of its shards, from the embeddings of one model."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import InputError
from pipeline.run import Inputs, Job, Run, stage
from pipeline.run.reading.inputs import feature_shards

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.run.jobs import StageRun
    from pipeline.run.layout import Layout


def _keys(config: "Config", index_shard: str) -> dict[str, object]:
    """Only multi-vector models have a shortlist."""
    model, number = _split(index_shard)
    unused = set() if config.model(model).spec.multi_vector else {"shortlist"}
    return {**config.index.model_dump(exclude=unused), "dev_images": config.fit.dev_images, "bundle": number}


def _reads(config: "Config", layout: "Layout", index_shard: str) -> Inputs:
    model, number = _split(index_shard)
    configured, members = config.model(model), config.members(model)
    text_encoders = [
        name
        for member in map(config.model, members or [model])
        if member.spec.sentences == "vectors"
        for name in member.text_encoders
        if config.text_encoder(name).prepared
    ]
    regions = config.regions.encoders if configured.spec.multi_vector else ()
    encoders = [name for name in (*configured.encoders, *regions) if config.encoder(name).prepared]
    return {
        "manifest": layout.manifest,
        "model": layout.model(model),
        "embeddings": layout.embeddings(model),
        # All index shards have the lists of the first one.
        "first": layout.index(config.bundle_names(model)[0]) if number else None,
        "vocabulary": layout.token_vocabulary if configured.spec.words and not members else None,
        "text_encoders": {name: layout.text_encoder(name) for name in text_encoders},
        "encoders": {name: layout.encoder(name) for name in encoders},
        # Their commits say which photos have mapped features; other features are not read.
        "mapped_features": feature_shards(
            [name for name in configured.encoders if name in config.extract.mapped], layout
        ),
    }


def _search(run: Run, index_shard: str) -> str | None:
    """Return the command that searches the new index."""
    from pipeline.run.reading.results import search_command

    return search_command(run.layout.index(index_shard).path)


@stage(
    version=15,
    gpu=True,
    threads=8,
    memory=3000,
    choices=lambda config: _index_shards(config, config.every_model()),
    wanted=lambda config: _index_shards(config, config.models),
    keys=_keys,
    reads=_reads,
    writes=lambda layout, index_shard: layout.index(index_shard),
    then=_search,
)
def build_index(run: "StageRun", job: Job, index_shard: str) -> None:
    """Build the image and caption indexes, measure them, and add the encoders that queries need."""
    from pipeline.run.reading.application import refresh_additions
    from pipeline.run.reading.indexes import write_index_shard
    from pipeline.run.run import shards_of_part
    from pipeline.storage.card import CARD
    from pipeline.storage.index_folder import ADDED, numbered, remove_shard
    from pipeline.storage.locks import hold
    from pipeline.storage.pairs import split_ids
    from stages.catalogue import declared

    (model, number), count = _split(index_shard), run.config.index.bundles
    shards = shards_of_part(run.manifest.n_shards, number, count)
    ids = split_ids(run.manifest, run.config.index.splits, shards)
    if not len(ids["images"]):
        raise InputError(
            f"index shard {number} of {count} would be empty: its {len(shards)} of the {run.manifest.n_shards} shards"
            " of the run have no image of index.splits; lower index.bundles or shard_size"
        )
    part = {"number": number, "of": count} if count > 1 else None
    write_index_shard(run, model, ids, job.path, job.provenance, part)
    folder = run.layout.index(model).path
    every = [folder if count == 1 else numbered(folder, each) for each in range(count)]
    # The lock of the whole index is held already if it has one part. Jobs of other parts may be here at the same time.
    with hold(folder, wait=True) if job.path != folder else nullcontext():
        if all((each / CARD).exists() for each in every):
            for former in (folder, *folder.iterdir()):  # of another number of shards; a user's own beside them stay
                if former not in every and (former == folder or _is_part(former, model)):
                    remove_shard(former)
            if (folder / ADDED).exists():
                refresh_additions(declared(), folder)


def _is_part(folder: Path, model: str) -> bool:
    """Return whether `folder` holds the index shard of the model that this stage has put under its number."""
    from pipeline.storage.card import CARD
    from pipeline.storage.files import is_regular
    from pipeline.storage.json_files import read_json

    if not (folder.name.isdecimal() and is_regular(folder / CARD)):
        return False
    card = read_json(folder / CARD)
    return card.get("model") == model and (card.get("part") or {}).get("number") == int(folder.name)


def _split(index_shard: str) -> tuple[str, int]:
    """Return the model of an index shard, and the number of the shard."""
    model, _, number = index_shard.partition("/")
    return model, int(number or 0)


def _index_shards(config: "Config", models: Iterable[str]) -> list[tuple[str]]:
    return [(index_shard,) for model in models for index_shard in config.bundle_names(model)]
