"""docs/stages.md as a reader has it: every command, the keys that it and its rule read, what a job asks for."""

import ast
import re
from pathlib import Path

import pytest

from pipeline.config import Config, load
from pipeline.plan.sizes import sizes_of
from pipeline.specs.generators import GENERATORS
from pipeline.specs.models import made_by
from stages.catalogue import COMMANDS, declared

ROOT = Path(__file__).parents[1]
HELPERS = ("inputs", "boxes", "generators")
OWN = {spec.key for spec in [*made_by("train"), *GENERATORS]}
"""Sections of one model or generator; the page names the defaults that they are laid over."""
KEYS = Config.model_fields.keys() - OWN
PAGE = {
    line.split("`")[1]: [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs/stages.md").read_text().splitlines()
    if line.startswith("| `")
}
"""Command -> the cells of its line."""


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


def named(command: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", PAGE[command][1]))


def test_every_command_has_a_line_and_every_key_is_of_some_command() -> None:
    assert sorted(PAGE) == sorted(COMMANDS)
    keys = set().union(*map(named, PAGE))
    assert keys >= KEYS, f"no stage has {KEYS - keys}"
    assert keys <= Config.model_fields.keys() | {"encoder_defaults"}


def test_a_line_says_what_the_demos_jobs_ask_for_and_that_a_million_images_need_no_less() -> None:
    demo = sizes_of(load(), None)
    for command, cells in PAGE.items():
        of_demo, of_million = ([int(n) for n in re.findall(r"\d+", cell.replace(",", ""))] for cell in cells[-2:])
        stage = declared().get(command.replace("-", "_"))
        asked = [stage.needs.memory(demo), stage.needs.minutes(demo)] if stage else []
        assert of_demo == pytest.approx(asked, abs=1), command
        assert all(more >= less for less, more in zip(of_demo, of_million, strict=True)), command


@pytest.mark.parametrize("command", COMMANDS)
def test_a_stage_names_the_keys_that_its_module_reads(command: str) -> None:
    tree = ast.parse((ROOT / f"{COMMANDS[command].replace('.', '/')}.py").read_text())
    read = read_keys(tree) | shared_keys(tree)
    assert read <= named(command), f"{command} reads {read} too"
