"""Loads a configuration: reads YAML, expands short forms and inherited values, and merges the result with the
defaults."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from pipeline.config.checks import problems
from pipeline.config.former import accept_former_spelling
from pipeline.config.keys import OWN, Keys, OwnKeys, default_path, inherited
from pipeline.config.messages import explain, listed
from pipeline.config.names import Config
from pipeline.config.registry import allow, named_import_paths
from pipeline.config.section import merge, section_of
from pipeline.errors import UsageError, similar_name

if TYPE_CHECKING:
    from yaml import SafeLoader
else:
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the faster loader, if PyYAML was built with libyaml

MAX_YAML_NODES = 100_000
"""Largest number of keys and values of a configuration, with its aliases expanded. A larger file is refused."""

MERGED_KEYS = ("documents", "variants")
"""Keys whose default entries stay if the user gives entries. An entry of the user is merged with the default entry of
the same name, or added."""


class UniqueKeys(SafeLoader):
    """YAML loader that raises ValueError for a repeated key. PyYAML's loader would silently ignore the first value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise ValueError(
                    f"line {key.start_mark.line + 1}: the key {key.value} is given twice. Remove one of the two"
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def count_nodes(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of YAML nodes in `node`: the node itself, and all keys and values below it.

    An alias counts as all nodes that it stands for, at each use of the alias. `counts` maps the id of each visited node
    to the count of the node, so that no node of the file is visited twice. Raises ValueError if an alias contains
    itself, or if there are more than MAX_YAML_NODES nodes.
    """
    if id(node) not in counts:
        counts[id(node)] = 0  # While the nodes below are counted, an alias that leads back to this node finds 0.
        children = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        below = (count_nodes(child, counts) for child in children if not isinstance(node, yaml.ScalarNode))
        counts[id(node)] = 1 + sum(below)
    line = node.start_mark.line + 1
    if not counts[id(node)]:
        raise ValueError(f"line {line}: an alias contains itself. Write the values instead of the alias")
    if counts[id(node)] > MAX_YAML_NODES:
        raise ValueError(
            f"line {line}: the part of the configuration that begins here has more than {MAX_YAML_NODES:,} values with"
            " all aliases expanded. Use fewer values"
        )
    return counts[id(node)]


def read_mapping(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Raises UsageError if the file cannot be read, is not UTF-8 or valid YAML, repeats a key, or is not a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        near = similar_name(str(path), map(str, Path(path).parent.glob("*.yaml")))
        remedy = f"Did you mean {near}?" if near else "Give the path of a YAML file."
        raise UsageError(f"configuration {path} does not exist. {remedy}") from None
    except OSError as error:
        raise UsageError(
            f"configuration {path} cannot be read ({error.strerror}). Give the path of a readable file."
        ) from error
    except ValueError as error:
        raise UsageError(f"configuration {path} is not UTF-8 text ({error}). Save the file as UTF-8.") from error
    try:
        loader = UniqueKeys(text)
        if document := loader.get_single_node():
            count_nodes(document, {})
        values = loader.construct_document(document) if document else None
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split()).replace('"<unicode string>"', str(path))
        raise UsageError(f"configuration {path} cannot be read as YAML: {reason}. Correct the file.") from error
    if not isinstance(values, dict):
        raise UsageError(
            f"configuration {path} must be a mapping of keys to values, such as `data_root: photos`. Correct the file."
        )
    return values


def load(path: Path | None = None) -> Config:
    """Load the configuration in the file `path`, merged with the defaults. Without `path`, load the defaults.

    The file is trusted: classes and functions that it names by import paths may be imported from now on. Raises
    UsageError if the file cannot be read or the configuration is wrong.
    """
    values = {} if path is None else read_mapping(path)
    allow(named_import_paths(values))
    return validate(values, source=path or default_path())


def validate(values: Mapping[str, object], source: Path | str = "configuration") -> Config:
    """Merge `values` with the defaults and check the configuration.

    `source` is the name of the configuration for messages. Raises UsageError with the problems, of which at most
    MAX_LISTED are listed. If a single value is wrong, the values are not compared with each other.
    """
    values = accept_former_spelling(values)
    full = dict(values)
    for name in MERGED_KEYS:
        if isinstance(given := full.get(name, {}), Mapping):
            full[name] = merge(Keys.model_fields[name].default, given)
    full = _inherit(_spread_seeds(_name_models(full)))
    try:
        config = Config.model_validate(full)
    except ValidationError as error:
        raise UsageError(f"{source}: {explain(error, Config, values)}") from error
    if found := list(dict.fromkeys(problems(config))):  # Variants that differ only in their seeds have equal problems.
        raise UsageError(f"{source}: {listed(found)}")
    return config


# The functions below expand short forms before the values are validated. Malformed values are not changed, since the
# validation reports them.


def _name_models(values: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the configuration in which each mapping in `models` is replaced by its name, and is moved to
    `variants`. A mapping with `members` is moved to `ensembles` instead.
    """
    full = dict(values)
    models = full.get("models")
    if not isinstance(models, list | tuple):
        return full
    names = []
    for model in models:
        names.append(model.get("name", model) if isinstance(model, Mapping) else model)
        if isinstance(model, Mapping) and isinstance(model.get("name"), str):
            key = "ensembles" if "members" in model else "variants"
            entries = full.get(key, {})
            if isinstance(entries, Mapping):
                settings = {name: value for name, value in model.items() if name != "name"}
                full[key] = {**entries, model["name"]: settings}
    full["models"] = names
    return full


def _spread_seeds(values: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the configuration in which each variant that has `seeds` is replaced by one variant per seed.

    The new variants of a variant NAME have the names NAME-seedK. In each list that contains NAME, the names of the new
    variants replace NAME.
    """
    full = dict(values)
    ensembles = full.get("ensembles")
    members = [("ensembles", name, "members") for name in ensembles] if isinstance(ensembles, Mapping) else []
    lists_of_names = {
        "variants": [("models",), ("phrases", "models"), *members],
        "generator_variants": [("generators",), ("evaluate", "generators")],
    }
    for key, paths in lists_of_names.items():
        entries = full.get(key, {})
        if not isinstance(entries, Mapping):
            continue
        spread: dict[str, object] = {}
        names: dict[str, list[str]] = {}
        for name, variant in entries.items():
            seeds = {f"{name}-seed{seed}": seed for seed in _seeds(variant)}
            spread |= {one: {**variant, "seed": seed, "seeds": []} for one, seed in seeds.items()} or {name: variant}
            names[name] = list(seeds) or [name]
        full[key] = spread
        for path in paths:
            full = _replace_names(full, path, names)
    return full


def _seeds(variant: object) -> list[int]:
    """Return the seeds of a variant, or [] if the variant has no seeds, or has seeds that are not different whole
    numbers.

    A number may be a text, because Snakemake's --config passes numbers in this form.
    """
    seeds = variant.get("seeds") if isinstance(variant, Mapping) else None
    texts = [str(seed) for seed in seeds] if isinstance(seeds, list | tuple) else []
    are_seeds = all(text.isdecimal() for text in texts) and len(set(texts)) == len(texts)
    return [int(text) for text in texts] if are_seeds else []


def _replace_names(
    values: Mapping[str, object], path: tuple[str, ...], names: Mapping[str, list[str]]
) -> dict[str, object]:
    """Return a copy of `values` in which the list at `path`, if present, has other names in place of some names.

    `names` maps a name to the names that replace this name. Names that are not keys of `names` stay.
    """
    full = dict(values)
    inner = full.get(path[0])
    if len(path) > 1 and isinstance(inner, Mapping):
        full[path[0]] = _replace_names(inner, path[1:], names)
    elif len(path) == 1 and isinstance(inner, list | tuple):
        full[path[0]] = [
            one for name in inner for one in (names.get(name, [name]) if isinstance(name, str) else [name])
        ]
    return full


def _inherit(values: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the configuration in which shared defaults fill the missing keys of the sections that inherit.

    Trained models inherit from `train_defaults`, generators from `language_defaults`, and tf-idf encoders from `text`.
    """
    full = dict(values)
    for name, spec in OWN.items():
        own = values.get(name, {})
        defaults = values.get(spec.defaults) if spec.defaults else None
        if spec.defaults and isinstance(defaults, Mapping) and isinstance(own, Mapping):
            keys = inherited(section_of(OwnKeys, name), section_of(Keys, spec.defaults))
            full[name] = {key: defaults[key] for key in keys if key in defaults} | dict(own)
    text = values.get("text")
    for name in ("text_encoders", "query_text_encoders"):
        entries = values.get(name, Keys.model_fields[name].default)
        if isinstance(text, Mapping) and isinstance(entries, list | tuple):
            full[name] = [_with_tf_idf(entry, text) for entry in entries]
    return full


def _with_tf_idf(entry: object, text: Mapping[str, object]) -> object:
    """Return the entry of a tf-idf encoder with missing keys from the section `text`.

    Return other entries unchanged.
    """
    return {**text, **entry} if isinstance(entry, Mapping) and entry.get("kind") == "tf-idf" else entry
