"""Any photographs in the space of a trained bundle: `apply`, and its stage, which no rule makes."""

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
from pipeline.config import loading
from pipeline.config.section import SPLITS, as_name
from pipeline.encoders.restore import stored_spec
from pipeline.errors import JointspaceError, UsageError
from pipeline.index.build import QUERIES
from pipeline.index.gallery import remember_indexes
from pipeline.index.queries import QueryEncoder
from pipeline.index.vectors import evenly_spaced
from pipeline.run import Run, ShardJob, Stage, stage
from pipeline.run.jobs import StageRun
from pipeline.run.layout import Layout
from pipeline.run.reading.indexes import add_indexes, with_documents
from pipeline.run.reading.inputs import feature_shards
from pipeline.run.reading.models import describe_embeddings
from pipeline.run.runner import run_stage
from pipeline.storage.batch import publish_text
from pipeline.storage.bundle import Bundle, BundleWriter
from pipeline.storage.bundles import open_bundle, photographs_of, removed_photos, were_removed
from pipeline.storage.card import ADDED, added_to, is_index, new_addition, remove_bundle
from pipeline.storage.commit import Commits, Provenance
from pipeline.storage.embeddings import write_embeddings
from pipeline.storage.files import plain
from pipeline.storage.json_files import fingerprint, publish_json, read_json
from pipeline.storage.locks import hold
from pipeline.storage.pairs import split_ids
from pipeline.storage.parameters import ENCODER, write_parameters

if TYPE_CHECKING:
    from pydantic import JsonValue

    from pipeline.compute.multivectors import Items

RECORD = "applied.json"
"""In the folder of a run that `apply` made: where the photographs are."""
log = logging.getLogger(__name__)


@stage(
    version=1,
    gpu=True,
    reads=lambda _, layout, bundle: {"features": feature_shards(Bundle(Path(bundle)).card["encoders"], layout)},
    also=lambda _, bundle: {"model": Bundle(Path(bundle)).card["inputs"]["model"]},
    columns=("images", "sentences"),
    writes=lambda layout, bundle: layout.embeddings(plain(Bundle(Path(bundle)).card["model"], bundle)),
)
def embed_with_bundle(run: StageRun, jobs: Iterator[ShardJob], bundle: str) -> Iterator[int]:
    """Embed all images, and the sentences where there are some, by the model in the folder `bundle`."""
    opened = Bundle(Path(bundle))
    asker, stored = QueryEncoder(opened), opened.model()
    details = describe_embeddings(stored, opened.card["metric"])
    for job in jobs:
        shards = {name: run.features.open(name, job.number) for name in asker.model.encoders}
        images = asker.embed_image({name: shard["features"] for name, shard in shards.items()})
        texts = run.manifest.texts(job.number)
        sides = {"images": images, "sentences": asker.embed_sentences(texts) if texts else images[:0]}
        sides = {name: np.ascontiguousarray(side, np.float32) for name, side in sides.items()}
        ids = {"images": job.image_id, "sentences": job.sentence_id}
        write_embeddings(job.path, sides, ids, details, provenance=job.provenance)
        yield job.number


