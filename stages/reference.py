"""The page of all stages, from their declarations: `python -m stages.reference > docs/stages.md`."""

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MethodType
from typing import Any

from pipeline.config import Config, default_path, load, merge, read_mapping, validate
from pipeline.config.keys import OWN
from pipeline.config.registry.generators import GENERATORS
from pipeline.config.registry.models import MODELS
from pipeline.errors import JointspaceError
from pipeline.run import Names, Outside, Stage
from pipeline.run.layout import Artefact, Layout, Shards
from stages.catalogue import COMMANDS, declared
from stages.commands import first_sentence

FILE = {"file": "x"}
LEARNED = {
    "models": [*(spec.name for spec in MODELS if spec.made_by not in ("adopt", "combine")), "ncca-csls-refit", "both"],
    "variants": {"ncca-csls-refit": {"model": "ncca", "csls": True, "refit": True}},
    "ensembles": {"both": {"members": ["ncca", "kcca"]}},
    "generators": [*(spec.name for spec in GENERATORS), "plain"],
    "generator_variants": {"plain": {"generator": "mrnn", "cell": "rnn"}},
    "evaluate": {"generators": ["mrnn", "plain"]},
    "mrnn_regions": {"snippets": "dvsa"},
    "ranked_snippets": {"snippets": "dvsa"},
    "language_text": {"treebank": "x"},
    "describe": {"boxes": True},
    "reproduce": {"trees": True},
    "regions": {"encoders": ["squeezenet-boxes"], "boxes": "x"},
    "collection": {"takedown": "x"},
    "parse": {"engine": "spacy", "treebank": dict.fromkeys(("train", "dev", "test"), "x")},
    "text_encoders": [{"name": "tfidf", "kind": "tf-idf"}, {"name": "words", "kind": "averaged"}],
}
FILES = {
    "demo": {"generate": False},
    "models": ["lstm", "dvsa"],
    "generators": ["nearest"],
    "describe": {"boxes": True},
    "phrases": {"names": "x"},
    "encoders": [
        {"name": "net", "architecture": "resnet18", "weights": "file", **FILE},
    ],
    "regions": {
        "encoders": ["net"],
        "dimensions": 8,
        "proposals": "faster-rcnn",
        "detector": {"weights": "file", **FILE},
    },
    "finetune": {"start": "file", **FILE},
    "word_vectors": {"source": "file", **FILE},
    "text_encoders": [{"name": "words", "kind": "averaged", "averaged": {"source": "file", **FILE}}],
}
GIVEN = {
    "models": ["ncca", "zero-shot"],
    "text_encoders": [
        {"name": "theirs", "kind": "imported", "imported": {"path": "y.npy", "names": "y.txt", "made_by": "clip"}}
    ],
    "query_text_encoders": [{"name": "clip", "kind": "transformers", "transformers": {"architecture": "x"}}],
    "encoders": [{"name": "given", "kind": "imported", "path": "x.npy", "made_by": "net"}],
    "query_encoders": [{"name": "net", "architecture": "resnet18", "weights": "file", **FILE}],
}
"""Configurations in which stages look at keys that those in config/ leave alone."""
MODEL_KEYS = ("encoders", "text_encoders", "seed", "fit", "transfer", "word_vectors")
"""Fields of a model that are taken from keys of the same names."""
HEAD = """# Stages: what they are made of, their keys and what they ask for

A run has one job of a stage for each of what the second column says; a part is a range of shards. A stage is made again
when what it reads has changed, or its version, or one of the keys that decide it; it looks at those named here (each is
explained in [configuration.md](configuration.md)). With `text_encoders` counts `text`; `train_defaults` and
`language_defaults` stand here for the own sections of all models and generators that are laid over them. No results
depend on where and by how many processes they are made:
`results_root`, `parts`, `workers`, `scheduler`, `cluster`, `remote` and `device` are every stage's, and
`serve` is the server's.

The last column says which stages compute on a GPU where there is one. Threads and memory stand in the rules, in
`stages/rules`; a profile may ask for something else. What stages took is in [measured.md](measured.md) and
[scaling.md](scaling.md), and of a run of yours in its report. Made from the declarations of the stages by
`python -m stages.reference > docs/stages.md`.

| command, version | a job for each | reads | writes | keys | GPU |
|---|---|---|---|---|---|
"""
OTHERS = """
## Commands that no rule runs

| command | what it does |
|---|---|
"""


class Looked:
    """A proxy of `one`, on which its methods and properties are evaluated: reading a field adds `keys[field]` to
    `seen`."""

    def __init__(self, one: Any, keys: Mapping[str, str], seen: set[str]) -> None:
        self._one, self._keys, self._seen = one, keys, seen

    def __getattr__(self, name: str) -> Any:
        if name in self._keys:
            self._seen.add(self._keys[name])
            return getattr(self._one, name)
        found = inspect.getattr_static(type(self._one), name, None)
        if isinstance(found, property):
            return found.fget(self)
        return MethodType(found, self) if inspect.isfunction(found) else getattr(self._one, name)


