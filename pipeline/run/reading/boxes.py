"""Labelled boxes: their stored regions, and the texts and noun phrases that name them."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.errors import InputError
from pipeline.evaluate.phrases import Gold, named_boxes
from pipeline.foreign.box_formats import match_boxes
from pipeline.foreign.matching import some
from pipeline.run import Run
from pipeline.storage.regions import RegionRows, read_box_files, read_names
from pipeline.storage.tables import CORNERS
from pipeline.text.tree_conversions import list_noun_phrases

if TYPE_CHECKING:
    from pipeline.config.names import Config
    from pipeline.generate.snippets import SnippetRegions

log = logging.getLogger(__name__)

Corners = tuple[float, ...]
"""x1, y1, x2, y2 of a box, as float32 has them."""


def read_gold(run: Run, texts: Path | None = None) -> Gold:
    """The boxes of the manifest that have a label, and what labels may be called; or those of a file of `texts`, each
    with its first text for a label."""
    if texts:
        by_box = read_region_texts(run, texts)
        images, corners = zip(*by_box, strict=True)
        return Gold(np.array(images), np.array(corners, np.float32), [first for first, *_ in by_box.values()], {})
    table = run.manifest.boxes
    labels = table["label"].to_pylist()
    corners = np.stack([table[name].to_numpy() for name in CORNERS], axis=1)
    labelled = [row for row, label in enumerate(labels) if label]
    names = [labels[row].lower() for row in labelled]
    return Gold(table["image_id"].to_numpy()[labelled], corners[labelled], names, read_label_names(run.config))


def read_region_texts(run: Run, path: Path) -> dict[tuple[int, Corners], list[str]]:
    """The texts of each box in a file of boxes whose labels are texts, by the box's image and corners. Raises
    InputError where there is none."""
    texts: dict[tuple[int, Corners], list[str]] = {}
    manifest = run.manifest
    matched = match_boxes(read_box_files(path), manifest.images["path"].to_pylist(), manifest.root)
    if matched.unmatched:
        log.warning("%s has boxes for images that are not in the run: %s", path, some(matched.unmatched))
    for image, corners, box in zip(matched.images.tolist(), matched.corners.tolist(), matched.boxes, strict=True):
        if box.label.strip():
            texts.setdefault((image, tuple(corners)), []).append(box.label)
    if not texts:
        raise InputError(f"{path} has no text for any box of this run; put the texts into its column label")
    return texts


def read_label_names(config: "Config") -> dict[str, frozenset[str]]:
    """What labels may be called, by the collection's `phrases.names`; nothing where it has no such table."""
    path = Path(config.data_root) / (config.phrases.names or "")
    return read_names(path) if path.is_file() else {}


def read_regions(run: Run, encoders: Iterable[str], image_id: np.ndarray) -> "dict[str, SnippetRegions]":
    """Encoder -> the stored regions of the images `image_id` (n,), ascending."""
    from pipeline.generate.snippets import SnippetRegions

    regions = {}
    for name in encoders:
        stored = RegionRows(run.manifest, {name: run.layout.regions(name).folder}, image_id, complete=False)
        block = stored.packed(np.arange(len(image_id)))
        regions[name] = SnippetRegions(image_id, block.offsets, block.boxes, block.features)
    return regions


def read_boxes(
    run: Run, gold: Gold, encoders: Iterable[str], split: str, whole: bool
) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
    """The boxes of `gold` in `split` that are stored regions: encoder -> (k, dim), with `whole` (k, 2 dim) as
    SnippetRegions has it, and what answers show of each.

    Others are left out with a warning. Raises InputError where the split has no box with a label, or none is a region,
    and as `read_regions` does.
    """
    from pipeline.generate.snippets import find_regions

    rows = np.flatnonzero(run.manifest.splits[gold.images] == split)
    if not len(rows):
        raise InputError(f"no box of the {split} split has a label; add labelled boxes, or describe its images")
    rows = rows[np.argsort(gold.images[rows], kind="stable")]
    images, corners = gold.images[rows], gold.boxes[rows]
    regions = read_regions(run, encoders, np.unique(images))
    places = {name: find_regions(stored, images, corners) for name, stored in regions.items()}
    is_stored = np.all([numbers >= 0 for numbers in places.values()], axis=0)
    if not is_stored.any():
        raise InputError(
            f"no labelled box of the {split} split is a region in {run.root}; extract regions of the labelled boxes"
        )
    if not is_stored.all():
        log.warning("left out %d of %d labelled boxes: they are not stored regions", (~is_stored).sum(), len(rows))
    paths = run.manifest.images["path"].take(images[is_stored]).to_pylist()
    shown = [
        {"image_id": int(images[at]), "image": path, "box": corners[at].tolist(), "label": gold.labels[rows[at]]}
        for at, path in zip(np.flatnonzero(is_stored), paths, strict=True)
    ]
    return {name: stored.take(places[name][is_stored], whole) for name, stored in regions.items()}, shown


def read_naming_phrases(
    run: Run, boxes: Sequence[Mapping[str, Any]], analyze: Callable[[str], list[str]]
) -> list[list[list[str]]]:
    """Of each of `boxes` the noun phrases, as words, that name its label in its image's sentences."""
    from pipeline.run.reading.texts import read_sentence_trees

    images = np.array([box["image_id"] for box in boxes])
    owners = run.manifest.sentence_images
    sentence_id = np.flatnonzero(np.isin(owners, images))
    trees = read_sentence_trees(run, analyze, sentence_id)
    spoken = [
        (phrase, owners[sentence])
        for sentence, parsed in zip(sentence_id, trees, strict=True)
        for phrase in list_noun_phrases(parsed.tree)
    ]
    texts = [phrase.text.lower() for phrase, _ in spoken]
    heads = [phrase.head.lower() for phrase, _ in spoken]
    phrase_images = np.array([image for _, image in spoken], np.int64)
    labels = [box["label"] for box in boxes]
    phrases: list[list[list[str]]] = [[] for _ in boxes]
    pairs = named_boxes(texts, heads, phrase_images, labels, images, read_label_names(run.config))
    for phrase, box in pairs.tolist():
        phrases[box].append(spoken[phrase][0].text.split(" "))
    return phrases
