"""What is written in short: a model within `models`, and a variant with several seeds, which is a model for each."""

from collections.abc import Mapping, Sequence
from typing import Any

SEEDED = "{name}-seed{seed}"


def write_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with variants for the mappings in `models`, and with a variant for each seed of one that has `seeds`,
    also wherever it is named: among the models, the members of an ensemble, and those that rank phrases or sentences.
    What has another form is left for validation."""
    found = _with_named_models(values)
    for section, lists in {
        "variants": (("models",), ("phrases", "models"), *(("ensembles", name, "members") for name in _names(found))),
        "generator_variants": (("generators",), ("evaluate", "generators")),
    }.items():
        variants = found.get(section)
        if not isinstance(variants, Mapping):
            continue
        seeds = {name: _seeds(one) for name, one in variants.items() if isinstance(one, Mapping)}
        names = {name: [SEEDED.format(name=name, seed=seed) for seed in several] for name, several in seeds.items()}
        names = {name: seeded for name, seeded in names.items() if seeded}
        found[section] = {
            other: {**variants[name], "seed": seed, "seeds": []} if name in names else variants[name]
            for name in variants
            for other, seed in zip(names.get(name, [name]), seeds.get(name) or [None], strict=True)
        }
        for path in lists:
            found = _spread(found, path, names)
    return found


def _names(values: Mapping[str, Any]) -> Sequence[str]:
    ensembles = values.get("ensembles")
    return list(ensembles) if isinstance(ensembles, Mapping) else []


def _with_named_models(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with the mappings in `models` under their names in `variants`, or with members in `ensembles`."""
    found = dict(values)
    models = found.get("models")
    if not isinstance(models, list | tuple):
        return found
    for one in models:
        if isinstance(one, Mapping) and isinstance(one.get("name"), str):
            section = "ensembles" if "members" in one else "variants"
            rest = {key: value for key, value in one.items() if key != "name"}
            if isinstance(found.get(section, {}), Mapping):
                found[section] = {**found.get(section, {}), one["name"]: rest}
    found["models"] = [one["name"] if isinstance(one, Mapping) and "name" in one else one for one in models]
    return found


def _spread(values: Any, path: tuple[str, ...], names: Mapping[str, list[str]]) -> Any:
    """`values` where the list at `path` has the `names` in place of each that has several."""
    if not path:
        if not isinstance(values, list | tuple):
            return values
        return [other for one in values for other in (names.get(one, [one]) if isinstance(one, str) else [one])]
    if not isinstance(values, Mapping) or path[0] not in values:
        return values
    return {**values, path[0]: _spread(values[path[0]], path[1:], names)}


def _seeds(variant: Mapping[str, Any]) -> list[int]:
    """The seeds of a variant, also as text, which Snakemake's --config makes of the numbers of a list; empty where they
    have another form."""
    seeds = variant.get("seeds")
    given = list(seeds) if isinstance(seeds, list | tuple) else []
    read = [int(seed) if isinstance(seed, str) and seed.isdecimal() else seed for seed in given]
    return read if all(isinstance(seed, int) for seed in read) and len(set(read)) == len(read) else []