class LookedConfig(Looked):
    """Of a model, only the keys that are read are added."""

    def __init__(self, config: Config, seen: set[str]) -> None:
        super().__init__(config, {key: key for key in Config.model_fields}, seen)

    @property
    def _models(self) -> Mapping[str, Any]:
        self._seen.update(("variants", "ensembles"))
        return self._one._models

    def meaning(self, name: str, variant: Any) -> Any:
        return self._one.meaning(name, variant)

    def model(self, name: str) -> Looked:
        model = self._one.model(name)
        self._seen.update(("variants", "ensembles"))
        keys = {key: key for key in MODEL_KEYS} | {"text_weights": "text_encoders", "settings": model.spec.key}
        return Looked(model, keys, self._seen)


def configurations() -> list[Config]:
    """Those in config/, and three that are made up: between them stages take all their branches."""
    shipped = sorted(path for path in default_path().parent.rglob("*.yaml") if path != default_path())
    default = read_mapping(default_path())
    return [load(), *map(load, shipped), *(validate(merge(default, own)) for own in (LEARNED, FILES, GIVEN))]


def keys_of(stage: Stage, configs: Sequence[Config]) -> list[str]:
    """The keys of the configuration at which the stage's declaration looks, in their order."""
    seen: set[str] = set()
    for config in configs:
        looked = LookedConfig(config, seen)
        layout = Looked(Layout(Path(), Path(config.data_root)), {"data_root": "data_root"}, seen)
        for names in stage.choices(looked):
            stage.outputs(layout, *names)
            with suppress(JointspaceError):  # the collection is not there
                stage.keys(looked, *names)
            with suppress(JointspaceError):
                stage.reads(looked, layout, *names)
    return [key for key in Config.model_fields if key in seen]


def made_by(stages: Mapping[str, Stage], config: Config) -> dict[str, str]:
    """The names of all that the stages make by this configuration -> the same with wildcards."""
    layout = Layout(Path(), Path(config.data_root))
    return {one.name: pattern for stage in stages.values() for one, pattern in _made(stage, config, layout)}


def reads_of(stage: Stage, configs: Sequence[Config], patterns: Sequence[Mapping[str, str]]) -> list[str]:
    """What the stage reads in any of the configurations, by the `made_by` of each."""
    found: dict[str, None] = {}
    for config, made in zip(configs, patterns, strict=True):
        layout = Layout(Path(), Path(config.data_root))
        for names in stage.choices(config):
            with suppress(JointspaceError):
                for one in stage.reads(config, layout, *names).values():
                    found["a file" if isinstance(one, Outside) else made[one.name]] = None
    return list(found)


def render() -> str:
    """The page."""
    stages, configs = declared(), configurations()
    patterns = [made_by(stages, config) for config in configs]
    rows = (_row(stage, keys_of(stage, configs), reads_of(stage, configs, patterns)) for stage in stages.values())
    others = (name for name in COMMANDS if name.replace("-", "_") not in stages)
    return HEAD + "".join(rows) + OTHERS + "".join(f"| `{name}` | {_help(name)} |\n" for name in others)


def _made(stage: Stage, config: Config, layout: Layout) -> Iterator[tuple[Artefact | Shards, str]]:
    """What a stage makes by this configuration, each with its name with wildcards."""
    patterns = [one.name for one in stage.outputs(layout, *_wildcards(stage))]
    for names in stage.choices(config):
        yield from zip(stage.outputs(layout, *names), patterns, strict=True)


def _wildcards(stage: Stage) -> Names:
    return tuple(f"{{{name}}}" for name in stage.names)


def _row(stage: Stage, keys: Sequence[str], reads: Sequence[str]) -> str:
    writes = [one.name for one in stage.outputs(Layout(Path()), *_wildcards(stage))]
    shown = list(dict.fromkeys((OWN[key].defaults if key in OWN else None) or key for key in keys))
    each = ", ".join([*stage.names, *(["part"] if stage.sharded and stage.name != "accumulate" else [])]) or "run"
    cells = (
        f"`{stage.command}` {stage.version}",
        each,
        *map(_quoted, (reads, writes, shown)),
        "yes" if stage.gpu else "",
    )
    return f"| {' | '.join(cells)} |\n"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(name if " " in name else f"`{name}`" for name in names)


def _help(name: str) -> str:
    return first_sentence(importlib.import_module(COMMANDS[name]).command)


if __name__ == "__main__":
    sys.stdout.write(render())
