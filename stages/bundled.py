"""The bundle of a model: its indices, and what it takes from its run, so that queries can be embedded without it."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config import Config
    from pipeline.config.schema.results import IndexSettings
    from pipeline.run import Run
    from pipeline.run.layout import Artefact, Layout
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.commit import Provenance
    from pipeline.storage.embeddings import Embeddings
    from pipeline.storage.parameters import Parameters


def write_bundle(
    run: "Run",
    model: str,
    ids: "Mapping[str, np.ndarray]",
    folder: Path,
    about: Mapping[str, Any],
    provenance: "Provenance",
) -> None:
    """Write the bundle of the images and sentences `ids` of a run into `folder`; its card says `about`, too."""
    from pipeline.config.registry.stored import restore
    from pipeline.storage.bundle import Bundle, BundleWriter
    from pipeline.storage.card import CARD
    from pipeline.storage.commit import CARRIED, carry
    from pipeline.storage.files import read_bytes
    from pipeline.storage.json_files import require_same
    from pipeline.storage.parsers import code_of, find_carried_parser, remember
    from pipeline.storage.phrases import PhraseVectors
    from pipeline.storage.records import read_vocabulary
    from pipeline.storage.texts import ParseShard

    config, layout, manifest, settings = run.config, run.layout, run.manifest, run.config.index
    source, words = layout.model(model).path, vocabulary_of(config, layout, model)
    embeddings, parameters = run.embedded_model(model)
    mapping = restore(embeddings.registered, parameters.settings, parameters.tensors, source)
    encoders = read_encoders(mapping, parameters.details, source, run.root / "encoders")
    texts = read_text_encoders(mapping, parameters.details, source, layout)
    vocabulary = None
    if words:
        vocabulary = read_vocabulary(words.path)["fingerprint"]
        require_same("vocabulary", {str(words.path): vocabulary, str(source): parameters.details["vocabulary"]})

    parse = None
    if reads_trees(config, model):
        trained = layout.parser.path if trains_parser(config) else None
        named = trained, config.parse.pipeline, Path(config.weights_root)
        parses = ParseShard(layout.parses.folder, 0)
        parse = find_carried_parser(parameters, parses, layout.labels.path, *named)

    writer = BundleWriter(folder)
    indices = add_indices(writer, embeddings, ids, settings, run.gpu, _other_sentences(run, embeddings, ids))
    for modality, rows in ids.items():
        writer.add_table(f"{modality}.parquet", manifest.rows(modality, rows))
    if phrases := [PhraseVectors(layout.phrases(model, split).path) for split in phrase_splits(config, model)]:
        writer.add_regions(ids["images"], phrases)
    writer.add_parameters(source)
    if words:
        writer.add("vocabulary.json", read_bytes(words.path))
    for name in encoders:
        writer.add_parameters(layout.encoder(name).path, f"encoders/{name}/")
    for name in texts:
        writer.add_parameters(layout.text_encoder(name).path, f"text_encoders/{name}/")
    if parse:
        parse.add_to(writer.add)

    inputs = {**embeddings.inputs, "model": parameters.fingerprint}
    inputs |= {"vocabulary": vocabulary} if vocabulary else {}
    inputs |= {f"text_encoders/{name}": encoder.fingerprint for name, encoder in texts.items()}
    inputs |= {f"encoders/{name}": encoder.fingerprint for name, encoder in encoders.items()}
    inputs |= {f"phrases/{one.split}": one.fingerprint for one in phrases}
    inputs |= {"parser": parse.digest} if parse and parse.digest else {}
    writer.commit(
        {
            "model": embeddings.name,
            "registered": embeddings.registered,
            "metric": embeddings.metric,
            "dim": embeddings.dim,
            **indices,
            **about,
            "splits": list(settings.splits),
            "name": run.config.name,
            **describe_training(run, model),
            "data_root": str(manifest.root),
            "encoders": {name: encoder.settings for name, encoder in encoders.items()},
            "text_encoders": {name: {"kind": encoder.settings["kind"]} for name, encoder in texts.items()},
            **({"parse": parse.metadata} if parse else {}),
            "inputs": inputs,
            "fingerprint": provenance.fingerprint,
            CARRIED: carry(provenance, folder / CARD, provenance.fingerprint),
        }
    )
    remember(code_of(Bundle(writer.folder).card).values())


def add_indices(
    writer: "BundleWriter",
    embeddings: "Embeddings",
    ids: "Mapping[str, np.ndarray]",
    settings: "IndexSettings",
    gpu: Any,
    queries: "np.ndarray | None" = None,
) -> dict[str, Any]:
    """Add the indices of the images and sentences `ids`, and which vectors are of which item; returns what the card
    says.

    Without sentences there is no index of them, and that of the images is measured with `queries` (q, c), other
    sentences of the same space; where there are none either, with the images' own vectors.
    """
    from dataclasses import fields

    from tqdm import tqdm

    from pipeline.index.build import QUERIES, SET_QUERIES, build_gallery
    from pipeline.index.chooser import Requirements
    from pipeline.index.gallery import Shortlist
    from pipeline.index.vectors import evenly_spaced
    from pipeline.report.figures import draw_tradeoff
    from pipeline.storage.card import INDEXED

    model, several, log = embeddings.name, embeddings.multi_vector, logging.getLogger(__name__)
    requirements = Requirements(**settings.model_dump(include={field.name for field in fields(Requirements)}))
    shortlist = Shortlist(**settings.shortlist.model_dump())
    kind, cards, outlines = "fragments" if several else "global", {}, {}
    silent = not len(ids["sentences"]) and not several
    for modality, other in [("images", "sentences"), ("sentences", "images")][: 1 if silent else 2]:
        other = modality if silent else other
        outlines[modality] = embeddings.outline(modality, ids[modality]) if several else None
        if queries is None or not silent:
            asking = ids[other][evenly_spaced(len(ids[other]), SET_QUERIES if several else QUERIES)]
            queries = embeddings.read(other, asking)
        name = INDEXED[kind][modality]
        built = build_gallery(
            modality, embeddings.rows_of(modality, ids[modality]), outlines[modality], queries,
            embeddings.comparison, requirements, shortlist, lambda items, what: tqdm(items, what, disable=None), gpu,
        )  # fmt: skip
        writer.add(f"{name}.faiss", built.data)
        if built.tradeoff:
            writer.add_json(f"{name}.tradeoff.json", built.tradeoff)
            writer.add(f"{name}.tradeoff.svg", draw_tradeoff(built.tradeoff, f"{model}, {name}"))
        card = cards[name] = built.card
        log.info(
            "%s: %d %s in %s, index recall@10 %.3f, %.0f queries/s on a core",
            model, card["count"], name, card["factory"], card["recall@10"], card["queries_per_second"],
        )  # fmt: skip
        if cost := card.get("shortlist"):
            log.info(
                "%s: %s finds %.3f of the ten best %s in %.1f ms, %.1f ms with everything", model,
                "a shortlist" if cost["shortlist"] else "scoring all", cost["recall@10"], modality,
                1000 / cost["queries_per_second"], 1000 / cost["exact_queries_per_second"],
            )  # fmt: skip
            if cost["recall@10"] < settings.recall_floor:
                log.warning(
                    "%s: this is below index.recall_floor %g; lengthen index.shortlist, or raise index.exact_limit"
                    " to %d", model, settings.recall_floor, card["count"],
                )  # fmt: skip
    if several:
        writer.add_outlines(outlines)
    return {"kind": kind, **({"score": embeddings.score} if several else {}), **cards}


def describe_training(run: "Run", model: str) -> dict[str, Any]:
    """What a bundle's card says its model was trained on: the run, the splits and how many of their images have
    sentences, the sentences, and the fingerprint of the manifest. Nothing for a model that has learned from none."""
    import numpy as np

    from pipeline.storage.pairs import described_rows

    config, manifest = run.config, run.manifest
    splits = ["train", "dev"] if config.refitted(model) else ["train"]
    counts = {"images": 0, "sentences": 0}
    for sentence_id, image_id in described_rows(manifest, splits):
        counts["images"] += len(np.unique(image_id))
        counts["sentences"] += len(sentence_id)
    learned = any(config.model(one).spec.made_by != "adopt" for one in config.members(model) or [model])
    if not learned or not counts["sentences"]:
        return {}
    details = {"run": config.name, "splits": splits, **counts, "manifest": manifest.fingerprint}
    return {"trained_on": details}


def read_bundled_embeddings(run: "Run", bundle: Any) -> "Embeddings":
    """The run's embeddings of the model of a bundle."""
    from pipeline.storage.files import plain

    return run.embeddings(plain(bundle.card["model"], bundle.folder))