def apply_bundle(
    stages: Mapping[str, Stage],
    source: Path,
    photographs: Path,
    output: Path,
    name: str | None = None,
    changes: "Mapping[str, JsonValue] | None" = None,
    known: Collection[str] = (),
    removed: Set[str] = frozenset(),
) -> Bundle | None:
    """The bundle of `photographs` (a folder, a tar shard or a table of them) by the model of the bundle `source`, in
    the run `output`; the card calls them `name`. `stages` has the declared stages `ingest` and `extract`. `changes` are
    laid over the run's configuration.

    Finished work of an earlier call is kept. Photographs are left out if their sha256 is `known`, or if their sha256 or
    whole path is `removed`. Returns None if no photograph is left. Raises UsageError for a model that sees more of an
    image than its encoders make of the pixels, for a folder without photographs, and where an index, or another
    command's run, is in `output`.
    """
    photographs = Path(os.path.abspath(photographs))
    bundle = open_bundle(source, added=False).parts[0]  # each has the model
    bundle.check_rows()
    asker = QueryEncoder(bundle)
    _require_whole_images(bundle, asker)
    encoders = [plain(encoder, bundle.folder) for encoder in asker.model.encoders]
    run = _begin(photographs, output, encoders, changes or {})
    for encoder in encoders:
        _carry(run, encoder, bundle)
    run_stage(run, stages["ingest"])
    images, root = run.manifest.images, run.manifest.root
    new = ~were_removed(images, root, removed) & [digest not in known for digest in images["sha256"].to_pylist()]
    if not new.any():
        return None
    if not new.all():
        log.info("%d of %d photos are new; all are encoded once, also for later additions", new.sum(), len(new))
    for encoder in encoders:
        run_stage(run, stages["extract"], (encoder,))
    run_stage(run, embed_with_bundle, (str(bundle.folder.absolute()),))
    return _index(run, bundle, asker, name or output.absolute().name, new)


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
    own = open_bundle(home, added=False).parts
    present, removed = photographs_of(own), removed_photos([*own, *map(Bundle, added_to(home))])
    for folder in added_to(home):
        with hold(folder, wait=True):
            card, run = Bundle(folder).card, folder.parents[1]
            there = photographs_of([Bundle(folder)])
            if there <= present or card["data_root"] == own[0].card["data_root"]:
                remove_bundle(folder)
                if lost := len(there - present):
                    log.warning("%s: %d added photos are left out, since the run no longer has them", home, lost)
            elif (run / RECORD).exists() and (
                card["inputs"]["model"] != own[0].card["inputs"]["model"] or not present.isdisjoint(there)
            ):
                others = [*own, *(Bundle(path) for path in added_to(home) if run not in path.parents)]
                photographs = Path(read_json(run / RECORD)["photographs"])
                try:
                    apply_bundle(
                        stages, home, photographs, run, card["name"], known=photographs_of(others), removed=removed
                    )
                except JointspaceError as error:
                    log.warning("%s cannot follow the index that was built again: %s", run, error)


def _require_whole_images(bundle: Bundle, asker: QueryEncoder) -> None:
    """Raises UsageError for a model that sees more of an image than its encoders make of the pixels."""
    name = bundle.card["model"]
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


def _carry(run: Run, encoder: str, bundle: Bundle) -> None:
    """Put an encoder of the bundle into the run, unless it is there; one that is code has to be one's own."""
    stored, artefact = bundle.encoder(encoder), run.layout.encoder(encoder)
    provenance = Provenance(run.root, "apply", 1, {"encoder": stored.fingerprint})
    if not Commits(run.root).is_done(artefact.commit, provenance):
        about = {"settings": stored.settings, "details": stored.details, "provenance": provenance}
        path = artefact.path / "model.safetensors"
        write_parameters(path, ENCODER, stored.tensors, **about, library=stored.library)


def _index(run: Run, bundle: Bundle, asker: QueryEncoder, name: str, new: np.ndarray) -> Bundle:
    """Write the bundle of all photographs that are `new` (n_images,)."""
    source, manifest, settings = bundle.card, run.manifest, run.config.index
    embeddings, ids = run.embeddings(source["model"]), split_ids(manifest, settings.splits)
    owners = manifest.sentence_images[ids["sentences"]]
    ids = {"images": ids["images"][new[ids["images"]]], "sentences": ids["sentences"][new[owners]]}
    writer = BundleWriter(run.layout.index(source["model"]).path)
    about = add_indexes(writer, embeddings, ids, settings, run.gpu, _queries(bundle, asker))
    for modality, rows in ids.items():
        table = getattr(manifest, modality).take(rows)
        writer.add_table(f"{modality}.parquet", with_documents(manifest, table) if modality == "images" else table)
    writer.link(bundle, but={file for file in source["files"] if file.partition(".")[0] in ids})
    inputs = {key: digest for key, digest in source["inputs"].items() if not key.startswith("embeddings/")}
    inputs |= {**embeddings.inputs, "bundle": source["fingerprint"]}
    card = {key: value for key, value in source.items() if key not in ("files", "part", *ids)}
    digest = fingerprint("applied", 1, {"splits": SPLITS, "index": settings.model_dump()}, inputs)
    about |= {"splits": list(settings.splits), "data_root": str(manifest.root), "name": name}
    writer.commit({**card, **about, "inputs": inputs, "fingerprint": digest})
    made = Bundle(writer.folder)
    remember_indexes(made)
    return made


def _queries(bundle: Bundle, asker: QueryEncoder) -> "Items | None":
    """Embed sentences of an index, to measure an index of images with. Return None where it has none in plain words."""
    table = bundle.packed_table("sentences")
    texts = [row["text"] for row in table.records(evenly_spaced(table.num_rows, QUERIES)) if row["text"]]
    with suppress(UsageError):
        return asker.embed_sentences(texts) if texts else None
    return None
