"""All commands and declared stages: one module each, in the folders below."""

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
COMMANDS = {
    module.name.replace("_", "-"): f"stages.{group}.{module.name}"
    for group in GROUPS
    for module in pkgutil.iter_modules([str(Path(__file__).parent / group)])
}
"""Command -> its module, in the order of the groups."""
FIRST = ("init", "run", "search", "serve", "apply", "add", "remove", "plan", "verify", "doctor")
"""The commands that a user needs first."""


def declared() -> "dict[str, Stage]":
    """The declared stages by name; their modules are imported, which is quick."""
    modules = map(importlib.import_module, COMMANDS.values())
    return {module.STAGE.name: module.STAGE for module in modules if hasattr(module, "STAGE")}
