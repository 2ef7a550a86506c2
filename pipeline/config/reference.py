"""config/default.yaml, made from the fields: `python -m pipeline.config.reference`."""

import sys
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, NamedTuple, TypeGuard, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from pipeline.config.encoders import EncoderEntry
from pipeline.config.keys import OWN, Keys, OwnKeys
from pipeline.config.loading import default_path, inherited
from pipeline.config.section import Section

BELOW = {
    "fit": [name for name, spec in OWN.items() if getattr(spec, "made_by", "") == "fit"],
    "train_defaults": [name for name, spec in OWN.items() if spec.defaults == "train_defaults"],
    "language_defaults": [name for name, spec in OWN.items() if not hasattr(spec, "made_by")],
}
"""Key -> the sections of registered models and generators that are shown below it."""
COMMENT = 40
"""Column of the comments."""
YAML_HEAD = """\
# Every key of jointspace with its default: the demo. A configuration of your own names only what differs:
#   snakemake all --cores 2 --configfile my.yaml
# Unknown keys are errors; lists are replaced as a whole, mappings are merged. By python -m pipeline.config.reference.
"""


class Row(NamedTuple):
    """A key: its path, its default as YAML has it (None: none), its sentence, and the title of the group it begins.
    `entry`: it is of an entry of a list, or of a mapping of names, that is not among the defaults."""

    path: tuple[str, ...]
    default: str | None
    sentence: str
    title: str | None
    entry: bool


def rows() -> Iterator[Row]:
    """All keys in their order."""
    shown: dict[type, str] = {}
    for name, field in Keys.model_fields.items():
        yield from _rows((name,), field, shown)
        for own in BELOW.get(name, ()):
            yield from _rows((own,), OwnKeys.model_fields[own], shown)


def _rows(path: tuple[str, ...], field: FieldInfo, shown: dict[type, str], entry: bool = False) -> Iterator[Row]:
    """A key and those below it; of a section that is like one that is `shown` already, those that it has beside, with
    what it has otherwise in its sentence."""
    if kinds := _kinds(field.annotation):
        default = _written(field.default)
        yield Row(path, default, field.description or "", field.title, entry)
        if kinds[0] not in shown:
            shown |= dict.fromkeys(kinds, f"{'.'.join(path)}[]")
            yield from _kind_rows((*path[:-1], f"{path[-1]}[]"), kinds, shown)
        return
    place, section = _entries(path, field.annotation)
    whole = _is_section(field.annotation)
    like = next((kind for kind in section.__mro__ if kind in shown), None) if section else None
    left = like.model_fields if like and issubclass(like, Section) else {}
    below = {name: part for name, part in section.model_fields.items() if name not in left} if section else {}
    sentence = field.description or ""
    if like and section:
        same = inherited(section, like)
        changed = [f"{name}: {_written(section.model_fields[name].default)}" for name in left if name not in same]
        alike = f"defaults as {shown[like]}" + (f", but {', '.join(changed)}" if changed else "")
        sentence = "; ".join(filter(None, [sentence, alike]))
    if section:
        shown.setdefault(section, ".".join(place))
    default = (None if below else "{}") if whole else None if field.is_required() else _written(field.default)
    yield Row(path, default, sentence, field.title, entry)
    for name, part in sorted(below.items(), key=lambda named: not named[1].is_required()):
        yield from _rows((*place, name), part, shown, entry or not whole)


def _kind_rows(path: tuple[str, ...], kinds: list[type[EncoderEntry]], shown: dict[type, str]) -> Iterator[Row]:
    """Yield the kinds of an entry, and each key once. Its sentence begins with the kinds that have it."""
    variants: dict[tuple[str, str, str], list[type[EncoderEntry]]] = {}
    for kind in kinds:
        yield Row((*path, "kind"), _kind_name(kind), " ".join((kind.__doc__ or "").split()), None, True)
        for name, field in kind.model_fields.items():
            if name != "kind":
                default = "" if field.is_required() or field.default_factory else _written(field.default)
                variants.setdefault((name, default, field.description or ""), []).append(kind)
    for (name, _, sentence), having in sorted(variants.items(), key=lambda variant: variant[0][0] != "name"):
        first, *below = _rows((*path, name), having[0].model_fields[name], shown, True)
        names = ", ".join(map(_kind_name, having))
        yield first._replace(sentence=sentence if len(having) == len(kinds) else f"{names}: {sentence}")
        yield from below


def _kind_name(kind: type[EncoderEntry]) -> str:
    """Return the name of the kind of an entry; module:Class for a class of the user's."""
    literals = [value for part in get_args(kind.model_fields["kind"].annotation) for value in get_args(part)]
    return next((value for value in literals if isinstance(value, str)), "module:Class")


def _kinds(annotation: object) -> list[type[EncoderEntry]]:
    """Return the classes of entries in the annotation of a list of encoders; nothing for other annotations."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, EncoderEntry) else []
    return [kind for part in get_args(annotation) for kind in _kinds(part)]


def _entries(path: tuple[str, ...], annotation: object) -> tuple[tuple[str, ...], type[Section] | None]:
    """The path and the section of the entries of a list or of a mapping of names, if they are sections."""
    if get_origin(annotation) in (Annotated, Union, UnionType):
        found = [_entries(path, kind) for kind in get_args(annotation)]
        return next((one for one in found if one[1]), (path, None))
    kinds = [kind for kind in get_args(annotation) if _is_section(kind)]
    if kinds and get_origin(annotation) is dict:
        return (*path, "NAME"), kinds[0]
    if kinds and get_origin(annotation) is tuple:
        return (*path[:-1], f"{path[-1]}[]"), kinds[0]
    return path, annotation if _is_section(annotation) else None


def _is_section(annotation: object) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _written(value: object) -> str:
    if value is PydanticUndefined:
        return ""
    text = yaml.safe_dump(to_jsonable_python(value), default_flow_style=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")


def default_yaml() -> str:
    """The text of config/default.yaml; keys of entries stand in it as comments."""
    lines = [YAML_HEAD.rstrip()]
    for row in rows():
        if row.title:
            lines += ["", f"# --- {row.title} ".ljust(110, "-")]
        value = "" if row.default is None else f" {row.default}"
        mark = "# " if row.entry else ""
        key = f"{'  ' * (len(row.path) - 1)}{mark}{row.path[-1]}:{value}"
        lines.append(f"{key.ljust(COMMENT - 2)}  # {row.sentence}" if row.sentence else key)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    default_path().write_text(default_yaml(), encoding="utf-8")
    sys.stdout.write(f"{default_path()}\n")
