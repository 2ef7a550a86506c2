"""Reading a configuration over the defaults, and saying in one sentence what is wrong with it."""

import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.config.messages import explain
from pipeline.config.reading import read_mapping
from pipeline.config.root import Config
from pipeline.config.seeds import one_a_seed
from pipeline.config.text_encoders import ELSEWHERE
from pipeline.config.text_encoders import OWN as KINDS
from pipeline.config.variants import OWN
from pipeline.errors import UsageError
from pipeline.settings.section import merge
from pipeline.specs.encoders import ENCODERS
from pipeline.specs.text_encoders import TEXT_ENCODERS

LAID = {
    "variants": "variant_defaults",
    "generator_variants": "generator_variant_defaults",
    "ensembles": "ensemble_defaults",
}
"""Section of names -> the section that each of these is laid over."""


def default_path() -> Path:
    """config/default.yaml of the checkout, or of the installed distribution."""
    checkout = Path(__file__).parents[2] / "config" / "default.yaml"
    installed = Path(sysconfig.get_path("data")) / "share" / "jointspace" / "config" / "default.yaml"
    return checkout if checkout.exists() else installed


def load(path: Path | None = None) -> Config:
    """The configuration in `path` over the defaults; the defaults alone where it is None."""
    values = read_mapping(default_path())
    if path is not None:
        values = merge(values, read_mapping(path))
    return validate(values, source=path or default_path())


def validate(values: Mapping[str, Any], source: Path | str = "configuration") -> Config:
    """`values` as a Config. Raises UsageError in one sentence that names the key and, if unknown, the legal ones."""
    values = dict(values)
    defaults, study = values.get("encoder_defaults"), values.get("study")
    libraries = {spec.name: values.get(spec.defaults) for spec in ENCODERS if spec.defaults}
    values |= _with_encoders(defaults, values, libraries)
    kept = [spec.name for spec in TEXT_ENCODERS if spec.sparse or spec.reads == "vectors"]
    kinds = {name: {"centre": "none"} for name in kept}  # whatever the defaults say
    values |= _with_encoders(_below_text(values, source), values, kinds, ("text_encoders", "query_text_encoders"))
    if isinstance(study, Mapping):
        values["study"] = {**study, **_with_encoders(defaults, study, libraries)}
    for section, below in LAID.items():
        if isinstance(values.get(section), Mapping):
            values[section] = _laid(values.get(below), values[section], values[section])
    values |= {key: _inherited(key, values) for key, spec in OWN.items() if spec.defaults}
    values = one_a_seed(values)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise UsageError(f"{source}: {explain(error, Config)}") from error


def _with_encoders(
    below: Any,
    section: Mapping[str, Any],
    own: Mapping[str, Any],
    keys: Sequence[str] = ("encoders", "query_encoders"),
) -> dict[str, Any]:
    """The encoders of a section, each laid over `below` and what its kind has of its `own`; what is not a mapping is
    left for validation."""
    lists = {key: section[key] for key in keys if isinstance(section.get(key), list | tuple)}
    if not isinstance(below, Mapping):
        return {}

    def laid(one: Any) -> Any:
        kind = one.get("kind") if isinstance(one, Mapping) else None
        between = own.get(kind) if isinstance(kind, str) else None
        under = merge(below, between) if isinstance(between, Mapping) else below
        return merge(under, one) if isinstance(one, Mapping) else one

    return {key: list(map(laid, given)) for key, given in lists.items()}


def _below_text(values: Mapping[str, Any], source: Path | str) -> Any:
    """What stands below the entries of text encoders. Raises as `validate` where a section of it is wrong."""
    for key, where in ELSEWHERE.items():
        try:
            KINDS[key].model_validate(values.get(where))
        except ValidationError as error:
            raise UsageError(f"{source}: {explain(error, KINDS[key], where)}") from error
    defaults = values.get("text_encoder_defaults")
    if not isinstance(defaults, Mapping):
        return defaults
    return {**defaults, **{key: values[where] for key, where in ELSEWHERE.items() if where in values}}


def _laid(below: Any, sections: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The `sections` of these `names`, each laid over `below`; what is not a mapping is left for validation."""
    if not isinstance(below, Mapping):
        return dict(sections)
    found = {name: sections[name] for name in names if name in sections}
    return {name: merge(below, value) if isinstance(value, Mapping) else value for name, value in found.items()}


def _inherited(key: str, values: Mapping[str, Any]) -> Any:
    """The section `key` of a registered model or generator over the one that its spec names, and so on down."""
    own = values.get(key, {})
    below = OWN[key].defaults if key in OWN else None
    if below is None or not isinstance(own, Mapping):
        return own
    under = _inherited(below, values)
    return merge(under, own) if isinstance(under, Mapping) else own
