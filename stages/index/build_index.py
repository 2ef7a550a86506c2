"""`build-index`: builds the index of a model, or one shard of the index, from the embeddings of the run."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import InputError, IntegrityError
from pipeline.run import Inputs, Job, Layout, Outside, Run, StageRun, stage
from pipeline.run.reading.inputs import feature_shards

if TYPE_CHECKING:
    from pipeline.config.names import Config


def _keys(config: "Config", index_shard: str) -> dict[str, object]:
    """Return the settings on which an index shard depends. The key `shortlist` concerns only multi-vector models."""
    model, number = _split(index_shard)
    unused = set() if config.model(model).spec.multi_vector else {"shortlist"}
    return {**config.index.model_dump(exclude=unused), "dev_images": config.fit.dev_images, "bundle": number}


def _reads(config: "Config", layout: Layout, index_shard: str) -> Inputs:
    model, number = _split(index_shard)
    configured = config.model(model)
    members = config.members(model)
    queries = config.hubness.queries
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
        # All index shards use the inverted lists of the first shard, so the first shard is an input of the others.
        "first": layout.index(config.bundle_names(model)[0]) if number else None,
        "vocabulary": layout.token_vocabulary if configured.spec.words and not members else None,
        "text_encoders": {name: layout.text_encoder(name) for name in text_encoders},
        # The recall of an index without captions is measured with these queries, which the encoders above embed.
        "queries": Outside("queries", Path(queries)) if text_encoders and queries else None,
        "encoders": {name: layout.encoder(name) for name in encoders},
        # The commit records of mapped features say which photos have mapped features. The features are not read.
        "mapped_features": feature_shards(
            [name for name in configured.encoders if name in config.extract.mapped], layout
        ),
    }


def _search(run: Run, index_shard: str) -> str | None:
    """Return the command that searches the new index shard, or None if no example of a query is found."""
    from pipeline.run.reading.results import search_command

    return search_command(run.layout.index(index_shard).path)


@stage(
    version=16,
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
def build_index(run: StageRun, job: Job, index_shard: str) -> None:
    """Build a searchable index of photos and captions from the embeddings of a model.

    INDEX_SHARD is a model, or MODEL/NUMBER if the key index.bundles divides the index into several shards. The stage
    chooses the type of the FAISS index, measures its recall, and stores the encoders that queries need in the index.
    """
    from pipeline.index.text_index import prepare_text_index
    from pipeline.run.reading.application import refresh_additions
    from pipeline.run.reading.indexes import write_index_shard
    from pipeline.run.run import shards_of_part
    from pipeline.storage.index_folder import ADDED, numbered, remove_shard
    from pipeline.storage.locks import hold
    from pipeline.storage.pairs import split_ids
    from stages.catalogue import declared

    (model, number), count = _split(index_shard), run.config.index.bundles
    shards = shards_of_part(run.manifest.n_shards, number, count)
    ids = split_ids(run.manifest, run.config.index.splits, shards)
    if not len(ids["images"]):
        raise InputError(
            f"Index shard {number} of {count} would be empty, because its {len(shards)} of the {run.manifest.n_shards}"
            " shards of the run have no image of the splits in index.splits. Set index.bundles or shard_size to a lower"
            " number."
        )
    part = {"number": number, "of": count} if count > 1 else None
    write_index_shard(run, model, ids, job.path, job.provenance, part)
    folder = run.layout.index(model).path
    every = [folder if count == 1 else numbered(folder, each) for each in range(count)]
    # If the index has one shard, this job holds the lock of the index already. Otherwise the jobs of the shards can
    # reach this line in any order and at the same time. Only the job that completes the index runs the code below.
    with hold(folder, wait=True) if job.path != folder else nullcontext():
        if _is_complete(Run(run.root, run.config), model):
            # Shards of an earlier value of index.bundles are removed. Other files in the folder are kept.
            for former in (folder, *folder.iterdir()):
                if former not in every and (former == folder or _is_part(former, model)):
                    remove_shard(former)
            if (folder / ADDED).exists():
                refresh_additions(declared(), folder)
            prepare_text_index(folder)


def _is_complete(run: "Run", model: str) -> bool:
    """Return whether all index shards of `model` are up to date.

    The result is false while another job replaces a shard. That job calls this function too when its shard is ready.
    """
    from pipeline.run.jobs import Jobs

    jobs = Jobs(run)
    try:
        return all(jobs.is_done(jobs.job(build_index, (name,))) for name in run.config.bundle_names(model))
    except IntegrityError:
        return False


def _is_part(folder: Path, model: str) -> bool:
    """Return whether `folder` is one of several shards of an index of `model` that this stage wrote. The name of such a
    folder is the number of the shard."""
    from pipeline.storage.card import CARD
    from pipeline.storage.files import is_regular
    from pipeline.storage.json_files import read_json

    if not (folder.name.isdecimal() and is_regular(folder / CARD)):
        return False
    card = read_json(folder / CARD)
    return card.get("model") == model and (card.get("part") or {}).get("number") == int(folder.name)


def _split(index_shard: str) -> tuple[str, int]:
    """Return the model of an index shard, and the number of the shard from 0, from its name MODEL or MODEL/NUMBER. The
    shard of the name MODEL has the number 0."""
    model, _, number = index_shard.partition("/")
    return model, int(number or 0)


def _index_shards(config: "Config", models: Iterable[str]) -> list[tuple[str]]:
    return [(index_shard,) for model in models for index_shard in config.bundle_names(model)]
