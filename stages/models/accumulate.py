"""`accumulate`: the moments of pairs of images and texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.compute import runtime
from pipeline.run import Inputs, Job, Run, stage

STUDY, AUXILIARY = "study/", "auxiliary/"
"""Prefixes of the names of pairs that are summed in folds, and of pairs of images and weak texts."""


def _choices(config) -> list[tuple[str]]:
    plain = ["target", *(f"{AUXILIARY}{name}" for name in config.documents)]
    return [(name,) for name in ["dev", *plain, *(f"{STUDY}{name}" for name in plain)]]


def _encoders(config, pairs: str) -> list[str]:
    """The encoders of a run's own moments, and for what the study compares encoders on those of the study too."""
    every = pairs in (f"{STUDY}target", f"{STUDY}{AUXILIARY}all")
    return [encoder.name for encoder in (config.every_encoder if every else config.encoders)]


def _texts(config, layout, pairs: str) -> dict[str, Any]:
    """Text encoder -> the vectors of the sentences or documents of the pairs."""
    kind, _, documents = pairs.removeprefix(STUDY).partition("/")
    names = [encoder.name for encoder in config.text_encoders]
    if kind == "auxiliary":
        return {name: layout.documents(documents, name) for name in names}
    return {name: layout.sentences(name) for name in names}


def _keys(config, pairs: str) -> dict:
    kind, study = pairs.removeprefix(STUDY).partition("/")[0], config.study
    splits = {"target": ["train"], "dev": ["dev"], "auxiliary": list(config.auxiliary.splits)}[kind]
    folds = {"count": 1}
    if pairs.startswith(STUDY):
        folds = {"count": study.folds, "order": study.order, "seed": config.seed}
    text = {encoder.name: encoder.normalise for encoder in config.text_encoders}
    steps = config.image_steps(_encoders(config, pairs))
    return {"pairs": kind, "splits": splits, "folds": folds, "normalise": steps, "text": text}


def _reads(config, layout, pairs: str) -> Inputs:
    return [*_texts(config, layout, pairs).values(), *map(layout.features, _encoders(config, pairs))]


def _sum_stored(run: Run, pairs: str) -> list[Path]:
    """Sum the moments of all shards, in their order; returns the commit of the sum, if there is one."""
    from pipeline.models.linear.sets import sum_stored
    from pipeline.storage.commit import commit_path, remove_artefact
    from pipeline.storage.pairs import sum_path, write_sum

    shards, folder = run.manifest.n_shards, run.layout.moments(pairs).folder
    commit = commit_path(sum_path(folder))
    if shards == 1:
        remove_artefact(commit)
        return []
    write_sum(folder, range(shards), lambda readers: sum_stored(readers, run.sums).to_arrays())
    return [commit]


@stage(
    version=6,
    gpu=True,
    finish=_sum_stored,
    choices=_choices,
    keys=_keys,
    reads=_reads,
    columns=("images", "splits"),
    writes=lambda layout, pairs: layout.moments(pairs),
)
def accumulate(run: Run, pairs: str) -> Callable[[Job], None]:
    """Sum the moments of image-caption pairs over the features of all image and text encoders.

    PAIRS are target (images of the train split, with their sentences), dev (likewise), auxiliary/NAME (images of
    auxiliary.splits with the documents NAME), or one of these in folds: study/target, study/auxiliary/NAME.
    """
    import numpy as np

    from pipeline.models.linear.accumulation import sum_blocks
    from pipeline.models.linear.moments import BLOCK_ROWS
    from pipeline.models.linear.sets import assign_folds
    from pipeline.models.linear.views import ImageView, TextView
    from pipeline.storage.pairs import read_pairs, write_moments
    from pipeline.storage.parameters import origin_of
    from pipeline.storage.texts import open_texts

    config, manifest, features, gpu = run.config, run.manifest, run.features, run.gpu
    texts = _texts(config, run.layout, pairs)
    keys, encoders = _keys(config, pairs), _encoders(config, pairs)
    fold_of = np.zeros(manifest.n_images, np.int64)
    if keys["folds"]["count"] > 1:
        fold_of = assign_folds(manifest.splits, keys["folds"]["count"], config.study.order, config.seed)

    def make(job: Job) -> None:
        shards = {name: features.open(name, job.number) for name in encoders}
        vectors = open_texts(texts, job.number)
        dims = tuple(shard["features"].shape[1] for shard in shards.values())
        view = ImageView(tuple(shards), dims, keys["normalise"])
        text = TextView.of({name: shard.matrix for name, shard in vectors.items()}, keys["text"])
        first = next(iter(vectors.values()))
        start, stop = job.rows.first_image, job.rows.last_image
        folds = fold_of[start:stop]
        wanted = np.isin(manifest.shard_splits(job.number).astype(str), keys["splits"])
        rows = np.unique(first.image_id - start)
        rows = rows[wanted[rows]]
        sums = {}
        for fold in np.unique(folds[rows]).tolist():
            of_fold = wanted & (folds == fold)
            blocks = read_pairs(features, texts, view.encoders, lambda _, rows=of_fold: rows, BLOCK_ROWS, [job.number])
            sums[fold] = sum_blocks(blocks, view, text, runtime.threads(), gpu).to_arrays()
        details = {
            "view": vars(view),
            "text": text.to_dict(),
            **{key: keys[key] for key in ("pairs", "splits", "folds")},
            **({"documents": first.details["documents"]} if "documents" in first.details else {}),
            "encoders": {name: origin_of(shard.commit) for name, shard in shards.items()},
            "text_encoders": {name: origin_of(shard.commit) for name, shard in vectors.items()},
            "range": [start, stop],
        }
        write_moments(job.path, sums, rows + start, folds[rows], provenance=job.provenance, details=details)

    return make
