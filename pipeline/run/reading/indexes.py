"""Writes the index of a model: its FAISS indexes, and copies of the models that embed queries without the run."""

import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import safetensors.numpy
from tqdm import tqdm

from pipeline.compute.multivectors import Items, MultiVectors, one_vector_each
from pipeline.config.results import IndexSettings
from pipeline.index.build import QUERIES, SET_QUERIES, build_gallery
from pipeline.index.calibration import BACKGROUND, MIN_DEV_IMAGES, Calibration
from pipeline.index.chooser import Requirements
from pipeline.index.exact import ArrayVectors, evenly_spaced
from pipeline.index.gallery import Shortlist, remember_indexes
from pipeline.run import Run
from pipeline.run.reading.inputs import vocabulary_of
from pipeline.storage.card import CARD, INDEXED, CardFacts, IndexCard, MeasuredIndexes, Modality, ScoreCard
from pipeline.storage.commit import Provenance, carry, read_commit, read_record
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.files import read_bytes
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import described_rows
from pipeline.storage.parameters import Origin

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class EncoderRole(NamedTuple):
    """The words for a kind of encoders in messages: its `name`, the name of its `vectors`, and the `queries` that need
    it."""

    name: str
    vectors: str
    queries: str


IMAGE_ENCODERS = EncoderRole("encoder", "features", "with new photos")
TEXT_ENCODERS = EncoderRole("text encoder", "vectors", "with text")


def write_index_shard(
    run: Run,
    model: str,
    ids: Mapping[str, np.ndarray],
    folder: Path,
    provenance: Provenance,
    part: Mapping[str, int] | None = None,
) -> None:
    """Write the images and sentences `ids` of a run into `folder` as an index shard.

    If several index shards are built together, `part` has the number of this shard, and in `of` how many there are.
    """
    settings = run.config.index
    embeddings = run.embeddings(model)
    mapping, parameters = run.restored(model)
    details = parameters.details
    names = _list_prepared(mapping.encoders, details["encoders"], IMAGE_ENCODERS)
    if mapping.multi_vector:
        names += _list_prepared(mapping.region_encoders, details["regions"], IMAGE_ENCODERS)
    encoders = {name: run.encoder(name) for name in names}
    names = _list_prepared(getattr(mapping, "text_encoders", ()), details.get("text_encoders") or {}, TEXT_ENCODERS)
    text_encoders = {name: run.text_encoder(name) for name in names}

    writer = IndexWriter(folder)
    measured = add_indexes(writer, embeddings, ids, settings, run.gpu, _other_sentences(run, embeddings, ids))
    _add_tables(writer, run, mapping.encoders, ids)
    writer.add_parameters(run.layout.model(model).path)
    for name in encoders:
        writer.add_parameters(run.layout.encoder(name).path, f"encoders/{name}/")
    for name in text_encoders:
        writer.add_parameters(run.layout.text_encoder(name).path, f"text_encoders/{name}/")
    inputs = {**embeddings.inputs, "model": parameters.fingerprint}
    if vocabulary := vocabulary_of(run.config, run.layout, model):
        writer.add("vocabulary.json", read_bytes(vocabulary.path))
        inputs["vocabulary"] = read_record(vocabulary.path)["fingerprint"]
    inputs |= {f"text_encoders/{name}": encoder.fingerprint for name, encoder in text_encoders.items()}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    calibration = _calibrate(run, embeddings)
    if calibration:
        writer.add(BACKGROUND, safetensors.numpy.save({"images": calibration.background}))
    facts: CardFacts = {
        "model": embeddings.name,
        "registered": embeddings.registered,
        "metric": embeddings.metric,
        "dim": embeddings.dim,
        "splits": settings.splits,
        "name": run.config.name,
        "calibration": calibration and calibration.card(),
        "data_root": str(run.manifest.root),
        "encoders": {name: encoder.settings for name, encoder in encoders.items()},
        "text_encoders": {name: {"kind": encoder.settings["kind"]} for name, encoder in text_encoders.items()},
        "inputs": inputs,
        "fingerprint": provenance.fingerprint,
        "commit": carry(provenance, folder / CARD, provenance.fingerprint),
    }
    if trained_on := describe_training(run, model):
        facts["trained_on"] = trained_on
    if part:
        facts["part"] = part
    writer.commit(measured, **facts)
    remember_indexes(IndexShard(folder))


