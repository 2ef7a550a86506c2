"""Reading a configuration, and saying what is wrong with it."""

import sysconfig
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from pipeline.config.keys import OWN, Keys
from pipeline.config.messages import explain
from pipeline.config.registry.spec import import_place
from pipeline.config.root import Config
from pipeline.config.schema.section import Section, merge
from pipeline.config.seeds import write_out
from pipeline.errors import UsageError, meant

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
        values = UniqueKeys(text).get_single_data()
    except (yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"configuration {path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UsageError(f"configuration {path} must be a mapping of keys to values")
    return values


def load(path: Path | None = None) -> Config:
    """The configuration in `path` over the defaults; the defaults alone where it is None."""
    return validate({} if path is None else read_mapping(path), source=path or default_path())


def validate(values: Mapping[str, Any], source: Path | str = "configuration") -> Config:
    """`values` over the defaults. Raises UsageError that says all that is wrong, each with its key."""
    named = {name: values.get(name, {}) for name in NAMED}
    named = {name: merge(NAMED[name], own) if isinstance(own, Mapping) else own for name, own in named.items()}
    full = _with_inherited(write_out({**values, **named}))
    try:
        return Config.model_validate(full)
    except ValidationError as error:
        raise UsageError(f"{source}: {explain(error, Config, values)}") from error


def _with_inherited(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with what `train_defaults` and `language_defaults` give the models and generators below them, and `text`
    the tf-idf encoders; what is not a mapping is left for validation."""
    found = dict(values)
    for name, spec in OWN.items():
        below, own = values.get(spec.defaults or ""), values.get(name, {})
        if isinstance(below, Mapping) and isinstance(own, Mapping):
            section, base = import_place(spec.section), Keys.model_fields[spec.defaults].annotation
            found[name] = {key: below[key] for key in inherited(section, base) if key in below} | dict(own)
    for name in ("text_encoders", "query_text_encoders"):
        entries = values.get(name, Keys.model_fields[name].default)
        if isinstance(entries, list | tuple) and isinstance(values.get("text"), Mapping):
            found[name] = [_below(entry, values["text"]) for entry in entries]
    return found


def inherited(section: type[Section], base: type[Section]) -> list[str]:
    """The keys of `base` that `section` has with the same default."""
    return [key for key, field in base.model_fields.items() if section.model_fields[key].default == field.default]


def _below(entry: Any, text: Mapping[str, Any]) -> Any:
    own = entry.get("tf_idf", {}) if isinstance(entry, Mapping) else None
    if not isinstance(own, Mapping) or entry.get("kind") != "tf-idf":
        return entry
    return {**entry, "tf_idf": {**text, **own}}
