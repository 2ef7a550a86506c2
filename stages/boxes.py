"""Labelled boxes: their stored regions, and the noun phrases that name them."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.remote.paths import place
from pipeline.run import Outside

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config import Config
    from pipeline.evaluate.phrase_ranking import Gold
    from pipeline.generate.snippets import SnippetRegions
    from pipeline.images.box_formats import Matched
    from pipeline.storage.manifest import Manifest
    from pipeline.text.trees import SentenceTrees

log = logging.getLogger(__name__)

Corners = tuple[float, ...]
"""x1, y1, x2, y2 of a box, as float32 has them."""


def read_gold(settings: "Config", manifest: "Manifest", boxes_path: Path | None) -> "Gold":
    """The boxes that have a label, the manifest's or those in `boxes_path`, and what labels may be called."""
    import numpy as np

    from pipeline.evaluate.phrase_ranking import Gold
    from pipeline.storage.phrases import CORNERS

    if boxes_path is None:
        table = manifest.boxes
        images, labels = table["image_id"].to_numpy(), table["label"].to_pylist()
        corners = np.stack([table[name].to_numpy() for name in CORNERS], axis=1)
    else:
        known = _match_boxes(manifest, boxes_path)
        images, corners, labels = known.images, known.corners, [box.label for box in known.boxes]
    labelled = [row for row, label in enumerate(labels) if label]
    names = [labels[row].lower() for row in labelled]
    return Gold(images[labelled], corners[labelled], names, read_label_names(settings))


def _match_boxes(manifest: "Manifest", path: Path) -> "Matched":
    """The boxes in a file, or a folder of them, of the run's images."""
    from pipeline.images.box_formats import match_boxes
    from pipeline.images.matching import some
    from pipeline.storage.regions import read_box_files

    known = match_boxes(read_box_files(path), manifest.images["path"].to_pylist(), manifest.root)
    if known.unmatched:
        log.warning("%s has boxes for images that the run does not have: %s", path, some(known.unmatched))
    return known


def region_texts_path(config: "Config") -> Path | None:
    """The file of texts that people wrote for boxes, `describe.region_texts`; None where there is none."""
    return Path(config.data_root) / config.describe.region_texts if config.describe.region_texts else None


def read_region_texts(manifest: "Manifest", path: Path) -> "dict[tuple[int, Corners], list[str]]":
    """The texts of each box in a file of boxes whose labels are texts, by the box's image and corners. Raises
    InputError where there is none."""
    from pipeline.errors import InputError

    found: dict[tuple[int, Corners], list[str]] = {}
    known = _match_boxes(manifest, path)
    for image, corners, box in zip(known.images.tolist(), known.corners.tolist(), known.boxes, strict=True):
        if box.label.strip():
            found.setdefault((image, tuple(corners)), []).append(box.label)
    if not found:
        raise InputError(f"{path} has no text for a box of an image of this run; give some in its column label")
    return found


def gold_of_texts(texts: "Mapping[tuple[int, Corners], Sequence[str]]") -> "Gold":
    """The boxes of `texts`, each with the first of its own for a label."""
    import numpy as np

    from pipeline.evaluate.phrase_ranking import Gold

    images, corners = zip(*texts, strict=True)
    return Gold(np.array(images), np.array(corners, np.float32), [own[0] for own in texts.values()], {})


def label_names(config: "Config") -> dict[str, Outside]:
    """The file that says what labels of boxes may be called, or that of texts for boxes, as an input of a stage."""
    root = place(config.data_root)
    if texts := region_texts_path(config):
        return {"region_texts": Outside(texts)}
    if config.demo.generate:  # the table is drawn with the rest
        return {"names": Outside(root / "demo.json")}
    path = root / (config.phrases.names or "")
    return {"names": Outside(path)} if isinstance(path, Path) and path.is_file() else {}


def read_label_names(settings: "Config") -> dict[str, frozenset[str]]:
    """What labels may be called, by the collection's `phrases.names`; nothing where it has no such table."""
    from pipeline.storage.phrases import read_names

    path = place(settings.data_root) / (settings.phrases.names or "")
    return read_names(path) if isinstance(path, Path) and path.is_file() else {}


