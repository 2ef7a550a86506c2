"""Embedding and indexing new photos with the model of an existing index, for the commands `apply` and `add`."""

import logging
import os
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
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
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.index.build import QUERIES
from pipeline.index.exact import evenly_spaced
from pipeline.index.gallery import remember_indexes
from pipeline.index.queries import QueryEncoder
from pipeline.printable import printable
from pipeline.run import Run, ShardJob, Stage, StageRun, stage
from pipeline.run.layout import Layout
from pipeline.run.reading.indexes import add_indexes, find_queries, read_sample, with_documents
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
from pipeline.storage.manifest import REJECTS, read_rejects
from pipeline.storage.pairs import split_ids
from pipeline.storage.parameters import ENCODER, write_parameters
from pipeline.storage.stored_index import StoredIndex, open_index

if TYPE_CHECKING:
    from pydantic import JsonValue

RECORD = "applied.json"
"""Name of the file, in the folder of a run, that has the path of the new photos. A run with this file was made by
`apply` or `add`."""
MAX_LISTED_REJECTS = 20
"""Maximum number of rejects that are logged if `apply_index` fails and removes the list of rejects."""
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
    """Embed all images and sentences of a run with the model of the index shard in the folder `index`.

    Yield the number of each shard of the run when its embeddings are written.
    """
    opened = StoredIndex([IndexShard(Path(index))])
    asker = QueryEncoder(opened)
    stored = opened.first.model()
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
    """Index new photos with the model of an existing index, and return the new index shard.

    `stages` has the declared stages `ingest` and `extract`. `source` is the folder of the existing index. `photographs`
    is a folder, a tar shard or a table of photos. The new index is written into a run in the folder `output`. `name` is
    the name on its index card, by default the name of `output`. `changes` are keys that are merged into the
    configuration of this run.

    Finished work of an earlier call is kept. A photo is not indexed if its sha256 is in `known`, or if its sha256 or
    absolute path is in `removed`. Returns None if no photo remains. Raises UsageError if the model uses regions, if
    `photographs` has no photos, or if `output` contains an index of other photos or a run of another command. Raises
    InputError if no photo can be used. After such an error, everything that the call has written is removed, unless an
    earlier call began the run in `output`.
    """
    photographs = Path(os.path.abspath(photographs))
    shard = open_index(source, added=False).first
    shard.check_rows()
    asker = QueryEncoder(StoredIndex([shard]))
    _require_whole_images(asker)
    encoders = [plain(encoder, shard.folder) for encoder in asker.model.encoders]
    with _nothing_left_after_refusal(output):
        run = _begin(photographs, output, encoders, changes or {})
        for encoder in encoders:
            _carry(run, encoder, shard)
        run_stage(run, stages["ingest"])
    images = run.manifest.images
    root = run.manifest.root
    new = ~were_removed(images, root, removed) & [digest not in known for digest in images["sha256"].to_pylist()]
    if not new.any():
        return None
    if not new.all():
        log.debug("All %d photos are encoded, but only %d of them are new and are indexed.", len(new), new.sum())
    for encoder in encoders:
        run_stage(run, stages["extract"], (encoder,))
    run_stage(run, embed_with_index, (str(shard.folder.absolute()),))
    return _index(run, shard, asker, name or output.absolute().name, new)


