"""Writing the index of a model: its FAISS indexes, its tables, and copies of the models that embed queries."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import safetensors.numpy
from tqdm import tqdm

from pipeline.compute.multivectors import Items, MultiVectors, one_vector_each
from pipeline.config.results import IndexSettings
from pipeline.index.build import ID_MAP_PREFIX, QUERIES, SET_QUERIES, build_gallery
from pipeline.index.calibration import BACKGROUND, MIN_DEV_IMAGES, Calibration
from pipeline.index.candidates import TrainedIndex
from pipeline.index.chooser import Requirements
from pipeline.index.exact import Vectors, evenly_spaced
from pipeline.index.gallery import Shortlist, open_faiss, remember_indexes
from pipeline.index.tuning import SearchSetting
from pipeline.index.tuning_queries import TextEmbedder, TuningQueries, choose_queries, words_of_names
from pipeline.run import Run
from pipeline.run.reading.inputs import vocabulary_of
from pipeline.run.reading.texts import RunTextEmbedder, read_queries
from pipeline.storage.card import CARD, INDEXED, CardFacts, IndexCard, MeasuredIndexes, Modality, ScoreCard
from pipeline.storage.commit import Provenance, carry, read_commit, read_record
from pipeline.storage.embeddings import Embeddings
from pipeline.storage.files import read_bytes
from pipeline.storage.index_shard import IndexShard, IndexWriter
from pipeline.storage.json_files import Json
from pipeline.storage.manifest import Manifest
from pipeline.storage.pairs import described_rows, split_ids
from pipeline.storage.parameters import Origin

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class EncoderRole(NamedTuple):
    """The words that messages use for image encoders, or for text encoders. `name` is the noun for such an encoder,
    `vectors` is the noun for its vectors, and `queries` describes the queries that need the encoder."""

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
    """Write some images and sentences of a run into `folder` as an index shard of the model `model`.

    `ids` has the ids of the `images` and of the `sentences`. `provenance` is the origin that the card notes. If the
    index has several shards, `part` has the number of this shard under `number` and the number of all shards under
    `of`. If the index has one shard, `part` is None.
    """
    settings = run.config.index
    embeddings = run.embeddings(model)
    mapping, parameters = run.restored(model)
    details = parameters.details
    names = _list_prepared(mapping.encoders, details["encoders"], IMAGE_ENCODERS)
    if mapping.multi_vector:
        names += _list_prepared(mapping.region_encoders, details["regions"], IMAGE_ENCODERS)
    encoders = {name: run.encoder(name) for name in names}
    required = getattr(mapping, "text_encoders", ())
    names = _list_prepared(required, details.get("text_encoders") or {}, TEXT_ENCODERS)
    text_encoders = {name: run.text_encoder(name) for name in names}

    writer = IndexWriter(folder)
    embeds_texts = mapping.sentence_view == "vectors" and len(text_encoders) == len(required)
    embedder = RunTextEmbedder(run, mapping) if embeds_texts else None
    every = evenly_spaced(int(run.manifest.bounds("sentences")[-1]), QUERIES)
    captions = ids["sentences"] if len(ids["sentences"]) or embeddings.multi_vector else every
    queries = find_queries(run, embeddings, ids["images"], read_sample(embeddings, "sentences", captions), embedder)
    share = partial(_shared_training, run, embeddings, part)
    measured = add_indexes(writer, embeddings, ids, settings, run.gpu, queries, share)
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

    `names` are the encoders of the model, and `origins` has the origin of the vectors of each encoder. If the origin is
    not an encoder of the run, the vectors are precomputed. A warning is then logged, because queries cannot be encoded
    without the encoder. `role` has the words of the warning.
    """
    prepared = []
    for name in names:
        if "encoder" in origins[name]:
            prepared.append(name)
            continue
        log.warning(
            "The %s of %s are precomputed, and this run does not have the %s that made them, so the index cannot be"
            " searched %s. Name that %s in the key made_by of %s.",
            role.vectors, name, role.name, role.queries, role.name, name,
        )  # fmt: skip
    return prepared


