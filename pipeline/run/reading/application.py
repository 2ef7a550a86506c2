"""Any photos in the space of a trained index: `apply`, and its stage, which no rule makes."""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from pipeline.collections.detect import detect
from pipeline.collections.records import DIVIDED
from pipeline.compute.multivectors import one_vector_each
from pipeline.config import loading
from pipeline.config.section import SPLITS, as_name
from pipeline.encoders.restore import stored_spec
from pipeline.errors import JointspaceError, UsageError
from pipeline.index.build import QUERIES
from pipeline.index.exact import evenly_spaced
from pipeline.index.gallery import remember_indexes
from pipeline.index.queries import QueryEncoder
from pipeline.run import Run, ShardJob, Stage, stage
from pipeline.run.jobs import StageRun
from pipeline.run.layout import Layout
from pipeline.run.reading.indexes import add_indexes, with_documents
from pipeline.run.reading.inputs import feature_shards
from pipeline.run.reading.models import describe_embeddings
from pipeline.run.runner import run_stage
from pipeline.storage.batch import publish_text
from pipeline.storage.commit import Commits, Provenance
from pipeline.storage.embeddings import write_embeddings
from pipeline.storage.files import plain
from pipeline.storage.index_changes import photo_digests, removed_photos, were_removed
from pipeline.storage.index_folder import ADDED, added_to, is_index, new_addition, remove_shard
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.json_files import fingerprint, publish_json, read_json
from pipeline.storage.locks import hold
from pipeline.storage.pairs import split_ids
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.stored_index import StoredIndex, open_index

if TYPE_CHECKING:
    from pydantic import JsonValue

RECORD = "applied.json"
"""In the folder of a run that `apply` made: where the photographs are."""
log = logging.getLogger(__name__)


@stage(
    version=1,
    gpu=True,
    reads=lambda _, layout, index: {"features": feature_shards(IndexShard(Path(index)).card.encoders, layout)},
    also=lambda _, index: {"model": IndexShard(Path(index)).model_digest},
    columns=("images", "sentences"),
    writes=lambda layout, index: layout.embeddings(plain(IndexShard(Path(index)).card.model, index)),
)
def embed_with_index(run: StageRun, jobs: Iterator[ShardJob], index: str) -> Iterator[int]:
    """Embed all images, and all sentences if there are some, with the model of the index shard `index`."""
    opened = StoredIndex([IndexShard(Path(index))])
    asker, stored = QueryEncoder(opened), opened.first.model()
    details = describe_embeddings(stored, opened.card.metric)
    for job in jobs:
        shards = {name: run.features.open(name, job.number) for name in asker.model.encoders}
        images = asker.embed_image({name: shard["features"] for name, shard in shards.items()})
        texts = run.manifest.texts(job.number)
        sides = {"images": images, "sentences": asker.embed_sentences(texts) if texts else images[:0]}
        sides = {name: np.ascontiguousarray(side, np.float32) for name, side in sides.items()}
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        write_embeddings(job.path, sides, ids, details, provenance=job.provenance)
        yield job.number


