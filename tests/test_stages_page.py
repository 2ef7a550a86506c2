"""docs/stages.md as a reader has it, and the keys that it names against what stages do when a key is changed."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pipeline.collections import watching
from pipeline.config import Config
from pipeline.config.keys import OWN
from pipeline.config.schema.section import Section
from pipeline.errors import UsageError
from pipeline.run.layout import Layout
from pipeline.run.stage import Stage
from stages import boxes, generators, given, inputs, studies
from stages.catalogue import COMMANDS, declared
from stages.reference import configurations, render

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/stages.md").read_text()
ROWS = {line.split("`")[1]: line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")}
"""Command -> the cells of its line."""
STAGES = declared()
HELPERS = (inputs, boxes, generators, given, studies)
NOT_DECISIVE = {"device", "data_root", "weights_root", "collection", "remote", "scheduler", "cluster"}
"""Where something is computed, lies and is copied to, and the limits of images, all of which `ingest` has accepted."""
COVERED = {
    "rank-sentences": {"describe", "language_text"},  # of generators with a space or a treebank, which are among inputs
    "build-index": {"name"},  # the run's folder
    "report": {"name", "encoders"},  # the run's folder; encoders are those of the models
}
"""What a stage's function looks at beside the keys that decide, and why that may be."""


LEARNING = {key for key, spec in OWN.items() if spec.defaults == "language_defaults" or getattr(spec, "ranks", False)}
INERT = {
    "finetune": {"study", "query_encoders"},  # whose encoders are never finetuned ones
    "pool_regions": {"query_encoders"},  # which never pool regions, nor have features
    "import_features": {"query_encoders"},
    "import_sentences": {"query_text_encoders"},  # likewise, and so on
    "encode_sentences": {"query_text_encoders"},
    "encode_documents": {"query_text_encoders"},
    "train": {"query_text_encoders"},
    "build_index": {"query_text_encoders"},
    "combine": {"encoders", "text_encoders"},  # looked at for models that start from others, which there need not be
    "fit_csls": {"encoders", "text_encoders"},
    "join_embeddings": {"encoders", "text_encoders"},
    "evaluate": {"encoders", "text_encoders"},
    "describe": LEARNING,  # only asked whether the generator uses a joint space
    "evaluate_descriptions": LEARNING,
    "rank_sentences": LEARNING,  # likewise
    "reproduce": {"query_encoders", "study", "fit", "transfer"},  # of a model only what its variant names is told
}
"""Keys that a stage's declaration looks at without effect."""


def named(stage: Stage) -> set[str]:
    """The keys in a stage's line, and the own sections of models for which the defaults below them stand."""
    shown = set(re.findall(r"`(\w+)`", ROWS[stage.command][4]))
    own = {key for key, spec in OWN.items() if spec.defaults in shown}
    return shown - {OWN[key].defaults for key in own} | own


def test_the_page_is_what_the_generator_makes() -> None:
    assert render() == PAGE


def test_every_command_has_a_line_and_every_key_is_somewhere() -> None:
    rules = {
        name
        for path in (ROOT / "stages/rules").glob("*.smk")
        for name in re.findall(r"^(?:rule|checkpoint) (\w+):", path.read_text(), re.M)
    }
    assert STAGES.keys() == rules
    assert sorted(ROWS) == sorted(COMMANDS)
    assert all(len(ROWS[stage.command]) == 6 for stage in STAGES.values())
    keys = set(re.findall(r"`(\w+)`", PAGE))
    assert not {key for key in Config.model_fields if key not in keys and OWN[key].defaults not in keys}


def changes(value: Any) -> Iterator[Any]:
    """Made-up values in the place of one: first different in all of a section, then in each leaf."""
    if isinstance(value, Section):
        fields = {field: next(changes(getattr(value, field)), None) for field in type(value).model_fields}
        yield value.model_copy(update=fields)
        for field in type(value).model_fields:
            yield from (value.model_copy(update={field: other}) for other in changes(getattr(value, field)))
    elif value is None:
        yield "other"
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
    elif isinstance(value, str):
        yield f"{value}-other"
    elif isinstance(value, Mapping):
        yield {}
        for key, one in value.items():
            yield from ({**value, key: other} for other in changes(one))
    else:
        yield value[:-1]
        for place, one in enumerate(value):
            yield from ((*value[:place], other, *value[place + 1 :]) for other in changes(one))