def read_regions(
    manifest: "Manifest", regions_root: Path, encoders: Iterable[str], where: Path, image_id: "np.ndarray"
) -> dict[str, "SnippetRegions"]:
    """Encoder -> the stored regions of the images `image_id` (n,), ascending, by the `encoders` that the file `where`
    names."""
    import numpy as np

    from pipeline.generate.snippets import SnippetRegions
    from pipeline.storage.files import plain
    from pipeline.storage.rows import RegionRows

    found = {}
    for name in encoders:
        stored = RegionRows(manifest, {name: regions_root / plain(name, where)}, image_id, complete=False)
        block = stored.packed(np.arange(len(image_id)))
        found[name] = SnippetRegions(image_id, block.offsets, block.boxes, block.features)
    return found


def read_boxes(
    gold: "Gold", manifest: "Manifest", regions_root: Path, encoders: Iterable[str], where: Path, split: str,
    whole: bool,
) -> tuple[dict[str, "np.ndarray"], list[dict[str, Any]]]:  # fmt: skip
    """The boxes of `gold` in `split` that are stored regions: encoder -> (k, dim), with `whole` (k, 2 dim) as
    SnippetRegions has it, and what answers show of each.

    Others are left out with a warning. Raises InputError where the split has no box with a label, or none is a region,
    and as `read_regions` does.
    """
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.generate.snippets import find_regions

    rows = np.flatnonzero(manifest.splits[gold.images] == split)
    if not len(rows):
        raise InputError(f"no box of the {split} split has a label; give boxes with labels, or describe its images")
    rows = rows[np.argsort(gold.images[rows], kind="stable")]
    images, corners = gold.images[rows], gold.boxes[rows]
    regions = read_regions(manifest, regions_root, encoders, where, np.unique(images))
    places = {name: find_regions(own, images, corners) for name, own in regions.items()}
    stored = np.all([own >= 0 for own in places.values()], axis=0)
    if not stored.any():
        raise InputError(
            f"no labelled box of the {split} split is a region in {regions_root}; extract the regions of these boxes"
        )
    if not stored.all():
        log.warning("%d of %d labelled boxes are not stored regions and are left out", (~stored).sum(), len(rows))
    paths = manifest.images["path"].take(images[stored]).to_pylist()
    shown = [
        {"image_id": int(images[at]), "image": path, "box": corners[at].tolist(), "label": gold.labels[rows[at]]}
        for at, path in zip(np.flatnonzero(stored), paths, strict=True)
    ]
    return {name: own.take(places[name][stored], whole) for name, own in regions.items()}, shown


def read_sentence_trees(
    manifest: "Manifest", parses_folder: Path, analyze: Callable[[str], list[str]], sentence_id: "np.ndarray"
) -> list["SentenceTrees"]:
    """The trees of the sentences `sentence_id` (m,), ascending, over the words of `analyze`."""
    from pipeline.storage.trees import ParseShards
    from stages.inputs import read_trees

    wanted, trees = set(sentence_id.tolist()), []
    for number in range(manifest.n_shards):
        rows = manifest.shard(number)
        every = read_trees(ParseShards(manifest, parses_folder).open(number), manifest.texts(number), analyze)
        trees += [tree for sentence, tree in enumerate(every, rows.first_sentence) if sentence in wanted]
    return trees


def read_naming_phrases(
    boxes: Sequence[Mapping[str, Any]], settings: "Config", manifest: "Manifest", parses_folder: Path, analyze: Callable
) -> list[list[list[str]]]:
    """Of each of `boxes` the noun phrases, as words, that name its label in its image's sentences."""
    import numpy as np

    from pipeline.evaluate.phrases import named_boxes
    from pipeline.text.conversions import list_noun_phrases

    images = np.array([box["image_id"] for box in boxes])
    sentence_id = np.flatnonzero(np.isin(manifest.sentence_images, images))
    trees = read_sentence_trees(manifest, parses_folder, analyze, sentence_id)
    spoken = [
        (phrase, manifest.sentence_images[sentence])
        for sentence, one in zip(sentence_id, trees, strict=True)
        for phrase in list_noun_phrases(one.tree)
    ]
    texts, heads = ([getattr(phrase, part).lower() for phrase, _ in spoken] for part in ("text", "head"))
    owners = np.array([image for _, image in spoken], np.int64)
    found: list[list[list[str]]] = [[] for _ in boxes]
    labels = [box["label"] for box in boxes]
    for phrase, box in named_boxes(texts, heads, owners, labels, images, read_label_names(settings)).tolist():
        found[box].append(spoken[phrase][0].text.split(" "))
    return found
