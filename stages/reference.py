"""The page of all commands, from their declarations: `python -m stages.reference > docs/stages.md`."""

import sys
from pathlib import Path

from pipeline.run import Stage
from pipeline.run.layout import Layout
from stages.catalogue import COMMANDS, FIRST, declared, open_command
from stages.commands import first_sentence

HEAD = """# Commands

`jointspace COMMAND --help` shows the options of a command. This page is made by `python -m stages.reference >
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
    """The page."""
    stages = declared()
    others = [*FIRST, *(name for name in COMMANDS if name not in FIRST and name.replace("-", "_") not in stages)]
    page = HEAD + "".join(f"| `{name}` | {first_sentence(open_command(name).help)} |\n" for name in others)
    return page + STAGES + "".join(map(_row, stages.values()))


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


if __name__ == "__main__":
    sys.stdout.write(render())