def _other_sentences(run: "Run", embeddings: "Embeddings", ids: "Mapping[str, np.ndarray]") -> "np.ndarray | None":
    """Sentences to measure an index of images with that has none of its own; None where it has some, or none is."""
    from pipeline.index.build import QUERIES
    from pipeline.index.vectors import evenly_spaced

    count = int(run.manifest.bounds("sentences")[-1])
    if embeddings.multi_vector or len(ids["sentences"]) or not count:
        return None
    return embeddings.read("sentences", evenly_spaced(count, QUERIES))


def reads_trees(config: "Config", model: str) -> bool:
    """Whether a model, or a member of an ensemble, takes sentences as trees."""
    return any(config.model(member).spec.trees for member in config.members(model) or [model])


def trains_parser(config: "Config") -> bool:
    return config.parse.engine == "spacy" and config.parse.pipeline is None


def phrase_splits(config: "Config", model: str) -> list[str]:
    """The splits whose regions go into the index of a model that embeds them one by one."""
    if config.model(model).spec.multi_vector:
        return []
    return [
        split
        for one, split in config.phrase_splits(config.phrases.splits)
        if one == model and split in config.index.splits
    ]


def read_encoders(
    model: Any, details: Mapping[str, Any], model_folder: Path, encoders_root: Path
) -> "dict[str, Parameters]":
    """The encoders that made the features of the model, and of its regions, by name."""
    from pipeline.storage.parameters import encoders_of, read_own_encoders

    used = {"encoders": model.encoders, **({"regions": model.region_encoders} if model.multi_vector else {})}
    found = {}
    for key, names in used.items():
        origins = encoders_of(model_folder, details[key], names)
        found |= read_own_encoders(encoders_root, origins)
        _warn_of_imported(origins.keys() - found.keys(), "features", "encoder", "with new photographs")
    return found