@contextmanager
def _nothing_left_after_refusal(output: Path) -> Iterator[None]:
    """Remove everything that the block has written into the folder `output` if it raises InputError or UsageError.

    Because the list of rejects is removed too, its first MAX_LISTED_REJECTS rejects are logged. Nothing is removed if
    `output` has the work of an earlier call.
    """
    resumed = (output / RECORD).exists()
    before = set(output.iterdir()) if output.is_dir() else None
    try:
        yield
    except (InputError, UsageError) as error:
        if resumed or not output.is_dir():
            raise
        report = Layout(output.absolute()).manifest.path.with_name(REJECTS)
        rejects = list(read_rejects(report)) if report.exists() else []
        for reject in rejects[:MAX_LISTED_REJECTS]:
            log.warning("%s was rejected: %s.", printable(reject["file"]), printable(reject["reason"]))
        for path in set(output.iterdir()) - (before or set()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if before is None:
            output.rmdir()
            if output.parent.name == ADDED and not any(output.parent.iterdir()):
                output.parent.rmdir()
        error.args = (str(error).replace(f" {report} lists the reasons.", ""),)
        raise


def added_run(home: Path, photographs: Path) -> Path:
    """Return the folder of the run that adds the photos in `photographs` to the index in the folder `home`.

    It is the existing run for the same photos, or else a new folder.
    """
    for record in sorted((home / ADDED).glob(f"*/{RECORD}")):
        if os.path.realpath(read_json(record)["photographs"]) == os.path.realpath(photographs):
            return record.parent
    return new_addition(home, as_name(Path(os.path.abspath(photographs)).name))


def refresh_additions(stages: Mapping[str, Stage], home: Path) -> None:
    """Update the additions of the index in the folder `home` after the index was built anew.

    An addition is an index shard of photos that `add` has added. An addition is removed if the index has all of its
    photos. An addition is also removed if its photos are in the folder of the run's collection, because the run decides
    which photos of this folder are indexed.

    An addition that `add` can repeat is embedded anew if the model of the index has changed, or if the index now has
    some of its photos. The new addition does not have photos that are in the index or in another addition, or that were
    removed. If an addition cannot be embedded, a warning is logged.

    `stages` has the declared stages `ingest` and `extract`. The caller must hold the lock of `home`.
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
                    log.warning(
                        "%d added photos were removed from the index %s, because the collection of the run no longer"
                        " contains them. To get these photos back, put them into data_root of the run again.",
                        lost,
                        home,
                    )
            elif (run / RECORD).exists() and (
                shard.model_digest != own[0].model_digest or not present.isdisjoint(there)
            ):
                others = [*own, *(IndexShard(path) for path in added_to(home) if run not in path.parents)]
                photographs = Path(read_json(run / RECORD)["photographs"])
                try:
                    name = shard.card.name
                    apply_index(stages, home, photographs, run, name, known=photo_digests(others), removed=removed)
                except JointspaceError as error:
                    log.warning(
                        "The added photos of %s could not be embedded for the new index, so a search does not find"
                        " these photos: %s To add the photos again, run: %s",
                        run,
                        error,
                        shlex.join(["jointspace", "add", str(home), str(photographs)]),
                    )


def _require_whole_images(asker: QueryEncoder) -> None:
    """Raise UsageError if the model, or one of its encoders, uses regions of images."""
    name = asker.index.card.model
    if asker.multi_vector:
        raise UsageError(
            f"The model {name} compares image regions, and an index does not record how to find regions. Use the index"
            " of a model with one vector per image, such as ncca."
        )
    for encoder, stored in asker.stored_encoders().items():
        if stored_spec(stored.settings, "image").reads != "pixels":
            raise UsageError(
                f"The encoder {encoder} of {name} needs image regions. Use the index of a model of whole images, such"
                " as ncca."
            )


def _begin(photographs: Path, output: Path, encoders: list[str], changes: "Mapping[str, JsonValue]") -> Run:
    """Write the configuration of a run of the photos into `output`, and return the run.

    `changes` are keys that are merged into the configuration. The stored configuration also lists `encoders`, so that
    `audit` can read their features. Raises UsageError if `photographs` has no photos, or if `output` contains an index
    of other photos that still exist, or a run of another command.
    """
    folder = output.absolute()
    layout = Layout(folder)
    record = layout.file(RECORD).path
    before: str | None = read_json(record)["photographs"] if record.exists() else None
    indexed = is_index(folder)
    if before is None and (indexed or layout.config.exists() or layout.manifest.commit.exists()):
        raise UsageError(
            f"{output} already contains {'an index' if indexed else 'a run'} that `apply` did not make. Choose another"
            " folder with --output."
        )
    if indexed and before and os.path.exists(before) and os.path.realpath(before) != os.path.realpath(photographs):
        raise UsageError(
            f"{output} is the index of {before}. Choose another --output, or add the photos to this index with"
            f" `jointspace add`."
        )
    collection = detect(photographs)
    if collection.format == "vectors":
        raise UsageError(
            f"{photographs} has vectors but no photos. Embed the vectors in Python with jointspace.load(...).embed."
        )
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
    """Copy an encoder of the index shard into the run, unless the run already has it."""
    stored = shard.encoder(encoder)
    artefact = run.layout.encoder(encoder)
    provenance = Provenance(run.root, "apply", 1, {"encoder": stored.fingerprint})
    if not Commits(run.root).is_done(artefact.commit, provenance):
        about = {"settings": stored.settings, "details": stored.details, "provenance": provenance}
        path = artefact.path / "model.safetensors"
        write_parameters(path, ENCODER, stored.tensors, **about, library=stored.library)


def _index(run: Run, source: IndexShard, asker: QueryEncoder, name: str, new: np.ndarray) -> IndexShard:
    """Write the index of the photos of `run` for which `new` (n_images,) is true, with the model of the shard `source`.

    `asker` embeds queries with this model. `name` is the name on the card of the index. Return the written shard.
    """
    card = source.card
    manifest = run.manifest
    settings = run.config.index
    embeddings = run.embeddings(card.model)
    ids = split_ids(manifest, settings.splits)
    owners = manifest.sentence_images[ids["sentences"]]
    ids = {"images": ids["images"][new[ids["images"]]], "sentences": ids["sentences"][new[owners]]}
    writer = IndexWriter(run.layout.index(card.model).path)
    own = read_sample(embeddings, "sentences", ids["sentences"])
    captions = own if len(own) else _embed_captions(source, asker)
    queries = find_queries(run, embeddings, ids["images"], captions, asker)
    measured = add_indexes(writer, embeddings, ids, settings, run.gpu, queries)
    for modality, rows in ids.items():
        table = getattr(manifest, modality).take(rows)
        writer.add_table(f"{modality}.parquet", with_documents(manifest, table) if modality == "images" else table)
    # A calibration with captions that a user has written for the source's photos does not hold for other photos, so it
    # is left out.
    lost = ["calibration"] if card.calibration and card.calibration.photos is not None else []
    replaced = {*ids, *(["background"] if lost else [])}
    writer.link(source, but={file for file in card.files if file.partition(".")[0] in replaced})
    inputs = {key: digest for key, digest in card.inputs.items() if not key.startswith("embeddings/")}
    inputs |= {**embeddings.inputs, "bundle": card.fingerprint}
    writer.commit(
        measured,
        card,
        but=["part", *ids, *lost],
        splits=settings.splits,
        data_root=str(manifest.root),
        name=name,
        inputs=inputs,
        fingerprint=fingerprint("applied", 2, {"splits": SPLITS, "index": settings.model_dump()}, inputs),
    )
    made = IndexShard(writer.folder)
    remember_indexes(made)
    return made


def _embed_captions(shard: IndexShard, asker: QueryEncoder) -> np.ndarray | None:
    """Embed a sample of the captions of an index shard. The vectors are queries that measure the recall of a new index.

    `asker` embeds captions with the model of the shard. Return None if the shard stores no caption texts, or if the
    model cannot embed texts.
    """
    table = shard.packed_table("sentences")
    texts = [row["text"] for row in table.records(evenly_spaced(table.num_rows, QUERIES)) if row["text"]]
    with suppress(UsageError):
        return one_vector_each(asker.embed_sentences(texts)) if texts else None
    return None
