"""Adding indices to a bundle, for the commands that build one; and what the card says of the training."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config.schema.results import IndexSettings
    from pipeline.index.build import BuiltIndex
    from pipeline.index.build_gallery import BuiltGallery
    from pipeline.run import Run
    from pipeline.storage.bundle import BundleWriter
    from pipeline.storage.embeddings import Embeddings


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

    from pipeline.index import lists_on_gpu
    from pipeline.index.build_gallery import build_gallery, queries_of
    from pipeline.index.requirements import Requirements
    from pipeline.index.shortlist import Shortlist
    from pipeline.index.vectors import evenly_spaced
    from pipeline.storage.cards import INDEXED

    lists_on_gpu.use(gpu)
    several = embeddings.multi_vector
    requirements = Requirements(**settings.model_dump(include={field.name for field in fields(Requirements)}))
    shortlist = Shortlist(**settings.shortlist.model_dump())
    kind, cards, outlines = "fragments" if several else "global", {}, {}
    silent = not len(ids["sentences"]) and not several
    for modality, other in [("images", "sentences"), ("sentences", "images")][: 1 if silent else 2]:
        other = modality if silent else other
        outlines[modality] = embeddings.outline(modality, ids[modality]) if several else None
        if queries is None or not silent:
            asking = ids[other][evenly_spaced(len(ids[other]), queries_of(several))]
            queries = embeddings.read(other, asking)
        name = INDEXED[kind][modality]
        built = build_gallery(
            modality, embeddings.rows_of(modality, ids[modality]), outlines[modality], queries,
            embeddings.comparison, requirements, shortlist, lambda items, what: tqdm(items, what, disable=None), gpu,
        )  # fmt: skip
        _add_index(writer, embeddings.name, name, built.index)
        cards[name] = built.card()
        if built.cost:
            _log_cost(embeddings.name, modality, built, settings.recall_floor)
    if several:
        writer.add_outlines(outlines)
    return {"kind": kind, **({"score": embeddings.score} if several else {}), **cards}


def _log_cost(model: str, modality: str, built: "BuiltGallery", floor: float) -> None:
    """Log what the shortlist costs, and what to do where that is too much."""
    import logging

    cost, log = built.cost, logging.getLogger(__name__)
    log.info(
        "%s: %s finds %.3f of the ten best %s in %.1f ms, %.1f ms with everything", model,
        "a shortlist" if cost.shortlist else "scoring all", cost.recall, modality, 1000 * cost.seconds,
        1000 * cost.exact_seconds,
    )  # fmt: skip
    if cost.recall < floor:
        log.warning(
            "%s: this is below index.recall_floor %g; lengthen index.shortlist, or raise index.exact_limit to %d",
            model, floor, built.index.card.count,
        )  # fmt: skip


def _add_index(writer: "BundleWriter", model: str, name: str, built: "BuiltIndex") -> None:
    """Add an index to the bundle, and how it was chosen, if candidates were measured."""
    import logging

    from pipeline.report.figures import draw_tradeoff

    writer.add(f"{name}.faiss", built.data)
    if built.tradeoff:
        writer.add_json(f"{name}.tradeoff.json", built.tradeoff)
        writer.add(f"{name}.tradeoff.svg", draw_tradeoff(built.tradeoff, f"{model}, {name}"))
    logging.getLogger(__name__).info(
        "%s: %d %s in %s, index recall@10 %.3f, %.0f queries/s on a core",
        model, built.card.count, name, built.card.factory, built.card.recall, built.card.queries_per_second,
    )  # fmt: skip


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