def _add_tables(writer: IndexWriter, run: Run, encoders: Iterable[str], ids: Mapping[str, np.ndarray]) -> None:
    """Add the tables of the images and sentences with the `ids` to an index shard.

    The table of the images also has the weak texts of the images. If features of an image were mapped from another
    encoder, the table has the column `mapped_from`. `encoders` are the names of the image encoders of the model.
    """
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

    An image without such a text has null in the column. A column is not added if none of the images has such a text, or
    if the table already has a column of that name.
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
    queries: TuningQueries,
    share: Callable[[Modality], Vectors | TrainedIndex | None] = lambda modality: None,
) -> MeasuredIndexes:
    """Build the FAISS indexes of the images and sentences `ids`, add them to an index shard, and return their cards.

    For a multi-vector model, outlines are added too, which say which vectors belong to which item. The index of the
    images is tuned and measured with `queries`, and the index of the sentences with images. If there are no sentences,
    only the images are indexed, unless the model is a multi-vector model.

    `share(modality)` returns the training that all shards of the index share (see `_shared_training`): the vectors on
    which a FAISS index is trained, or a trained index. It returns None if this shard trains its own FAISS indexes.
    """
    several = embeddings.multi_vector
    requirements = Requirements.from_settings(settings)
    shortlist = Shortlist(**settings.shortlist.model_dump())
    kind = "fragments" if several else "global"
    indexes: dict[str, IndexCard] = {}
    outlines: dict[str, MultiVectors] = {}
    sides: dict[Modality, TuningQueries] = {"images": queries}
    if several or len(ids["sentences"]):
        sides["sentences"] = TuningQueries(read_sample(embeddings, "images", ids["images"]), "images")
    for modality, asking in sides.items():
        outline = embeddings.outline(modality, ids[modality])
        if outline is not None:
            outlines[modality] = outline
        name = INDEXED[kind][modality]
        built = build_gallery(
            modality, Vectors(embeddings.rows_of(modality, ids[modality])), outline, asking.vectors,
            embeddings.comparison, requirements, shortlist,
            lambda items, what: tqdm(items, what, disable=None, leave=False), gpu,
            share(modality),
        )  # fmt: skip
        writer.add(f"{name}.faiss", built.write)
        if built.tradeoff:
            writer.add_json(f"{name}.tradeoff.json", built.tradeoff)
        card = indexes[name] = built.card.model_copy(update={"measured_with": asking.measured_with})
        del built  # This index may be as large as the next index, and both may not fit into memory.
        _report_index(embeddings.name, name, modality, card, settings)
    if outlines:
        writer.add_outlines(outlines)
    score = {"score": ScoreCard.model_validate(embeddings.rule._asdict())} if embeddings.rule else {}
    return MeasuredIndexes(kind=kind).model_copy(update={**score, **indexes})


def read_sample(embeddings: Embeddings, modality: Modality, ids: np.ndarray) -> Items:
    """Read the vectors of evenly spaced images or sentences among `ids`, with which an index can be measured.

    There are at most QUERIES items, or SET_QUERIES items of a multi-vector model.
    """
    most = SET_QUERIES if embeddings.multi_vector else QUERIES
    return embeddings.read(modality, ids[evenly_spaced(len(ids), most)])


def find_queries(
    run: Run, embeddings: Embeddings, image_id: np.ndarray, captions: Items | None, embedder: TextEmbedder | None
) -> TuningQueries:
    """Find the queries that tune and measure an index of the images `image_id` of a run.

    The queries are the vectors `captions`. If `captions` is None or empty, `embedder` embeds the queries of
    `hubness.queries`, the file names of the images, and plain phrases as queries. `embedder` is None if the model
    cannot embed texts. Without captions and texts, the vectors of the images are the queries.
    """
    images = read_sample(embeddings, "images", image_id)
    texts: list[str] = []
    if embedder is not None and (captions is None or not len(captions)):
        rows = run.manifest.rows("images", image_id[evenly_spaced(len(image_id), QUERIES)])
        texts = words_of_names(row["member"] or row["path"] for row in rows.select(["path", "member"]).to_pylist())
        if file := run.config.hubness.queries:
            texts = read_queries(Path(file)) + texts
    return choose_queries(images, embeddings.metric, captions, embedder, texts)


