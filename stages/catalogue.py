"""All commands and declared stages, in the folders below."""

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

    from pipeline.run import Stage

GROUPS = {
    "collections": "Collections",
    "images": "Images",
    "text": "Text",
    "models": "Models",
    "index": "Indexes",
    "results": "Results",
    "papers": "Tables of the papers",
    "operations": "Runs and this machine",
}
"""Folder of this package -> what `--help` calls its commands, in its order."""
SEVERAL = {
    "mapped_features": ("fit-map", "map-features"),
    "regions": ("extract-regions", "pool-regions"),
    "prepare": ("build-token-vocabulary", "train-word-vectors", "prepare-text-encoder"),
    "encode": ("encode-sentences", "import-sentences", "simulate-documents", "encode-documents", "encode-tokens"),
    "trees": ("train-parser", "parse", "build-label-table", "encode-trees"),
    "fit": ("fit", "adopt"),
    "ensembles": ("combine", "join-embeddings"),
    "phrases": ("align", "embed-phrases", "rank-phrases"),
    "evaluate": ("evaluate", "rank-sentences", "summarise"),
    "study": ("study", "sweep", "tabulate"),
    "run": ("run", "migrate"),
    "plan": ("plan", "doctor"),
    "verify": ("verify", "explain"),
    "captions": ("train-generator", "describe", "evaluate-descriptions"),
}
"""Modules of several commands; every other has one, of its own name."""
COMMANDS = {
    command: f"stages.{group}.{module.name}"
    for group in GROUPS
    for module in pkgutil.iter_modules([str(Path(__file__).parent / group)])
    for command in SEVERAL.get(module.name, [module.name.replace("_", "-")])
}
"""Command -> its module, in the order of the groups."""
FIRST = ("init", "run", "search", "serve", "apply", "add", "remove", "plan", "verify", "doctor")
"""The commands that a user needs first."""


def open_command(name: str) -> "Stage | click.Command":
    """The command `name` of the catalogue: what its module calls `command`, else the stage of this name."""
    module = importlib.import_module(COMMANDS[name])
    return getattr(module, "command", None) or getattr(module, name.replace("-", "_"))


def declared() -> "dict[str, Stage]":
    """The stages that have rules, by name; their modules are imported, which is quick."""
    named = {name.replace("-", "_"): importlib.import_module(module) for name, module in COMMANDS.items()}
    stages = {name: getattr(module, name, None) for name, module in named.items()}
    return {name: stage for name, stage in stages.items() if getattr(stage, "has_rule", False)}