def _list_prepared(names: Iterable[str], origins: Mapping[str, Origin], role: EncoderRole) -> list[str]:
    """Return the names of those encoders of a model that this run has prepared.

    For each other encoder a warning is logged. Its vectors are precomputed, as its entry in `origins` shows, so queries
    cannot be encoded.
    """
    prepared = []
    for name in names:
        if "encoder" in origins[name]:
            prepared.append(name)
            continue
        log.warning(
            "the %s of %s are precomputed, and this run does not have the %s that made them, so the index cannot be"
            " searched %s. Name that %s in the key made_by of %s.",
            role.vectors, name, role.name, role.queries, role.name, name,
        )  # fmt: skip
    return prepared


def _add_tables(writer: IndexWriter, run: Run, encoders: Iterable[str], ids: Mapping[str, np.ndarray]) -> None:
    """Add the tables of the images and sentences `ids` to an index shard."""
    for modality, rows in ids.items():
        table = run.manifest.rows(modality, rows)
        if modality == "images":
            mapped = _mapped_from(run, encoders, rows)
            if mapped.null_count < len(rows):
                table = table.append_column("mapped_from", mapped)
            table = with_documents(run.manifest, table)
        writer.add_table(f"{modality}.parquet", table)


def with_documents(manifest: Manifest, images: pa.Table) -> pa.Table:
    """Return the table `images` with the columns title, tags and description of the weak texts.

    A column is not added if none of the images has such a text, or if the table already has a column of that name.
    """
    shards = np.unique(images["image_id"].to_numpy() // manifest.shard_size)
    documents = pa.concat_tables([manifest.table("documents", number) for number in shards.tolist()])
    owners = pc.SetLookupOptions(documents["image_id"].combine_chunks())
    rows = pc.call_function("index_in", [images["image_id"]], owners)
    for field in documents.schema:
        if field.name not in images.column_names:
            text = documents[field.name].take(rows)
            is_empty = pc.call_function("equal", [text, pa.scalar("")])
            text = pc.call_function("if_else", [is_empty, pa.scalar(None, text.type), text])
            images = images if text.null_count == len(text) else images.append_column(field.name, text)
    return images


def add_indexes(
    writer: IndexWriter,
    embeddings: Embeddings,
    ids: Mapping[str, np.ndarray],
    settings: IndexSettings,
    gpu: "torch.device | None",
    queries: Items | None = None,
) -> MeasuredIndexes:
    """Build the FAISS indexes of the images and sentences `ids`, add them to an index shard, and return their cards.

    A multi-vector model also gets outlines, which are short summaries of its vector sets. The recall of the index of
    one modality is measured with queries of the other modality. If there are no sentences, only the images are indexed,
    and their index is measured with `queries` (q, c), which are other sentences in the same joint space, or with the
    vectors of the images if `queries` is None.
    """
    several = embeddings.multi_vector
    requirements = Requirements.of(settings)
    shortlist = Shortlist(**settings.shortlist.model_dump())
    kind = "fragments" if several else "global"
    indexes: dict[str, IndexCard] = {}
    outlines: dict[str, MultiVectors] = {}
    silent = not len(ids["sentences"]) and not several
    sides: list[tuple[Modality, Modality]] = [("images", "sentences"), ("sentences", "images")]
    alone: list[tuple[Modality, Modality]] = [("images", "images")]
    for modality, other in alone if silent else sides:
        measured_with = "captions" if other == "sentences" or (silent and queries is not None) else "images"
        outline = embeddings.outline(modality, ids[modality])
        if outline is not None:
            outlines[modality] = outline
        if queries is None or not silent:
            asking = ids[other][evenly_spaced(len(ids[other]), SET_QUERIES if several else QUERIES)]
            queries = embeddings.read(other, asking)
        name = INDEXED[kind][modality]
        built = build_gallery(
            modality, ArrayVectors(embeddings.rows_of(modality, ids[modality])), outline, queries,
            embeddings.comparison, requirements, shortlist,
            lambda items, what: tqdm(items, what, disable=None, leave=False), gpu,
        )  # fmt: skip
        writer.add(f"{name}.faiss", built.data)
        if built.tradeoff:
            writer.add_json(f"{name}.tradeoff.json", built.tradeoff)
        card = indexes[name] = built.card.model_copy(update={"measured_with": measured_with})
        del built  # it may be as large as the next index, and both may not fit into memory
        _report_index(embeddings.name, name, modality, card, settings)
    if outlines:
        writer.add_outlines(outlines)
    score = {"score": ScoreCard.model_validate(embeddings.rule._asdict())} if embeddings.rule else {}
    return MeasuredIndexes(kind=kind).model_copy(update={**score, **indexes})


def _report_index(model: str, name: str, modality: Modality, card: IndexCard, settings: IndexSettings) -> None:
    """Log the recall and the speed of an index, and a warning if its shortlist has a low recall."""
    log.info(
        "%s: %d %s in %s, index recall@10 %.3f, %.0f queries/s on a core",
        model, card.count, name, card.factory, card.recall, card.queries_per_second,
    )  # fmt: skip
    if cost := card.shortlist:
        log.info(
            "%s: %s finds %.3f of the ten best %s in %.1f ms; scoring all takes %.1f ms", model,
            "a shortlist" if cost.shortlist else "scoring all", cost.recall, modality,
            1000 / (cost.queries_per_second or math.inf), 1000 / (cost.exact_queries_per_second or math.inf),
        )  # fmt: skip
        if cost.recall < settings.recall_floor:
            log.warning(
                "%s: the shortlist of the index finds %.3f of the ten best %s, which is below index.recall_floor, %g."
                " Raise index.shortlist, or set index.exact_limit to %d.",
                model, cost.recall, modality, settings.recall_floor, card.count,
            )  # fmt: skip


def describe_training(run: Run, model: str) -> dict[str, Json] | None:
    """Return the entry `trained_on` of an index card: what a model was trained on.

    It has the name of the run, the splits, the number of their images with sentences, the number of these sentences,
    and the fingerprint of the manifest. Return None if the model was not trained on sentences of the run.
    """
    config, manifest = run.config, run.manifest
    splits = ["train", "dev"] if config.refitted(model) else ["train"]
    counts = {"images": 0, "sentences": 0}
    for sentence_id, image_id in described_rows(manifest, splits):
        counts["images"] += len(np.unique(image_id))
        counts["sentences"] += len(sentence_id)
    learned = any(config.model(member).spec.made_by != "adopt" for member in config.members(model) or [model])
    if not learned or not counts["sentences"]:
        return None
    return {"run": config.name, "splits": splits, **counts, "manifest": manifest.fingerprint}


def _mapped_from(run: Run, encoders: Iterable[str], image_id: np.ndarray) -> pa.Array:
    """Return for each image (n,) the encoder from whose features `map-features` computed the features of the model.

    `encoders` are the encoders of the model. The entry is null for an image whose features `extract` has computed.
    """
    bounds = run.manifest.bounds("images")
    names = np.full(bounds[-1], None, object)
    for encoder in run.config.extract.mapped.keys() & {*encoders}:
        shards = run.layout.features(encoder)
        for number in range(run.manifest.n_shards if shards.folder.exists() else 0):
            if mapped := read_commit(shards.commit(number)).details.get("mapped"):
                rows = np.arange(bounds[number], bounds[number + 1])
                names[np.delete(rows, mapped["but_for"])] = mapped["from"]
    return pa.array(names[image_id], pa.string())


def _calibrate(run: Run, embeddings: Embeddings) -> Calibration | None:
    """Calibrate the line between likely and less likely matches, on images of dev and all their sentences.

    At most fit.dev_images images are used. Return None, and log the reason, if the model or dev is not suitable.
    """
    if embeddings.multi_vector:
        reason = "the model has several vectors per photo"
    elif embeddings.refits:
        reason = "the model was trained on dev"
    else:
        count = sum(len(np.unique(image_id)) for _, image_id in described_rows(run.manifest, ["dev"]))
        reason = (
            f"dev has {count} photos with captions, but {MIN_DEV_IMAGES} are needed" if count < MIN_DEV_IMAGES else None
        )
    if reason:
        log.info("%s: searches will not show where likely matches end (%s)", embeddings.name, reason)
        return None
    pairs = run.pairs("dev").first(run.config.fit.dev_images)
    images = one_vector_each(embeddings.read("images", pairs.image_id))
    sentences = one_vector_each(embeddings.read("sentences", pairs.sentence_id))
    return Calibration.fit(images, sentences, pairs.owners, embeddings.metric, run.config.index.coverage)


def _other_sentences(run: Run, embeddings: Embeddings, ids: Mapping[str, np.ndarray]) -> "Items | None":
    """Return vectors of sentences of the run, as queries that measure the index of images `ids`.

    Return None if the index has sentences itself, if the run has none, or for a multi-vector model.
    """
    count = int(run.manifest.bounds("sentences")[-1])
    if embeddings.multi_vector or len(ids["sentences"]) or not count:
        return None
    return one_vector_each(embeddings.read("sentences", evenly_spaced(count, QUERIES)))