def _shared_training(
    run: Run, embeddings: Embeddings, part: Mapping[str, int] | None, modality: Modality
) -> Vectors | TrainedIndex | None:
    """Return the training that the FAISS indexes of several index shards share, for the shard that `part` describes.

    For the first shard, return the vectors of all shards, on which the index of this shard is trained. For the other
    shards, return the trained index of the first shard, without vectors, or None if this index has no inverted lists.
    Return None if `part` is None, because there is only one shard.
    """
    if part is None:
        return None
    if part["number"] == 0:
        ids = split_ids(run.manifest, run.config.index.splits)[modality]
        return Vectors(embeddings.rows_of(modality, ids))
    first = IndexShard(run.layout.index(run.config.bundle_names(embeddings.name)[0]).path)
    card = first.card.index_of(modality)
    if card is None or card.nprobe is None or card.factory.startswith(ID_MAP_PREFIX):
        return None
    index = open_faiss(first, modality, to_change=True)
    index.reset()
    return TrainedIndex(index, card.factory, SearchSetting(card.nprobe, card.efSearch, card.k_factor))


def _report_index(model: str, name: str, modality: Modality, card: IndexCard, settings: IndexSettings) -> None:
    """Log the recall and, with --verbose, the speed of the FAISS index `name` of a model.

    `card` has the measurements. A warning is logged if the shortlist of the index has a recall below
    index.recall_floor.
    """
    log.info(
        "The index of %s stores %d vectors of %s as %s. Its recall@10, measured with %s, is %.3f.",
        model, card.count, name, card.factory, card.measured_with, card.recall,
    )  # fmt: skip
    log.debug("%s: the index of the %s answers %.0f queries/s on one core.", model, name, card.queries_per_second)
    if cost := card.shortlist:
        exact = 1000 / (cost.exact_queries_per_second or math.inf)
        if cost.shortlist:
            log.info(
                "%s: a search with a shortlist finds %.3f of the ten best %s in %.1f ms per query. Scoring all %s takes"
                " %.1f ms.",
                model, cost.recall, modality, 1000 / (cost.queries_per_second or math.inf), modality, exact,
            )  # fmt: skip
        else:
            log.info("%s: a search scores all %s, which takes %.1f ms per query.", model, modality, exact)
        if cost.recall < settings.recall_floor:
            log.warning(
                "%s: the shortlist of the index finds %.3f of the ten best %s, which is below index.recall_floor, %g."
                " Raise index.shortlist, or set index.exact_limit to %d.",
                model, cost.recall, modality, settings.recall_floor, card.count,
            )  # fmt: skip


def describe_training(run: Run, model: str) -> dict[str, Json] | None:
    """Return the entry `trained_on` of an index card, which describes the training data of the model.

    The entry has the name of the run, the splits, the number of their images with sentences, the number of these
    sentences, and the fingerprint of the manifest. Return None if the model was not trained on sentences of the run.
    """
    config = run.config
    manifest = run.manifest
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
    """Return for each image (n,) the name of the encoder from whose features the features of the image were mapped.

    The stage `map-features` maps features. `encoders` are the encoders of the model. The entry is null for an image
    whose features `extract` has computed.
    """
    bounds = run.manifest.bounds("images").tolist()
    names = np.full(len(image_id), None, object)
    numbers = np.unique(image_id // run.manifest.shard_size).tolist()
    for encoder in run.config.extract.mapped.keys() & {*encoders}:
        shards = run.layout.features(encoder)
        for number in numbers if shards.folder.exists() else ():
            if mapped := read_commit(shards.commit(number)).details.get("mapped"):
                rows = np.arange(bounds[number], bounds[number + 1])
                names[np.isin(image_id, np.delete(rows, mapped["but_for"]))] = mapped["from"]
    return pa.array(names, pa.string())


def _calibrate(run: Run, embeddings: Embeddings) -> Calibration | None:
    """Calibrate the line between likely and less likely matches, on the first fit.dev_images images of dev.

    All sentences of these images are used. Return None, and log the reason, if the model or dev is not suitable.
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
        log.info("Searches of %s will not show where likely matches end, because %s.", embeddings.name, reason)
        return None
    pairs = run.pairs("dev").first(run.config.fit.dev_images)
    images = one_vector_each(embeddings.read("images", pairs.image_id))
    sentences = one_vector_each(embeddings.read("sentences", pairs.sentence_id))
    return Calibration.fit(images, sentences, pairs.owners, embeddings.metric, run.config.index.coverage)