@cache
def layout_of(data_root: str) -> Layout:
    return Layout(Path("run"), Path(data_root))


def said(stage: Stage, config: Config, names: tuple[str, ...]) -> Any:
    """All that a stage's declaration says of one choice."""
    layout = layout_of(config.data_root)
    found: list[Any] = []
    for tell in (
        lambda: stage.depends(config, *names),
        lambda: stage.reads(config, layout, *names),
        lambda: stage.outputs(layout, *names),
    ):
        try:
            found.append(tell())
        except Exception as error:  # no such model, format or file
            found.append(str(error))
    return found


def chosen(stage: Stage, config: Config) -> Any:
    try:
        return [tuple(names) for names in stage.choices(config)]
    except Exception as error:
        return str(error)


def some(choices: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first and the last choice of each first name."""
    return list({(names[:1], way): names for way in (1, -1) for names in choices[::way]}.values())


def legal(config: Config) -> bool:
    """Whether its variants can be laid over the settings of what they are variants of, which a made-up value may not
    allow."""
    try:
        generators = [config.generator(name) for name in config.generators]
        return bool([*generators, *(config.model(name) for name in config.every_model())])
    except UsageError:
        return False


def remembered(method: Callable[..., Any]) -> Callable[..., Any]:
    """`method`, which computes once what it says of the configuration that it was asked of last."""
    last, found = [None], {}

    def ask(config: Config, *given: Any) -> Any:
        if last[0] is not config:
            last[0] = config
            found.clear()
        if given not in found:
            found[given] = method(config, *given)
        return found[given]

    return ask


@pytest.fixture(scope="module")
def decisive() -> dict[str, set[str]]:
    """Stage -> the keys of which a change changes its choices, or what it says of some of them; of a key that its line
    does not name one change of the whole section is tried. All files are taken to be there; what the files of a
    collection say of it (thousands, where ours is at hand) is taken to follow from where and what they are."""
    found, lines = {name: set() for name in STAGES}, {name: named(stage) for name, stage in STAGES.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "is_file", lambda path: True)
        patch.setattr(watching, "describe_state", lambda *given: str(given[:3]))
        for name in ("model", "every_model", "made_by", "generator"):
            patch.setattr(Config, name, remembered(getattr(Config, name)))
        for name in ("_folder", "file", "_sidecar", "_parameters", "_shards"):
            patch.setattr(Layout, name, cache(getattr(Layout, name)))
        for config in configurations():
            choices = {name: chosen(stage, config) for name, stage in STAGES.items()}
            before = {name: [said(STAGES[name], config, one) for one in some(every)] for name, every in choices.items()}
            for key in Config.model_fields:
                for number, value in enumerate(changes(getattr(config, key))):
                    tried = [name for name in STAGES if key not in found[name] and (not number or key in lines[name])]
                    if not tried:
                        continue
                    other = config.model_copy(update={key: value})
                    if key in (*OWN, "word_vectors") and not legal(other):
                        continue
                    for name in tried:
                        stage, every = STAGES[name], choices[name]
                        after = [said(stage, other, one) for one in some(every)]
                        if after != before[name] or chosen(stage, other) != every:
                            found[name].add(key)
    return found


@pytest.mark.parametrize("name", STAGES)
def test_the_keys_in_a_stages_line_are_those_whose_change_reruns_it(name: str, decisive: dict[str, set[str]]) -> None:
    assert decisive[name] == named(STAGES[name]) - INERT.get(name, set())


@cache
def functions_of(module: Any) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(inspect.getsource(module))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def read_keys(stage: Stage) -> set[str]:
    """The keys that a stage's function takes from the configuration, and the functions beside it that it names."""
    known = {name: node for one in HELPERS for name, node in functions_of(one).items()}
    known |= functions_of(inspect.getmodule(stage.function))
    reached, taken = [stage.name], set()
    for name in reached:  # which grows meanwhile
        for node in ast.walk(known[name]):
            word = getattr(node, "id", None) or getattr(node, "attr", None)
            reached += [word] if word in known and word not in reached else []
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("config", "settings", "run.config"):
                taken.add(node.attr)
    return taken & Config.model_fields.keys()


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_looks_at_no_key_beside_those_in_its_line(name: str) -> None:
    stage = STAGES[name]
    assert read_keys(stage) - named(stage) - NOT_DECISIVE == COVERED.get(stage.command, set())
