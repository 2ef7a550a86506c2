"""Reading a configuration over the defaults, and saying in one sentence what is wrong with it."""

import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.root import Config
from pipeline.errors import UsageError
from pipeline.models import GENERATORS, TRAINED

DEEPEST = 100
"""Levels of a configuration; ours has five."""


def default_path() -> Path:
    """config/default.yaml of the checkout, or of the installed distribution."""
    checkout = Path(__file__).parents[2] / "config" / "default.yaml"
    installed = Path(sysconfig.get_path("data")) / "share" / "jointspace" / "config" / "default.yaml"
    return checkout if checkout.exists() else installed


def load(path: Path | None = None) -> Config:
    """The configuration in `path` over the defaults; the defaults alone where it is None."""
    values = _read(default_path())
    if path is not None:
        values = merge(values, _read(path))
    return validate(values, source=path or default_path())


def validate(values: Mapping[str, Any], source: Path | str = "configuration") -> Config:
    """`values` as a Config. Raises UsageError in one sentence that names the key and, if unknown, the legal ones."""
    values = dict(values)
    defaults = values.pop("encoder_defaults", {})
    if isinstance(values.get("encoders"), list):
        values["encoders"] = [merge(defaults, e) if isinstance(e, Mapping) else e for e in values["encoders"]]
    study = values.get("study")
    if isinstance(study, Mapping) and isinstance(study.get("encoders"), list):
        laid = [merge(defaults, e) if isinstance(e, Mapping) else e for e in study["encoders"]]
        values["study"] = {**study, "encoders": laid}
    for section, below in (("variants", "variant_defaults"), ("ensembles", "ensemble_defaults")):
        if isinstance(values.get(section), Mapping):
            values[section] = _laid(values.get(below), values[section], values[section])
    values |= _laid(values.get("train_defaults"), values, [model.replace("-", "_") for model in TRAINED])
    generators = [name.replace("-", "_") for name in GENERATORS if name != "nearest"]
    values |= _laid(values.get("language_defaults"), values, generators)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        # A misspelt key is both unknown and missing; its being unknown is what helps.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise UsageError(f"{source}: {_explain(first)}") from error


def _laid(below: Any, sections: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The `sections` of these `names`, each laid over `below`; what is no mapping is left for validation to find."""
    if not isinstance(below, Mapping):
        return dict(sections)
    found = {name: sections[name] for name in names if name in sections}
    return {name: merge(below, value) if isinstance(value, Mapping) else value for name, value in found.items()}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: mappings are merged, everything else is replaced."""
    result = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merge(result[key], value) if both else value
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        values = _parse(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"configuration {path} does not exist") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"configuration {path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"configuration {path} must be a mapping of keys to values")
    return values


def _parse(text: str) -> Any:
    """The YAML of a whole file, by libyaml where PyYAML has it. ValueError for what is nested deeper than DEEPEST: it
    would overflow libyaml's stack, and PyYAML takes the square of its depth."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    return loader(text).get_single_data()


def _explain(error: Mapping[str, Any]) -> str:
    location: Sequence[str | int] = error["loc"]
    key = ".".join(map(str, location)) or "configuration"
    if error["type"] == "extra_forbidden":
        return f"unknown key {key}; legal here: {', '.join(_legal_keys(location[:-1]))}"
    if error["type"] == "missing":
        return f"key {key} is missing"
    if error["type"] == "value_error":
        return error["msg"].removeprefix("Value error, ")
    return f"key {key}: {error['msg']}, not {error['input']!r}"


def _legal_keys(location: Sequence[str | int]) -> list[str]:
    """The fields of the section at `location`, found by walking the schema's annotations."""
    section: Any = Config
    for part in location:
        if isinstance(part, int) or not hasattr(section, "model_fields"):
            continue
        annotation = section.model_fields[part].annotation
        section = next(
            (a for a in (annotation, *getattr(annotation, "__args__", ())) if hasattr(a, "model_fields")), section
        )
    return list(section.model_fields)
