"""What a run has trained, as the papers' tables name it: one system for all the seeds of one model."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any


@dataclass(frozen=True)
class System:
    """What a run has trained: models, or a generator, that differ in nothing but their seeds (`names`), under one
    `label`. `model` is the registered one, `settings` its own in the words of the configuration, with `encoders`,
    `regions` and `learns from`."""

    label: str
    names: Sequence[str]
    model: str
    settings: Mapping[str, Any]


def systems(described: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[System]:
    """The systems of models (name, registered model, settings): those that differ in `seed` alone are one."""

    def alike(item: tuple[str, str, Mapping[str, Any]]) -> str:
        _, model, settings = item
        return repr((model, sorted((key, value) for key, value in settings.items() if key != "seed")))

    every = list(described)
    order = {key: number for number, key in reversed(list(enumerate(map(alike, every))))}
    found = []
    for _, group in groupby(sorted(every, key=lambda item: order[alike(item)]), alike):
        names, models, settings = zip(*group, strict=True)
        found.append(System(_label(names), names, models[0], settings[0]))
    return found


def _label(names: Sequence[str]) -> str:
    """The name that models have in common, with how many they are."""
    if len(names) == 1:
        return names[0]
    bases = dict.fromkeys(re.sub(r"-seed\d+", "", name) for name in names)
    return f"{' and '.join(bases)}, {len(names)} seeds"
