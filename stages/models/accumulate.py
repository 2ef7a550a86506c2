"""`accumulate`: sums the moments of image-text pairs, from which linear models are fitted."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.compute import runtime
from pipeline.run import Inputs, Layout, Run, ShardJob, Shards, StageRun, stage
from pipeline.run.reading.inputs import feature_shards

if TYPE_CHECKING:
    from pipeline.config.names import Config

STUDY = "study/"
"""Prefix of the names of pairs whose moments are summed separately for each fold. The stage `study` reads these
moments."""
AUXILIARY = "auxiliary/"
"""Prefix of the names of pairs of images and weak texts."""


def _choices(config: "Config") -> list[tuple[str]]:
    plain = ["target", *(f"{AUXILIARY}{name}" for name in config.documents)]
    return [(name,) for name in ["dev", *plain, *(f"{STUDY}{name}" for name in plain)]]


def _encoders(config: "Config", pairs: str) -> list[str]:
    """Return the names of the image encoders whose features are summed for the pairs with the name `pairs`.

    The result has the encoders of the run. The study compares encoders on `study/target` and `study/auxiliary/all`, so
    for these pairs the result also has the encoders that only the study uses.
    """
    every = pairs in (f"{STUDY}target", f"{STUDY}{AUXILIARY}all")
    return [encoder.name for encoder in (config.every_encoder if every else config.encoders)]


def _texts(config: "Config", layout: Layout, pairs: str) -> dict[str, Shards]:
    """Return text encoder -> stored vectors of the texts of the pairs with the name `pairs`, in shards."""
    kind, _, documents = pairs.removeprefix(STUDY).partition("/")
    names = [encoder.name for encoder in config.text_encoders]
    if kind == "auxiliary":
        return {name: layout.documents(documents, name) for name in names}
    return {name: layout.sentences(name) for name in names}


def _splits(config: "Config", pairs: str) -> list[str]:
    """Return the splits whose images belong to the pairs with the name `pairs`."""
    kind = pairs.removeprefix(STUDY).partition("/")[0]
    return {"target": ["train"], "dev": ["dev"], "auxiliary": list(config.auxiliary.splits)}[kind]


def _keys(config: "Config", pairs: str) -> dict[str, object]:
    study = config.study
    folds = {"count": 1}
    if pairs.startswith(STUDY):
        folds = {"count": study.folds, "order": study.order, "seed": config.seed}
    return {
        "pairs": pairs.removeprefix(STUDY).partition("/")[0],
        "splits": _splits(config, pairs),
        "folds": folds,
        "normalise": config.image_steps(_encoders(config, pairs)),
        "text": {encoder.name: encoder.normalise for encoder in config.text_encoders},
    }


def _reads(config: "Config", layout: Layout, pairs: str) -> Inputs:
    return {
        # The fold of an image depends on the number of images of its split in all shards.
        "manifest": layout.manifest if pairs.startswith(STUDY) and config.study.folds > 1 else None,
        "texts": _texts(config, layout, pairs),
        "features": feature_shards(_encoders(config, pairs), layout),
    }


def _sum_stored(run: Run, pairs: str) -> list[Path]:
    """Sum the stored moments of all chunks, in their order, and write the sum. Return a list with the path of the sum's
    commit record.

    If there is only one chunk, no sum is needed: an earlier sum is removed, and the list is empty.
    """
    from pipeline.models.linear.sets import sum_stored
    from pipeline.storage.commit import commit_path, remove_artefact, remove_from
    from pipeline.storage.pairs import sum_path, write_sum
    from pipeline.storage.shards import shard_path

    chunks = len(run.manifest.chunks)
    folder = run.layout.moments(pairs).folder
    # Earlier versions stored moments for each shard. These files are removed.
    remove_from(0, lambda number: commit_path(shard_path(folder, number)))
    commit = commit_path(sum_path(folder))
    if chunks == 1:
        remove_artefact(commit)
        return []
    write_sum(folder, range(chunks), lambda readers: sum_stored(readers, run.sums).to_arrays())
    return [commit]


@stage(
    version=7,
    gpu=True,
    threads=8,
    finish=_sum_stored,
    choices=_choices,
    keys=_keys,
    reads=_reads,
    columns=("images", "splits"),
    writes=lambda layout, pairs: layout.moments(pairs),
)
def accumulate(run: StageRun, jobs: Iterator[ShardJob], pairs: str) -> Iterator[int]:
    """Sum the moments of image-text pairs over the features of all image and text encoders.

    PAIRS is `target` for the images of train and their captions, `dev` for the images of dev and their captions, or
    `auxiliary/NAME` for the images of auxiliary.splits and their weak texts, where NAME is a section of `documents`.
    `study/target` has the same pairs as `target`, and `study/auxiliary/NAME` has the same pairs as `auxiliary/NAME`,
    but their moments are summed separately for each fold. The stage writes the sums of each chunk of shards, and yields
    the number of each written chunk.
    """
    import numpy as np

    from pipeline.models.linear.accumulation import sum_blocks
    from pipeline.models.linear.moments import BLOCK_ROWS
    from pipeline.models.linear.sets import assign_folds
    from pipeline.models.linear.views import ImageView, TextView
    from pipeline.storage.pairs import images_in, read_pairs, write_moments
    from pipeline.storage.parameters import origin_of
    from pipeline.storage.texts import open_texts

    config = run.config
    manifest = run.manifest
    features = run.features
    texts = run.inputs.all_shards("texts")
    encoders = run.inputs.all_shards("features")
    splits = _splits(config, pairs)
    keys = _keys(config, pairs)
    fold_of = np.zeros(manifest.n_images, np.int64)
    if pairs.startswith(STUDY) and config.study.folds > 1:
        fold_of = assign_folds(manifest.splits, config.study.folds, config.study.order, config.seed)

    def find_images(number: int) -> np.ndarray:
        """Return the ids of the images in a shard that belong to one of the splits and have a text."""
        first_image = manifest.shard(number).first_image
        image_id = np.unique(next(iter(open_texts(texts, number).values())).image_id)
        return image_id[np.isin(manifest.shard_splits(number).astype(str), splits)[image_id - first_image]]

    for job in jobs:
        shards = {name: features.open(name, job.shards[0]) for name in encoders}
        vectors = open_texts(texts, job.shards[0])
        dims = tuple(shard["features"].shape[1] for shard in shards.values())
        view = ImageView(tuple(shards), dims, config.image_steps(list(encoders)))
        normalised = {encoder.name: encoder.normalise for encoder in config.text_encoders}
        text = TextView.from_vectors({name: shard.matrix for name, shard in vectors.items()}, normalised)
        first = next(iter(vectors.values()))
        image_id = np.concatenate([find_images(number) for number in job.shards])
        folds = fold_of[image_id]
        sums = {}
        for fold in np.unique(folds).tolist():

            def wanted(number: int, image_id: np.ndarray = image_id[folds == fold]) -> np.ndarray:
                return images_in(manifest.shard(number), image_id)

            blocks = read_pairs(features, texts, view.encoders, wanted, BLOCK_ROWS, job.shards)
            sums[fold] = sum_blocks(blocks, view, text, runtime.threads(), run.gpu).to_arrays()
        details = {
            "view": vars(view),
            "text": text.to_dict(),
            **{key: keys[key] for key in ("pairs", "splits", "folds")},
            **({"documents": first.details["documents"]} if "documents" in first.details else {}),
            "encoders": {name: origin_of(shard.commit) for name, shard in shards.items()},
            "text_encoders": {name: origin_of(shard.commit) for name, shard in vectors.items()},
            "range": [job.rows.first_image, job.rows.last_image],
        }
        write_moments(job.path, sums, image_id, folds, provenance=job.provenance, details=details)
        yield job.number
