"""All commands and declared stages in the folders of this package.

`python -m stages.catalogue > docs/stages.md` writes their page.
"""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.run.stage import Stage

if TYPE_CHECKING:
    import click

GROUPS = {
    "collections": "Collections",
    "encoders": "Encoders",
    "images": "Images",
    "text": "Text",
    "models": "Models",
    "index": "Indexes",
    "results": "Results",
    "papers": "Tables of the papers",
    "operations": "Runs and this machine",
}
"""Folder of this package -> the title of its commands in `--help`, in the order of `--help`."""
SEVERAL = {
    "extract": ("extract", "fit-map", "map-features"),
    "regions": ("extract-regions", "pool-regions"),
    "prepare": ("build-token-vocabulary", "train-word-vectors"),
    "encode": ("encode-sentences", "simulate-documents", "encode-documents", "encode-tokens"),
    "trees": ("train-parser", "parse", "build-label-table", "encode-trees"),
    "fit": ("fit", "adopt"),
    "embed": ("embed", "combine", "join-embeddings"),
    "phrases": ("align", "embed-phrases", "rank-phrases"),
    "evaluate": ("evaluate", "rank-sentences", "summarise"),
    "run": ("run", "migrate"),
    "plan": ("plan", "doctor"),
    "verify": ("verify", "explain"),
    "captions": ("train-generator", "describe", "evaluate-descriptions"),
}
"""Modules of several commands. Every other module has one command, with the name of the module."""
COMMANDS = {
    command: f"stages.{group}.{module.name}"
    for group in GROUPS
    for module in pkgutil.iter_modules([str(Path(__file__).parent / group)])
    for command in SEVERAL.get(module.name, [module.name.replace("_", "-")])
}
"""Command -> its module, in the order of the groups."""
FIRST = ("init", "run", "search", "serve", "apply", "add", "remove", "plan", "verify", "doctor")
"""The commands that a user needs first."""


def open_command(name: str) -> "click.Command | Stage":
    """Import a command of the catalogue: `command` of its module, or else the stage of this name."""
    module = importlib.import_module(COMMANDS[name])
    return getattr(module, "command", None) or getattr(module, name.replace("-", "_"))


def help_text(name: str) -> str:
    """Return the help of a command, which is the docstring of a stage."""
    command = open_command(name)
    return (command.function.__doc__ if isinstance(command, Stage) else command.help) or ""


def declared() -> dict[str, Stage]:
    """Return the stages that have rules, by name. Their modules are imported, which is quick."""
    named = {name.replace("-", "_"): importlib.import_module(module) for name, module in COMMANDS.items()}
    stages = {name: getattr(module, name, None) for name, module in named.items()}
    return {name: stage for name, stage in stages.items() if isinstance(stage, Stage) and stage.has_rule}


HEAD = """# Commands

`jointspace COMMAND --help` shows the options of a command. This page is made by `python -m stages.catalogue >
docs/stages.md`.

| command | what it does |
|---|---|
"""
STAGES = """
## Stages

`jointspace run` and `snakemake all` call these. By hand, `jointspace embed ncca --run results/demo` does what the
rule does. A stage is made again when what it reads, its version or a key that decides its result has changed;
`snakemake all -n` lists what will run, and why. Results do not depend on where, or in how many processes, they are
made. A part is a range of shards. The last column says which stages compute on a GPU if there is one.

| stage, version | what it does | one job for each | writes | GPU |
|---|---|---|---|---|
"""


def render() -> str:
    """Render docs/stages.md: all commands, and all declared stages with what they write."""
    from stages.commands import first_sentence

    stages = declared()
    others = [*FIRST, *(name for name in COMMANDS if name not in FIRST and name.replace("-", "_") not in stages)]
    page = HEAD + "".join(f"| `{name}` | {first_sentence(help_text(name))} |\n" for name in others)
    return page + STAGES + "".join(map(_row, stages.values()))


def _row(stage: Stage) -> str:
    from pipeline.run.layout import Layout
    from stages.commands import first_sentence

    wildcards = [f"{{{name}}}" for name in stage.names]
    writes = ", ".join(f"`{artefact.name}`" for artefact in stage.outputs(Layout(Path()), *wildcards))
    each = [*stage.names, *(["part"] if stage.sharded and stage.name != "accumulate" else [])]
    cells = [
        f"`{stage.command}` {stage.version}",
        first_sentence(stage.function.__doc__),
        ", ".join(each) or "run",
        writes,
        "yes" if stage.gpu else "",
    ]
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(render())
