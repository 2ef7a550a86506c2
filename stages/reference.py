"""The page of all stages, from their declarations: `python -m stages.reference > docs/stages.md`."""

import importlib
import sys
from pathlib import Path

from pipeline.run import Stage
from pipeline.run.layout import Layout
from stages.catalogue import COMMANDS, declared
from stages.commands import first_sentence

HEAD = """# Stages: what each makes

A run has one job of a stage for each of what the third column says; a part is a range of shards. A stage is made again
when what it reads has changed, or its version, or a key of the configuration that decides its result: after a change
`snakemake all -n` lists the jobs that it reruns, and why. What stages read is in [commands.md](commands.md), the keys
are explained in [configuration.md](configuration.md). No results depend on where and by how many processes they are
made.

The last column says which stages compute on a GPU where there is one. Threads and memory stand in the rules, in
`stages/rules`; a profile may ask for something else. What stages took is in [measured.md](measured.md) and
[scaling.md](scaling.md), and of a run of yours in its report. Made from the declarations of the stages by
`python -m stages.reference > docs/stages.md`.

| command, version | what it does | a job for each | writes | GPU |
|---|---|---|---|---|
"""
OTHERS = """
## Commands that no rule runs

| command | what it does |
|---|---|
"""


def render() -> str:
    """The page."""
    stages = declared()
    others = [name for name in COMMANDS if name.replace("-", "_") not in stages]
    page = HEAD + "".join(map(_row, stages.values())) + OTHERS
    return page + "".join(f"| `{name}` | {first_sentence(_command(name).help)} |\n" for name in others)


def _row(stage: Stage) -> str:
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


def _command(name: str):
    return importlib.import_module(COMMANDS[name]).command


if __name__ == "__main__":
    sys.stdout.write(render())
