"""A variant with several seeds is as many models."""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.config.variants import CSLS, REFIT

SEEDED = "{name}-seed{seed}"


def one_a_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with a variant for each seed of one that has `seeds`, and with these wherever it is named, among the
    models as among the members of an ensemble. What has another form is left for validation."""
    variants = values.get("variants")
    if not isinstance(variants, Mapping):
        return dict(values)
    seeded = {name: one["seeds"] for name, one in variants.items() if isinstance(one, Mapping) and _several(one)}
    if not seeded:
        return dict(values)

    def spread(names: Any) -> Any:
        return [own for name in names for own in _names(name, seeded)] if isinstance(names, list | tuple) else names

    split: dict[str, Any] = {}
    for name, one in variants.items():
        for seed in seeded.get(name, [None]):
            own = one if seed is None else {**one, "seed": seed, "seeds": []}
            split[name if seed is None else SEEDED.format(name=name, seed=seed)] = own
    ensembles = values.get("ensembles")
    if isinstance(ensembles, Mapping):
        ensembles = {
            name: {**one, "members": spread(one["members"])} if isinstance(one, Mapping) and "members" in one else one
            for name, one in ensembles.items()
        }
    return {**values, "models": spread(values.get("models")), "variants": split, "ensembles": ensembles}


def _several(variant: Mapping[str, Any]) -> bool:
    seeds = variant.get("seeds")
    listed = isinstance(seeds, list | tuple) and bool(seeds) and all(isinstance(seed, int) for seed in seeds)
    return listed and len(set(seeds)) == len(seeds)


def _names(name: Any, seeded: Mapping[str, Iterable[int]]) -> list[Any]:
    """The models that `name` means, with its endings."""
    if not isinstance(name, str):
        return [name]
    base = name.removesuffix(REFIT).removesuffix(CSLS)
    return [SEEDED.format(name=base, seed=seed) + name[len(base) :] for seed in seeded.get(base, ())] or [name]
