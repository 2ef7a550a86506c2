"""A variant with several seeds is as many models, or generators."""

from collections.abc import Mapping
from typing import Any

from pipeline.config.schema.variants import CSLS, REFIT

SEEDED = "{name}-seed{seed}"


def one_a_seed(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with a variant for each seed of one that has `seeds`, and with these wherever it is named: among the
    models as among the members of an ensemble and those that rank phrases, among the generators as among those that
    rank. What has another form is left for validation."""
    models, generators = (_Seeded(values.get(section)) for section in ("variants", "generator_variants"))
    found = dict(values)
    if models.seeds:
        found |= {"variants": models.variants()}
        found |= {key: models.spread(values[key]) for key in ("models",) if key in values}
        found |= {key: _with(values[key], "models", models) for key in ("phrases",) if key in values}
        ensembles = values.get("ensembles")
        if isinstance(ensembles, Mapping):
            found["ensembles"] = {name: _with(one, "members", models) for name, one in ensembles.items()}
    if generators.seeds:
        found |= {"generator_variants": generators.variants()}
        found |= {key: generators.spread(values[key]) for key in ("generators",) if key in values}
        found |= {key: _with(values[key], "generators", generators) for key in ("evaluate",) if key in values}
    return found


class _Seeded:
    """The `seeds` of those of the `given` variants that have several."""

    def __init__(self, given: Any) -> None:
        self.given = given
        several = given.items() if isinstance(given, Mapping) else ()
        found = {name: _seeds(one) for name, one in several if isinstance(one, Mapping)}
        self.seeds = {name: seeds for name, seeds in found.items() if seeds}

    def variants(self) -> dict[str, Any]:
        split: dict[str, Any] = {}
        for name, one in self.given.items():
            for seed in self.seeds.get(name, [None]):
                own = one if seed is None else {**one, "seed": seed, "seeds": []}
                split[name if seed is None else SEEDED.format(name=name, seed=seed)] = own
        return split

    def spread(self, names: Any) -> Any:
        return [own for name in names for own in self._names(name)] if isinstance(names, list | tuple) else names

    def _names(self, name: Any) -> list[Any]:
        """What `name` means, with its endings."""
        if not isinstance(name, str):
            return [name]
        base = name.removesuffix(REFIT).removesuffix(CSLS)
        return [SEEDED.format(name=base, seed=seed) + name[len(base) :] for seed in self.seeds.get(base, ())] or [name]


def _with(section: Any, key: str, seeded: _Seeded) -> Any:
    return {**section, key: seeded.spread(section[key])} if isinstance(section, Mapping) and key in section else section


def _seeds(variant: Mapping[str, Any]) -> list[int]:
    """The seeds of a variant, also as text, which Snakemake's --config makes of the numbers of a list; empty where they
    have another form."""
    seeds = variant.get("seeds")
    given = list(seeds) if isinstance(seeds, list | tuple) else []
    read = [int(seed) if isinstance(seed, str) and seed.isdecimal() else seed for seed in given]
    return read if all(isinstance(seed, int) for seed in read) and len(set(read)) == len(read) else []
