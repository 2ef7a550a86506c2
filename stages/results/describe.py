"""`describe`: sentences for the images of a split, or for its boxes with labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.run import Inputs, Job, Outside, Run, Stage
from stages.boxes import label_names
from stages.commands import PATH
from stages.generators import BATCH, space_of

if TYPE_CHECKING:
    from stages.generators import StoredGenerator

BOXES = "Boxes with labels, as `rank-phrases` takes them, for a subject such as test.boxes. [default: the manifest's]"


def describe(run: Run, job: Job, generator: str, subject: str, boxes: Path | None = None) -> None:
    """Describe the images of a split; where the subject is SPLIT.boxes, its boxes with labels, or those that people
    wrote texts for (`describe.region_texts`)."""
    from pipeline.errors import UsageError
    from pipeline.generate.describing import stored_batches
    from pipeline.storage.json_files import fingerprint
    from stages.boxes import gold_of_texts, read_boxes, read_gold, read_region_texts, region_texts_path
    from stages.generators import read_generator, write_descriptions

    split, _, of = subject.partition(".")
    if boxes and not of:
        raise UsageError(f"--boxes belong to the subject {split}.boxes, not to {split}; name that")
    settings, provenance = run.config, job.provenance
    stored = read_generator(run, generator)
    if of:
        texts = None if boxes else region_texts_path(settings)
        gold = gold_of_texts(read_region_texts(run.manifest, texts)) if texts else None
        gold = gold or read_gold(settings, run.manifest, boxes)
        whole = getattr(stored.generator, "whole", False)
        where = run.root / "regions", stored.encoders, stored.folder
        features, shown = read_boxes(gold, run.manifest, *where, split, whole)
    else:
        features, shown = _read_images(run, stored, split)
    if boxes:
        provenance = provenance.with_keys(boxes=fingerprint("boxes", 1, shown))
    batches = stored_batches(features, shown, BATCH)
    about = {"generator": generator, "of": of or "images", "split": split}
    write_descriptions(run, stored, batches, job.path, about, provenance)


def _read_images(run: Run, stored: "StoredGenerator", split: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The images of a split: encoder -> their features (n, dim), and what answers show of each."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.storage.rows import FeatureRows

    manifest = run.manifest
    ids = np.flatnonzero(manifest.splits == split)
    if not len(ids):
        raise InputError(f"the {split} split of {manifest.folder} has no image; describe another one")
    rows = {name: FeatureRows(run.features, name, ids) for name in stored.generator.encoders}
    images = manifest.pick(ids)
    shown = [{"image_id": row["image_id"], "image": row["path"], "box": None} for row in images]
    return rows, shown


def _text(config, generator: str) -> str | None:
    """The file of further sentences that the trigram counts, of a generator that uses one."""
    return config.language_text.file if config.generator(generator).spec.text else None


def _reads(config, layout, generator: str, subject: str) -> Inputs:
    found = {
        "manifest": layout.manifest,
        "generator": layout.generator(generator),
        "vocabulary": layout.token_vocabulary,
        "tokens": layout.sentences("tokens"),
    }
    found |= {"space": space} if (space := space_of(config, layout, generator)) else {}
    found |= {"text": Outside(Path(text))} if (text := _text(config, generator)) else {}
    encoders = config.generator(generator).encoders
    if subject.endswith(".boxes"):
        return found | label_names(config) | {f"regions/{name}": layout.regions(name) for name in encoders}
    return found | {f"features/{name}": layout.features(name) for name in encoders}


STAGE = Stage(
    describe,
    version=5,
    gpu=True,
    names=("generator", "subject"),
    choices=lambda config: config.descriptions(),
    wanted=lambda config: config.descriptions(config.describe.splits),
    keys=lambda config, generator, subject: {
        "seed": config.seed,
        "describe": config.describe.model_dump(exclude={"splits", "boxes", "region_texts", "meteor"}),
        **({"text": config.language_text.model_dump(exclude={"treebank"})} if _text(config, generator) else {}),
    },
    reads=_reads,
    writes=lambda layout, *names: (layout.descriptions(*names), layout.description_page(*names)),
    options=(click.Option(["--boxes"], type=PATH, help=BOXES),),
)
