"""Reading a configuration: a mapping of YAML over the defaults, what is inherited and written in short laid out."""

import sysconfig
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.checks import problems
from pipeline.config.former import accept_former_spelling
from pipeline.config.keys import OWN, Keys
from pipeline.config.messages import explain, listed
from pipeline.config.names import Config
from pipeline.config.registry import allow, import_place, named_places
from pipeline.config.section import Section, merge
from pipeline.errors import UsageError, meant

MAX_YAML_NODES = 100_000
"""Number of keys and values that a configuration may have after its aliases are written out."""

NAMED = {name: Keys.model_fields[name].default for name in ("documents", "variants")}
"""Mappings of names that a configuration adds to."""


class UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Refuses a key that a mapping has twice: the first value would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise ValueError(
                    f"line {key.start_mark.line + 1}: the key {key.value} is given twice; keep one of them"
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of keys and values below `node`, with each alias counted as often as it is used.

    `counts` holds the count of each node that was visited, by its id, so that the time follows the size of the file.
    Raises ValueError if an alias contains itself, or if there are more than MAX_YAML_NODES keys and values.
    """
    if id(node) not in counts:
        counts[id(node)] = 0  # an alias that leads back to this node finds 0
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = (count_nodes(child, counts) for child in children if not isinstance(node, yaml.ScalarNode))
        counts[id(node)] = 1 + sum(below)
    line = node.start_mark.line + 1
    if not counts[id(node)]:
        raise ValueError(f"line {line}: an alias contains itself. Write the values out instead")
    if counts[id(node)] > MAX_YAML_NODES:
        raise ValueError(
            f"line {line}: more than {MAX_YAML_NODES:,} values stand here, with all aliases written out. Write fewer"
        )
    return counts[id(node)]


def default_path() -> Path:
    """config/default.yaml of the checkout, or of the installed distribution."""
    checkout = Path(__file__).parents[2] / "config" / "default.yaml"
    installed = Path(sysconfig.get_path("data")) / "share" / "jointspace" / "config" / "default.yaml"
    return checkout if checkout.exists() else installed


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in the YAML file. UsageError names the file and, where there is one, the line that is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        beside = map(str, Path(path).parent.glob("*.yaml"))
        remedy = meant(str(path), beside) or "give the path of a YAML file"
        raise UsageError(f"configuration {path} does not exist; {remedy.strip()}") from None
    except OSError as error:
        raise UsageError(f"configuration {path} cannot be read ({error.strerror}); name a file of yours") from error
    except ValueError as error:
        raise UsageError(f"configuration {path} is not UTF-8 text ({error}); save it as that") from error
    try:
        loader = UniqueKeys(text)
        if document := loader.get_single_node():
            count_nodes(document, {})
        values = loader.construct_document(document) if document else None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"configuration {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"configuration {path} must be a mapping of keys to values")
    return values


def load(path: Path | None = None) -> Config:
    """The configuration in `path` over the defaults; the defaults alone where it is None. It is the user's, and the
    code that it names may be imported."""
    values = {} if path is None else read_mapping(path)
    allow(named_places(values))
    return validate(values, source=path or default_path())


def validate(values: Mapping[str, Any], source: Path | str = "configuration") -> Config:
    """`values` over the defaults. Raises UsageError that says all that is wrong, each with its key."""
    full: dict[str, Any] = dict(accept_former_spelling(dict(values)))
    values = dict(full)
    for name, default in NAMED.items():
        if isinstance(values.get(name, {}), Mapping):
            full[name] = merge(default, values.get(name, {}))
    try:
        config = Config.model_validate(_inherit(_write_out(full)))
    except ValidationError as error:
        raise UsageError(f"{source}: {explain(error, Config, values)}") from error
    if found := list(dict.fromkeys(problems(config))):  # variants of several seeds have the same
        raise UsageError(f"{source}: {listed(found)}")
    return config


def _inherit(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with what `train_defaults` and `language_defaults` give the models and generators below them, and `text`
    the tf-idf encoders; what has another form is left for validation, here and below."""
    full = dict(values)
    for name, spec in OWN.items():
        below, own = values.get(spec.defaults or ""), values.get(name, {})
        if isinstance(below, Mapping) and isinstance(own, Mapping):
            section, base = import_place(spec.section), Keys.model_fields[spec.defaults].annotation
            full[name] = {key: below[key] for key in inherited(section, base) if key in below} | dict(own)
    text = values.get("text")
    for name in ("text_encoders", "query_text_encoders"):
        entries = values.get(name, Keys.model_fields[name].default)
        if isinstance(text, Mapping) and isinstance(entries, list | tuple):
            full[name] = [
                {**text, **entry} if isinstance(entry, Mapping) and entry.get("kind") == "tf-idf" else entry
                for entry in entries
            ]
    return full


def inherited(section: type[Section], base: type[Section]) -> list[str]:
    """The keys of `base` that `section` has with the same default."""
    return [key for key, field in base.model_fields.items() if section.model_fields[key].default == field.default]


def _maps(values: Mapping[str, Any], name: str) -> bool:
    return isinstance(values.get(name, {}), Mapping)


def _write_out(values: dict[str, Any]) -> dict[str, Any]:
    """`values` with what is written in short: a variant, or an ensemble, for each mapping in `models`; and a variant
    for each seed of one that has `seeds`, also wherever it is named."""
    full = dict(values)
    models = full.get("models")
    if isinstance(models, list | tuple):
        for model in models:
            section = "ensembles" if isinstance(model, Mapping) and "members" in model else "variants"
            if isinstance(model, Mapping) and isinstance(model.get("name"), str) and _maps(full, section):
                rest = {key: value for key, value in model.items() if key != "name"}
                full[section] = {**full.get(section, {}), model["name"]: rest}
        full["models"] = [model.get("name", model) if isinstance(model, Mapping) else model for model in models]
    ensembles = full["ensembles"] if _maps(full, "ensembles") and "ensembles" in full else {}
    named_in = {
        "variants": (("models",), ("phrases", "models"), *(("ensembles", name, "members") for name in ensembles)),
        "generator_variants": (("generators",), ("evaluate", "generators")),
    }
    for section, lists in named_in.items():
        if not _maps(full, section):
            continue
        variants, names = {}, {}
        for name, variant in full.get(section, {}).items():
            seeds = list(_seeds(variant))
            names[name] = [f"{name}-seed{seed}" for seed in seeds] or [name]
            variants |= {f"{name}-seed{seed}": {**variant, "seed": seed, "seeds": []} for seed in seeds}
            if not seeds:
                variants[name] = variant
        full[section] = variants
        for path in lists:
            full = _spread(full, path, names)
    return full


def _seeds(variant: Any) -> Iterator[int]:
    """The seeds of a variant, also as text, which Snakemake's --config makes of the numbers of a list; nothing where
    they have another form."""
    seeds = variant.get("seeds") if isinstance(variant, Mapping) else None
    texts = list(map(str, seeds)) if isinstance(seeds, list | tuple) else []
    if all(text.isdecimal() for text in texts) and len(set(texts)) == len(texts):
        yield from map(int, texts)


def _spread(values: Any, path: tuple[str, ...], names: Mapping[str, list[str]]) -> Any:
    """`values` where the list at `path` has the `names` in place of each that has several."""
    if path and isinstance(values, Mapping) and path[0] in values:
        return {**values, path[0]: _spread(values[path[0]], path[1:], names)}
    if path or not isinstance(values, list | tuple):
        return values
    return [other for name in values for other in (names.get(name, [name]) if isinstance(name, str) else [name])]
