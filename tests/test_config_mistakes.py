"""Mistakes at every place of the configuration, and hostile files: one sentence each, and never a traceback."""

import copy
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from pipeline.config import Config, default_path, load, merge, read_mapping, validate
from pipeline.errors import UsageError

# What default.yaml has only as comments: a value in every section, list, and mapping of names.
FULL = {
    "variants": {"other": {"model": "lstm", "seed": 3, "encoders": ["net"], "training": "target", "documents": "mild"}},
    "generator_variants": {"mine": {"generator": "mrnn", "seed": 3, "encoders": ["net"]}},
    "ensembles": {"both": {"members": ["ncca", "lstm"], "weights": [0, 1]}},
    "documents": {
        "mild": {
            "fields": ["title", "tags"],
            "simulate": {"tag_words": 5, "true_words": 4, "wrong": 0.1, "missing": 0.1},
        }
    },
    "encoders": [{"name": "net", "architecture": "alexnet"}, {"name": "old", "architecture": "standard"}],
    "study": {"encoders": [{"name": "third", "architecture": "vgg16", "layer": "fc7"}], "noise": ["mild"]},
    "collection": {"files": {"captions": "c.tsv"}, "columns": {"file": "f"}},
    "generators": ["mrnn", "lbl", "mine"],
    "index": {"candidates": ["HNSW32"], "memory": 100, "latency_ms": 2.5},
}
NAMED = [("collection", "files"), ("collection", "columns"), ("documents",), ("variants",), ("ensembles",)]
NAMED += [
    ("generator_variants",),
    ("cluster", "options"),
    ("fit", "text_weights"),
    ("study", "fit", "text_weights"),
    ("reproduce", "in_place_of"),
]
"""Mappings of names that a user chooses."""
WRONG = (None, {"speling": 1}, [["speling"]], [], "speling", -1, 2**70, True, math.nan, math.inf, 1.5)
REFUSED = {
    dict: (None, [["speling"]], "speling", -1, True, 1.5),
    list: (None, {"speling": 1}, [["speling"]], -1, True, 1.5),
    str: ({"speling": 1}, [["speling"]], -1, True, 1.5),
    int: ({"speling": 1}, [["speling"]], "speling", -1, 2**70, True, math.nan),
    float: ({"speling": 1}, [["speling"]], "speling", math.nan, math.inf),
    bool: ({"speling": 1}, [["speling"]], "speling", -1, 2**70, 1.5),
}
"""Kind of a legal value -> values that are not legal in its place."""


def full() -> dict[str, Any]:
    return merge(read_mapping(default_path()), FULL)


