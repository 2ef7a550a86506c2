"""Converts the former spelling of configurations. This spelling is accepted, with a warning, for one release.

The settings of a text encoder, and of `standard`, used to be in a section with the name of the kind, such as
`{kind: averaged, averaged: {idf: false}}`. These settings are now keys of the entry itself, such as
`{kind: averaged, idf: false}`. The former key `reproduce.in_place_of` has no effect.
"""

import logging
from collections.abc import Callable, Mapping

import yaml

log = logging.getLogger(__name__)

Values = dict[str, object]
"""Keys and values of a YAML mapping, before they are checked."""

TEXT_SECTIONS = (
    "tf_idf", "averaged", "fisher", "transformers", "sentence_transformers", "open_clip", "imported"
)  # fmt: skip
"""Names of the sections that an entry of text_encoders could contain in the former spelling."""

WEIGHT_KEYS = ("architecture", "weights", "layer", "file", "sha256")
PIXEL_KEYS = ("resize", "crop", "mean", "std", "interpolation", "flip")
VECTOR_KEYS = ("features", "names", "made_by")
IMAGE_KEYS = {
    "network": ("pooling", *VECTOR_KEYS), "standard": ("pooling", *VECTOR_KEYS, *WEIGHT_KEYS),
    "pooled": (*VECTOR_KEYS, *WEIGHT_KEYS, *PIXEL_KEYS), "imported": ("pooling", *WEIGHT_KEYS, *PIXEL_KEYS),
    "open_clip": ("pooling", *VECTOR_KEYS, "layer"), "timm": ("pooling", *VECTOR_KEYS),
    "transformers": ("pooling", *VECTOR_KEYS, "layer", "file", "sha256"),
}  # fmt: skip
"""Kind of an image encoder -> the keys that its entry could have without any effect. Such keys are removed."""

NULLS = ("kind", "of", "path")
"""Keys that any entry of an image encoder could have with the value null. Such a key with the value null is removed."""


def accept_former_spelling(values: Mapping[str, object]) -> Values:
    """Return a copy of a configuration in the spelling of this version. For each section or entry that is changed, a
    warning with the new spelling is logged."""
    full = dict(values)
    if isinstance(text := full.get("text"), dict) and "normalise" in text:
        full["text"] = _warn(text, _rename_normalise(text), "text")
    full = _rewrite(full, ("encoders", "query_encoders"), _image_entry)
    full = _rewrite(full, ("text_encoders", "query_text_encoders"), _text_entry)
    if isinstance(study := full.get("study"), dict):
        full["study"] = _rewrite(study, ("encoders",), lambda entry, name: _image_entry(entry, f"study.{name}"))
    if isinstance(reproduce := full.get("reproduce"), dict) and "in_place_of" in reproduce:
        kept = {name: value for name, value in reproduce.items() if name != "in_place_of"}
        full["reproduce"] = _warn(reproduce, kept, "reproduce")
    return full


def _rewrite(values: Values, names: tuple[str, ...], rewrite: Callable[[Values, str], Values]) -> Values:
    """Return a copy of `values` in which the mappings in some lists are rewritten.

    `names` are the keys of these lists. `rewrite(mapping, name)` returns the mapping that replaces a mapping in the
    list `name`.
    """
    full = dict(values)
    for name in names:
        entries = values.get(name)
        if isinstance(entries, list | tuple):
            full[name] = [rewrite(entry, name) if isinstance(entry, dict) else entry for entry in entries]
    return full


def _image_entry(entry: Values, where: str) -> Values:
    flat = {name: value for name, value in entry.items() if not (name in NULLS and value is None)}
    if flat.get("architecture") in ("standard", "pooled") and flat.get("kind") in (None, flat["architecture"]):
        flat["kind"] = flat.pop("architecture")
    kind = str(flat.get("kind", "network"))
    if isinstance(section := flat.get("standard"), dict):
        del flat["standard"]
        flat = {**flat, **section} if kind == "standard" or ":" in kind else flat
    flat = {name: value for name, value in flat.items() if name not in IMAGE_KEYS.get(kind, ())}
    return _warn(entry, flat, where)


def _text_entry(entry: Values, where: str) -> Values:
    kind = str(entry.get("kind"))
    flat = {name: value for name, value in entry.items() if not (name in TEXT_SECTIONS and isinstance(value, dict))}
    for name in TEXT_SECTIONS:
        section = entry.get(name)
        if isinstance(section, dict) and (":" in kind or name == kind.replace("-", "_")):
            flat |= _rename_normalise(section) if name == "tf_idf" else section
    return _warn(entry, flat, where)


def _rename_normalise(section: Values) -> Values:
    """Return a copy of the settings of tf-idf in which the former key `normalise` is called `unit_length`. The key
    `normalise` now lists the transforms of the vectors."""
    return {"unit_length" if name == "normalise" else name: value for name, value in section.items()}


def _warn(before: Values, now: Values, where: str) -> Values:
    if {name: value for name, value in before.items() if (name, value) != ("kind", None)} != now:
        spelling = yaml.safe_dump(now, default_flow_style=True, sort_keys=False, width=10**6).strip()
        log.warning("%s: the next release will not accept this spelling. Write %s instead.", where, spelling)
    return now