def read_text_encoders(
    model: Any, details: Mapping[str, Any], model_folder: Path, layout: "Layout"
) -> "dict[str, Parameters]":
    """The text encoders that made the vectors of the model's sentences, by name."""
    from pipeline.storage.parameters import TEXT_ENCODER, encoders_of, read_own_encoders

    names = getattr(model, "text_encoders", ())
    origins = encoders_of(model_folder, details.get("text_encoders") or {}, names)
    found = read_own_encoders(layout.text_encoder("").path, origins, TEXT_ENCODER)
    _warn_of_imported(origins.keys() - found.keys(), "vectors", "text encoder", "in words")
    return found


def _warn_of_imported(names: Iterable[str], what: str, encoder: str, how: str) -> None:
    for name in sorted(names):
        logging.getLogger(__name__).warning(
            "the %s of %s were imported, and no %s of this run makes them: the index cannot be searched %s; name the %s"
            " that made them in made_by", what, name, encoder, how, encoder,
        )  # fmt: skip


def vocabulary_of(config: "Config", layout: Any, model: str) -> "Artefact | None":
    """The words of a model that reads tokens or trees; an ensemble of such has its own."""
    if members := config.members(model):
        reads = any(config.model(member).spec.words for member in members)
        return layout.model_vocabulary(model) if reads else None
    return layout.token_vocabulary if config.model(model).spec.words else None