def apply_index(
    stages: Mapping[str, Stage],
    source: Path,
    photographs: Path,
    output: Path,
    name: str | None = None,
    changes: "Mapping[str, JsonValue] | None" = None,
    known: Collection[str] = (),
    removed: Set[str] = frozenset(),
) -> IndexShard | None:
    """Index `photographs` (a folder, a tar shard or a table of them) with the model of the index `source`, in the run
    `output`. The card calls them `name`. `stages` has the declared stages `ingest` and `extract`. `changes` are
    laid over the run's configuration.

    Finished work of an earlier call is kept. Photographs are left out if their sha256 is `known`, or if their sha256 or
    whole path is `removed`. Returns None if no photograph is left. Raises UsageError for a model that sees more of an
    image than its encoders make of the pixels, for a folder without photographs, and where an index, or another
    command's run, is in `output`.
    """
    photographs = Path(os.path.abspath(photographs))
    shard = open_index(source, added=False).first
    shard.check_rows()
    asker = QueryEncoder(StoredIndex([shard]))
    _require_whole_images(asker)
    encoders = [plain(encoder, shard.folder) for encoder in asker.model.encoders]
    run = _begin(photographs, output, encoders, changes or {})
    for encoder in encoders:
        _carry(run, encoder, shard)
    run_stage(run, stages["ingest"])
    images, root = run.manifest.images, run.manifest.root
    new = ~were_removed(images, root, removed) & [digest not in known for digest in images["sha256"].to_pylist()]
    if not new.any():
        return None
    if not new.all():
        log.info("%d of %d photos are new; all are encoded once, also for later additions", new.sum(), len(new))
    for encoder in encoders:
        run_stage(run, stages["extract"], (encoder,))
    run_stage(run, embed_with_index, (str(shard.folder.absolute()),))
    return _index(run, shard, asker, name or output.absolute().name, new)


def added_run(home: Path, photographs: Path) -> Path:
    """The folder of the run in which photographs are added to the index in the folder `home`."""
    for record in sorted((home / ADDED).glob(f"*/{RECORD}")):
        if os.path.realpath(read_json(record)["photographs"]) == os.path.realpath(photographs):
            return record.parent
    return new_addition(home, as_name(Path(os.path.abspath(photographs)).name))


def refresh_additions(stages: Mapping[str, Stage], home: Path) -> None:
    """Make the additions of the index in the folder `home` follow its model, without photos that the index itself has.

    `stages` has the declared stages `ingest` and `extract`. An addition of the run's own collection is removed, because
    the run decides which photos its index has. An addition is removed as well if the index has all of its photos.

    The caller holds the lock of `home`.
    """
    own = open_index(home, added=False).shards
    present = photo_digests(own)
    removed = removed_photos([*own, *map(IndexShard, added_to(home))])
    for folder in added_to(home):
        with hold(folder, wait=True):
            shard = IndexShard(folder)
            run = folder.parents[1]
            there = photo_digests([shard])
            if there <= present or shard.card.data_root == own[0].card.data_root:
                remove_shard(folder)
                if lost := len(there - present):
                    log.warning("%s: %d added photos are left out, since the run no longer has them", home, lost)
            elif (run / RECORD).exists() and (
                shard.model_digest != own[0].model_digest or not present.isdisjoint(there)
            ):
                others = [*own, *(IndexShard(path) for path in added_to(home) if run not in path.parents)]
                photographs = Path(read_json(run / RECORD)["photographs"])
                try:
                    name = shard.card.name
                    apply_index(stages, home, photographs, run, name, known=photo_digests(others), removed=removed)
                except JointspaceError as error:
                    log.warning("%s cannot follow the index that was built again: %s", run, error)


def _require_whole_images(asker: QueryEncoder) -> None:
    """Raise UsageError for a model that sees more of an image than its encoders make of the pixels."""
    name = asker.index.card.model
    if asker.multi_vector:
        raise UsageError(
            f"{name} compares regions, and an index does not say how to find them; apply a model with one vector per"
            " image"
        )
    for encoder, stored in asker.stored_encoders().items():
        if stored_spec(stored.settings, "image").reads != "pixels":
            raise UsageError(f"the encoder {encoder} of {name} takes regions; apply a model of whole images")


