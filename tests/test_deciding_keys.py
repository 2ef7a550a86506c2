"""Tests which show that a changed key makes a job run again, unless no result depends on the key."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pipeline.config.keys import OWN, Keys, OwnKeys
from pipeline.config.loading import Config, merge, validate
from pipeline.config.registry import GENERATORS, MODELS
from pipeline.config.results import ServeSettings
from pipeline.config.section import Section
from pipeline.errors import JointspaceError
from pipeline.run.stage import Stage
from stages.catalogue import declared

EVERYTHING = {
    "models": [
        *(spec.name for spec in MODELS if spec.made_by not in ("adopt", "combine")),
        "corrected",
        "by-joint",
        "by-text-feature",
        "by-sae",
    ],
    "text": {"vocabulary": None},
    "encoders": [{"name": "boxes", "architecture": "squeezenet1_1", "weights": "finetuned"}],
    "regions": {"encoders": ["boxes"], "proposals": "faster-rcnn"},
    "word_vectors": {"source": "corpus"},
    "mrnn_regions": {"snippets": "dvsa"},
    "ranked_snippets": {"snippets": "dvsa"},
    "language_text": {"file": "more.txt", "treebank": "bank.conllu"},
    "generators": [spec.name for spec in GENERATORS],
    "evaluate": {"generators": ["mrnn"]},
    "describe": {"boxes": True},
    "variants": {
        "corrected": {"model": "ncca", "csls": True},
        **{f"by-{training}": {"model": "ncca", "training": training} for training in ("joint", "text-feature", "sae")},
    },
    "parse": {"engine": "spacy", "treebank": dict.fromkeys(("train", "dev", "test"), "bank.conllu")},
}
"""A configuration in which every section has an effect."""


DECIDE_NOTHING = {
    "where things lie, whose contents decide": {
        "weights_root", "results_root", "regions.boxes", "parse.conllu", "parse.brackets", "parse.treebank.train",
        "parse.treebank.dev", "parse.treebank.test", "describe.region_texts", "hubness.queries",
    },
    "how it is computed": {
        "parts", "workers", "cluster.workers", "collection.memory_gb",
        "extract.batch_size", "extract.checkpoint_images", "extract.decode_workers", "regions.checkpoint_images",
        "finetune.checkpoint_seconds", "train_defaults.checkpoint_seconds", "language_defaults.checkpoint_seconds",
        "parse.workers",
    },
    "the number of jobs": {"evaluate.splits", "evaluate.protocols"},
    "keys that matter only while `migrate` has mapped features": {"extract.mapping_images"},
    "the server": {f"serve.{name}" for name in ServeSettings.model_fields},
}  # fmt: skip


def leaves(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the type annotation of each key in `section` and in the sections below it. Keys whose value is
    a section are left out. A path is a tuple of names from the top, and `path` is the path of `section`.

    In the section of a registered model or generator, a key that is also in `train_defaults` or `language_defaults` is
    left out.
    """
    for name, field in section.model_fields.items():
        spec = OWN.get(name) if not path else None
        inherited = Keys.model_fields[spec.defaults].annotation.model_fields if spec and spec.defaults else {}
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            below = leaves(field.annotation, (*path, name))
            yield from (leaf for leaf in below if leaf[0][-1] not in inherited)
        else:
            yield (*path, name), field.annotation


def others(annotation: Any, value: Any) -> Iterator[Any]:
    """Yield values that differ from `value`, for a key with the type annotation `annotation`. Some of these values may
    be invalid. Nothing is yielded for a type that is not handled below, such as a mapping.
    """
    if get_origin(annotation) in (Annotated, Union, UnionType):
        for kind in get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]:
            yield from others(kind, value)
    elif get_origin(annotation) is Literal:
        yield from (choice for choice in get_args(annotation) if choice != value)
    elif annotation is bool:
        yield not value
    elif annotation is int:
        yield from ((value or 0) + 1, (value or 0) - 1)
    elif annotation is float:
        yield from ((value or 0) + 1, (value or 1) / 2)
    elif annotation is str:
        yield f"{value or ''}x"
    elif get_origin(annotation) is tuple:
        for other in others(get_args(annotation)[0], value[0] if value else None):
            yield [other, *(value or ())[1:]]


def deciding_settings(stage: Stage, config: Config) -> str:
    """Return the settings on which any job of a stage depends in the configuration `config`, as one text."""
    found: dict[str, Any] = {str(names): stage.keys(config, *names) for names in stage.choices(config)}
    if stage.name == "reproduce":  # This stage only makes tables, and records a digest of the whole configuration.
        found = {"name": config.name, "splits": config.describe.splits, **config.reproduce.model_dump()}
    return json.dumps(found, sort_keys=True, default=str)


def test_a_changed_key_reruns_a_job_unless_it_decides_no_result(tmp_path: Path) -> None:
    everything = {**EVERYTHING, "data_root": str(tmp_path)}
    config = validate(everything)
    stages = list(declared().values())
    idle = set()
    tried = 0
    before = {stage.name: deciding_settings(stage, config) for stage in stages}

    def changes_a_job(after: Config) -> bool:
        """Return whether a stage has other settings in the configuration `after` than in the first configuration. Only
        the settings on which the jobs of the stage depend are compared.

        The stage that the previous key has changed is moved to the front of `stages` and checked first, because the
        next key is often a key of this stage too.
        """
        changed = next((stage for stage in stages if deciding_settings(stage, after) != before[stage.name]), None)
        if changed:
            stages.remove(changed)
            stages.insert(0, changed)
        return changed is not None

    for path, annotation in leaves(OwnKeys):
        value: Any = config
        for part in path:
            value = getattr(value, part)
        for change in others(annotation, value):
            for part in reversed(path):
                change = {part: change}
            try:
                after = validate(merge(everything, change))
            except JointspaceError:
                continue  # This value is not valid.
            tried += 1
            if not changes_a_job(after):
                idle.add(".".join(path))
            break
    assert idle == set.union(*DECIDE_NOTHING.values()) and tried > 200
