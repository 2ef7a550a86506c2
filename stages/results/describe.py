"""`describe`: sentences for the images of a split, or for its boxes with labels."""

from typing import TYPE_CHECKING, Any

from pipeline.run import Inputs, Job, Run, Stage
from stages.inputs import generator_inputs, label_names, named, region_texts_path, text_files

if TYPE_CHECKING:
    from stages.generators import StoredGenerator


def describe(run: Run, job: Job, generator: str, subject: str) -> None:
    """Generate captions for the images of a split or, for the subject SPLIT.boxes, for its labelled boxes."""
    from pipeline.generate.describing import stored_batches
    from stages.generators import BATCH, read_generator, write_descriptions

    split, _, kind = subject.partition(".")
    stored = read_generator(run, generator)
    features, shown = _read_boxes(run, stored, split) if kind else _read_images(run, stored, split)
    batches = stored_batches(features, shown, BATCH)
    about = {"generator": generator, "of": kind or "images", "split": split}
    write_descriptions(run, stored, batches, job.path, about, job.provenance)


def _read_boxes(run: Run, stored: "StoredGenerator", split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The labelled boxes of a split: encoder -> their features (k, dim), and what answers show of each."""
    from stages.boxes import gold_of_texts, read_boxes, read_gold, read_region_texts

    texts = region_texts_path(run.config)
    gold = gold_of_texts(read_region_texts(run, texts)) if texts else read_gold(run)
    whole = getattr(stored.generator, "whole", False)
    return read_boxes(run, gold, stored.encoders, split, whole)


def _read_images(run: Run, stored: "StoredGenerator", split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The images of a split: encoder -> their features (n, dim), and what answers show of each."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.storage.features import FeatureRows

    manifest = run.manifest
    ids = np.flatnonzero(manifest.splits == split)
    if not len(ids):
        raise InputError(f"the {split} split of {manifest.folder} has no image; describe another split")
    features = {name: FeatureRows(run.features, name, ids) for name in stored.generator.encoders}
    images = manifest.pick(ids)
    return features, [{"image_id": row["image_id"], "image": row["path"], "box": None} for row in images]


def _keys(config, generator: str, subject: str) -> dict:
    text = {"text": config.language_text.model_dump(exclude={"treebank"})}
    return {
        "seed": config.seed,
        "describe": config.describe.model_dump(exclude={"splits", "boxes", "region_texts", "meteor"}),
        **(text if text_files(config, generator, "text") else {}),
    }


def _reads(config, layout, generator: str, subject: str) -> Inputs:
    inputs = {**generator_inputs(config, layout, generator), **text_files(config, generator, "text")}
    encoders = config.generator(generator).encoders
    if subject.endswith(".boxes"):
        inputs |= label_names(config) | named(*map(layout.regions, encoders))
    else:
        inputs |= named(*map(layout.features, encoders))
    return inputs | named(layout.generator(generator))


STAGE = Stage(
    describe,
    version=5,
    gpu=True,
    names=("generator", "subject"),
    choices=lambda config: config.descriptions(),
    wanted=lambda config: config.descriptions(config.describe.splits),
    keys=_keys,
    reads=_reads,
    writes=lambda layout, *names: (layout.descriptions(*names), layout.description_page(*names)),
)