def places(value: Any, place: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every key and every place of a list below `value`, with what stands there."""
    if place:
        yield place, value
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in below:
        yield from places(part, (*place, key))


def changed(place: tuple, value: Any) -> dict[str, Any]:
    """The full configuration with another value at `place`."""
    return _replace(FULL_VALUES, place, value)


def _replace(within: Any, place: tuple, value: Any) -> Any:
    """`within` with `value` at `place`, and without it where it is GONE; only what is on the way is copied."""
    if not place:
        return value
    copied = copy.copy(within)
    if place[1:] or value is not GONE:
        copied[place[0]] = _replace(within[place[0]], place[1:], value) if place[1:] else value
    else:
        del copied[place[0]]
    return copied


GONE = object()
FULL_VALUES = full()
PLACES = list(places(FULL_VALUES))


def fault(values: dict[str, Any]) -> str | None:
    """What is said of `values`; None where they are legal. Any exception but UsageError fails the test."""
    try:
        assert isinstance(validate(values), Config)
    except UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return str(error)
    return None


def test_the_full_configuration_is_legal_and_has_a_value_of_every_section() -> None:
    def sections(value: Any) -> Iterator[type]:
        if isinstance(value, BaseModel):
            yield type(value)
        below = dict(value).values() if isinstance(value, BaseModel | dict) else value
        for part in below if isinstance(value, BaseModel | dict | tuple) else ():
            yield from sections(part)

    def subclasses(one: type) -> Iterator[type]:
        for below in one.__subclasses__():
            yield below
            yield from subclasses(below)

    found = set(sections(validate(FULL_VALUES)))
    ours = ("pipeline.config", "pipeline.config.schema")
    known = {one for one in subclasses(BaseModel) if one.__module__.startswith(ours)}
    bases = {
        "Section",
        "EveryKind",
        "StudySettings",
        "Seeds",
        "Models",
        "Generators",
        "Keys",
        "OwnKeys",
        "TextKindSettings",
        "EveryTextKind",
        "EveryTextEncoder",
        "WordVectorSource",
    }
    assert {one.__name__ for one in known - found} == bases


def test_a_misspelt_key_is_named_everywhere_with_the_nearest_legal_one() -> None:
    sections = [((), FULL_VALUES), *((place, value) for place, value in PLACES if isinstance(value, dict))]
    sections = [(place, value) for place, value in sections if place not in NAMED]
    assert len(sections) > 60
    for place, value in sections:
        key = max(value, key=len) if value else "learning_rate"  # `bow: {}` has the keys of train_defaults
        where = ".".join(map(str, (*place, key + "x")))
        said = fault(changed((*place, key + "x"), 1)) or ""
        assert f"unknown key {where}; did you mean {key}? legal here: " in said, said
        assert said.partition("legal here: ")[2].count(",") < 12


def test_a_wrong_value_is_refused_everywhere() -> None:
    missed = []
    for number, (place, value) in enumerate(PLACES):
        refused = [wrong for wrong in WRONG if any(wrong is one for one in REFUSED.get(type(value), ()))]
        fault(changed(place, WRONG[number % len(WRONG)]))  # which may be legal here
        missed += [(place, wrong) for wrong in refused if fault(changed(place, wrong)) is None]
    legal = {(("documents", "mild", "simulate"), None), (("variants", "other", "encoders"), None)}
    legal |= {(("generator_variants", "mine", "encoders"), None)}  # or null
    legal |= {(("text_encoder_defaults", "weight"), 1.5), (("hmlstm", "forget_bias"), -1)}  # or a number, of any sign
    assert set(missed) == legal


def test_a_missing_key_is_named_everywhere() -> None:
    for place, _ in PLACES:
        if isinstance(place[-1], str):
            fault(changed(place, GONE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fitt": 1}, "unknown key fitt; did you mean fit? legal here: models, seed, "),
        (
            {"variants": {"x": {"model": "lstm", "traning": "sae"}}},
            "unknown key variants.x.traning; did you mean training?",
        ),
        (
            {"variants": {"x": {"model": "lstm", "sum": "words"}}},
            "unknown key variants.x.sum; legal here: dimensions, loss, ",
        ),
        (
            {"variants": {"x": {"model": "gru", "margn": 0.2}}},
            "unknown key variants.x.margn; did you mean margin? legal here: ",
        ),
        ({"variants": {"x": {"model": "ncca", "margin": 1}}}, "unknown key variants.x.margin; "),
        ({"variants": {"x": {"model": "gru", "margin": -1}}}, "key variants.x.margin: must be greater than"),
        (
            {"variants": {"x": {"model": "gru", "negatives": "hardest"}}},
            "variants.x: negatives: hardest goes with loss: ranking",
        ),
        (
            {"variants": {"x": {"model": "ncca", "fit": {"dimensons": [4]}}}},
            "unknown key variants.x.fit.dimensons; did you mean dimensions?",
        ),
        (
            {"variants": {"x": {"model": "ncca", "training": "sae", "transfer": {"rule": ["papers"]}}}},
            "key variants.x.transfer.rule.0: must be 'cosine-sine' or 'paper', not 'papers'",
        ),
        (
            {"variants": {"x": {"model": "gru", "fit": {"search": "grid"}}}},
            "variants.x.fit.search changes nothing for gru by training target; leave it out",
        ),
        (
            {"variants": {"x": {"model": "ncca", "transfer": {"features": 30}}}},
            "variants.x.transfer.features changes nothing for ncca by training target; leave it out",
        ),
        ({"ensembles": {"x": {"member": ["bow"]}}}, "unknown key ensembles.x.member; did you mean members?"),
        ({"documents": {"x": {"field": ["tags"]}}}, "unknown key documents.x.field; did you mean fields?"),
        (
            {"documents": {"x": {"fields": ["tags"], "simulate": {"tagwords": 1}}}},
            "unknown key documents.x.simulate.tagwords; did you mean tag_words?",
        ),
        ({"encoder_defaults": {"pooled": 1}}, "unknown key encoder_defaults.pooled; did you mean pooling?"),
        ({"encoder_defaults": None}, "key encoder_defaults: must be a mapping of keys to values, not null"),
        (
            {"language_defaults": {"optimizer": "sgd"}},
            "unknown key language_defaults.optimizer; did you mean optimiser?",
        ),
        ({"variants": {"x y": {"model": "lstm"}}}, "key variants.x y: must begin with a letter or a digit"),
        ({"variants": {"x": ["lstm"]}}, "key variants.x: must be a mapping of keys to values, not ['lstm']"),
        ({"index": {"candidates": "HNSW32"}}, "key index.candidates: must be 'auto' or must be a list, not 'HNSW32'"),
        ({"seed": 2**70}, f"key seed: must be less than or equal to 4294967294, not {2**70}"),
        ({"seed": 2**20000}, "key seed: must be less than or equal to 4294967294, not an integer of 20,001 bits"),
        ({"variants": {"x": {"model": "lstm", "seed": 2**32}}}, "key variants.x.seed: must be less than or equal to"),
        ({"shard_size": 2**63}, f"key shard_size: must be less than or equal to {2**63 - 1}, not {2**63}"),
        ({"fit": {"image_ridge": [math.nan]}}, "key fit.image_ridge.0: must be a finite number, not nan"),
    ],
)
def test_what_is_said_of_a_mistake(change: dict, message: str) -> None:
    said = fault(merge(read_mapping(default_path()), change))
    assert said is not None and message in said, said


BILLION = "\n".join(["a0: &a0 [lol, lol]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))])
DEEP = "\n".join(["a0: &a0 " + "[" * 60 + "]" * 60, "a1: &a1 " + "[" * 60 + "*a0" + "]" * 60])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: one\nseed: 1\nname: two\n", r"line 3: the key name is in line 1 already; keep one of them"),
        ("fit: {dimensions: [1], 'dimensions': [2]}", r"line 1: the key dimensions is in line 1 already"),
        ("encoders:\n- name: a\n  name: b\n", r"line 3: the key name is in line 2 already"),
        ("a: &a [*a]", r"line 1: the alias \*a stands for nothing, or for what it is in"),
        ("a: &a {b: {c: *a}}", r"line 1: the alias \*a stands for nothing"),
        ("a: *b", r"line 1: the alias \*b stands for nothing"),
        (BILLION, r"line 6: it has more than 100,000 values"),
        (DEEP, r"line 2: it is nested more than 100 levels deep"),
        ("seed: " + "9" * 5000, "Exceeds the limit"),
        ("a: 2001-02-30", "day is out of range for month"),
        ("a: \x00", ""),
        ("? [1, 2]\n: 3", "unhashable key"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
    ],
)
def test_a_file_that_is_wrong_or_hostile_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"mine\.yaml cannot be read: .*{message}") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_an_alias_and_a_merged_mapping_are_still_legal(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "variants:\n  one: &one {model: ncca, training: joint}\n  two: {<<: *one, training: sae}\n  three: *one\n"
    )
    config = load(path)
    assert config.model("two").training == "sae" and config.model("one") == config.model("three")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"configuration {tmp_path} cannot be read (Is a directory)")):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes("name: é".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin.yaml is not UTF-8 text"):
        load(tmp_path / "latin.yaml")
