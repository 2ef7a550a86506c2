"""docs/stages.md names every command, and the keys that its module and its rule read."""

import ast
import re
from pathlib import Path

import pytest

from pipeline.config import Config
from pipeline.plan.reference import STAGES, render
from pipeline.specs import GENERATORS, TRAINED
from stages.cli import COMMANDS

ROOT = Path(__file__).parents[1]
HELPERS = ("inputs", "boxes", "generators", "starts")
OWN = {name.replace("-", "_") for name in [*TRAINED, *GENERATORS]}
"""Sections of one model or generator; the page names the defaults that they are laid over."""
KEYS = Config.model_fields.keys() - OWN
RULE = re.compile(r"^(?:rule|checkpoint) \w+:.*?\{JOINTSPACE\} (?P<command>[a-z-]+).*?(?=^\S|\Z)", flags=re.M | re.S)


def read_keys(tree: ast.AST) -> set[str]:
    """The keys of a whole configuration that a piece of code takes: `settings.fit`, `config.load(path).text`."""
    loaded = {"settings"} | {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _loads(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return KEYS & {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and (_loads(node.value) or isinstance(node.value, ast.Name) and node.value.id in loaded)
    }


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("load", "config.load")


def shared_keys(tree: ast.AST) -> set[str]:
    """The keys that the functions take which a stage has from the modules that stages share."""
    taken = set()
    for module in HELPERS:
        body = ast.parse((ROOT / f"stages/{module}.py").read_text()).body
        functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
        used = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == f"stages.{module}"
            for alias in node.names
        } | {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == module
        }
        used &= functions.keys()
        for name in list(used):
            used |= {node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)} & functions.keys()
        taken |= set().union(*(read_keys(functions[name]) for name in used))
    return taken


def test_the_page_is_of_these_stages() -> None:
    assert (ROOT / "docs/stages.md").read_text() == render()
    assert list(STAGES) == list(COMMANDS)


def test_every_key_is_of_some_stage() -> None:
    named = {key for stage in STAGES.values() for key in stage.keys}
    assert named >= KEYS, f"pipeline/plan/reference.py: no stage has {KEYS - named}"
    assert named <= Config.model_fields.keys() | {"encoder_defaults"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stage_names_the_keys_that_its_module_reads(command: str) -> None:
    tree = ast.parse((ROOT / f"{COMMANDS[command].replace('.', '/')}.py").read_text())
    read = read_keys(tree) | shared_keys(tree)
    assert read <= set(STAGES[command].keys), f"pipeline/plan/reference.py: {command} reads {read} too"


def test_a_stage_names_the_keys_that_its_rule_depends_on() -> None:
    rules = list(RULE.finditer((ROOT / "Snakefile").read_text()))
    assert len(rules) > 30
    for rule in rules:
        slices = " ".join(re.findall(r"slice_of\((.*?)\n?\s*\),?\n", rule[0], flags=re.S))
        named = KEYS & {*re.findall(r'"(\w+)"', slices), *re.findall(r"CONFIG\.(\w+)", slices)}
        assert named <= set(STAGES[rule["command"]].keys), f"{rule['command']} depends on {named}"