def _begin(photographs: Path, output: Path, encoders: list[str], changes: "Mapping[str, JsonValue]") -> Run:
    """The run in `output`, with a configuration that fits the photographs and, for `audit`, has `encoders`. Raises
    UsageError where there is an index of others that are still there, or a run that another command made."""
    folder = output.absolute()
    layout = Layout(folder)
    record = layout.file(RECORD).path
    before: str | None = read_json(record)["photographs"] if record.exists() else None
    indexed = is_index(folder)
    if before is None and (indexed or layout.config.exists() or layout.manifest.commit.exists()):
        raise UsageError(f"{output} already holds {'an index' if indexed else 'a run'}; choose another --output")
    if indexed and before and os.path.exists(before) and os.path.realpath(before) != os.path.realpath(photographs):
        raise UsageError(f"{output} is the index of {before}; choose another --output, or `jointspace add` to it")
    collection = detect(photographs)
    if collection.format == "vectors":
        raise UsageError(f"{photographs} has vectors but no photos; embed them in Python: jointspace.load(...).embed")
    files = {"gallery" if split == DIVIDED else split: file for split, file in collection.files.items()}
    values: dict[str, Any] = {
        "name": as_name(folder.name),
        "data_root": str(collection.root),
        "results_root": str(folder.parent),
        "demo": {"generate": False},
        "collection": {**replace(collection, files=files).settings(), "default_split": "gallery", "reject_limit": 1.0},
        "index": {"splits": list(SPLITS)},
    }
    values = loading.merge(values, changes)
    settings = loading.validate(loading.merge(loading.read_mapping(loading.default_path()), values))
    if before != str(photographs):
        publish_json(record, {"photographs": str(photographs)})
    carried = [{"name": name, "kind": "imported", "path": f"features/{name}"} for name in encoders]
    publish_text(layout.config, yaml.safe_dump({"encoders": carried, **values}, sort_keys=False))
    return Run(folder, settings)


def _carry(run: Run, encoder: str, shard: IndexShard) -> None:
    """Put an encoder of the index into the run, unless it is there; one that is code has to be one's own."""
    stored, artefact = shard.encoder(encoder), run.layout.encoder(encoder)
    provenance = Provenance(run.root, "apply", 1, {"encoder": stored.fingerprint})
    if not Commits(run.root).is_done(artefact.commit, provenance):
        about = {"settings": stored.settings, "details": stored.details, "provenance": provenance}
        path = artefact.path / "model.safetensors"
        write_parameters(path, ENCODER, stored.tensors, **about, library=stored.library)


def _index(run: Run, source: IndexShard, asker: QueryEncoder, name: str, new: np.ndarray) -> IndexShard:
    """Write the index of all photos that are `new` (n_images,), with the model of the index `source`."""
    card, manifest, settings = source.card, run.manifest, run.config.index
    embeddings, ids = run.embeddings(card.model), split_ids(manifest, settings.splits)
    owners = manifest.sentence_images[ids["sentences"]]
    ids = {"images": ids["images"][new[ids["images"]]], "sentences": ids["sentences"][new[owners]]}
    writer = IndexWriter(run.layout.index(card.model).path)
    measured = add_indexes(writer, embeddings, ids, settings, run.gpu, _queries(source, asker))
    for modality, rows in ids.items():
        table = getattr(manifest, modality).take(rows)
        writer.add_table(f"{modality}.parquet", with_documents(manifest, table) if modality == "images" else table)
    writer.link(source, but={file for file in card.files if file.partition(".")[0] in ids})
    inputs = {key: digest for key, digest in card.inputs.items() if not key.startswith("embeddings/")}
    inputs |= {**embeddings.inputs, "bundle": card.fingerprint}
    writer.commit(
        measured,
        card,
        but=["part", *ids],
        splits=settings.splits,
        data_root=str(manifest.root),
        name=name,
        inputs=inputs,
        fingerprint=fingerprint("applied", 1, {"splits": SPLITS, "index": settings.model_dump()}, inputs),
    )
    made = IndexShard(writer.folder)
    remember_indexes(made)
    return made


def _queries(shard: IndexShard, asker: QueryEncoder) -> np.ndarray | None:
    """Embed captions of the index, to measure an index of images with; None if it has no captions in plain words."""
    table = shard.packed_table("sentences")
    texts = [row["text"] for row in table.records(evenly_spaced(table.num_rows, QUERIES)) if row["text"]]
    with suppress(UsageError):
        return one_vector_each(asker.embed_sentences(texts)) if texts else None
    return None
