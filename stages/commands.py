"""Options that commands share, and the commands of declared stages."""

import re
import shlex
import sys
from collections.abc import Callable
from functools import wraps
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pipeline.printable import printable

if TYPE_CHECKING:
    from pipeline.run import Run, Stage

SENTENCE = re.compile(r".*?(?<!\bal)\.(?= |$)|.*")
"""The first sentence of a paragraph. The point of "et al." does not end it."""
PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
run_option = click.option("--run", "root", type=FOLDER, required=True, help="The run's folder.")
part_option = click.option("--part", type=click.IntRange(min=0), help="Process one part of the shards. [default: all]")
again_option = click.option("--again", is_flag=True, help="Repeat finished work.")
run_config_option = click.option(
    "--config", "config_path", type=FILE,
    help="New configuration of the run, kept from now on. [default: the run's present one]",
)  # fmt: skip
config_option = click.option(
    "--config", "config_path", type=FILE, help="Configuration that overrides config/default.yaml. [default: none]"
)
verify_option = click.option(
    "--verify", is_flag=True, help="Hash every file of the index. [default: only files that were changed or are new]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


images_option = click.option(
    "--images", "images_root", type=FOLDER,
    help="Where the photos are. [default: the folder that the index was made from]",
)  # fmt: skip
copy_option = click.option(
    "--output",
    type=FOLDER,
    help="Change a copy in this new folder (links to the files of INDEX) and leave INDEX as it is.",
)


def output(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the option `--output`, a folder. `what` is its help.

    The command locks the folder. A second command on the same folder fails and names the first one.
    """

    def lock(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def locked(output: Path, **arguments: object) -> None:
            from pipeline.storage.locks import hold

            with hold(output):
                function(output=output, **arguments)

        return click.option("--output", type=FOLDER, required=True, help=what)(locked)

    return lock


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join(cleandoc(text or "").partition("\n\n")[0].split())
    found = SENTENCE.match(paragraph)
    return found[0] if found else ""


def command_of(stage: "Stage") -> click.Command:
    """Make the command of a stage: `jointspace embed ncca --run results/demo` does the same as the stage's rule."""

    def callback(
        root: Path,
        config_path: Path | None,
        again: bool,
        **options: Any,  # the names of the stage, its part, and its own options
    ) -> None:
        from pipeline.run.runner import make_shards, run_stage

        run = begin(root, config_path)
        names = [name for name in map(options.pop, stage.names) if name is not None]
        jobs = stage.select(run.config, names)
        if stage.together:
            make_shards(run, stage, jobs, options["part"], again)
        else:
            source = click.get_current_context().get_parameter_source
            given = (option for option in stage.options if not option.is_flag)
            again |= any(source(option.name) == ParameterSource.COMMANDLINE for option in given)
            for job in jobs:
                run_stage(run, stage, job, again=again, **options)
        say_next(lambda: stage.then(run, *jobs[-1]) or shlex.join(["jointspace", "run", str(run.layout.config)]))

    arguments = [click.argument(name, required=False) for name in stage.names]
    part = [part_option] if stage.sharded else []
    for decorate in reversed([*arguments, run_option, *part, again_option, run_config_option]):
        callback = decorate(callback)
    command = click.command(stage.command, help=stage.function.__doc__)(callback)
    command.params += stage.options
    return command


def say_next(following: Callable[[], str | None]) -> None:
    """Print `following()` on a terminal as the command to run next."""
    if sys.stderr.isatty() and (command := following()):
        click.echo(printable(f"next: {command}"), err=True)


def begin(root: Path, config_path: Path | None) -> "Run":
    """Open the run in the folder `root`. A configuration in `config_path` becomes the configuration of the run."""
    from pipeline.run.run import Run

    if config_path is None:
        return Run(root)
    import yaml

    from pipeline.config import loading
    from pipeline.storage.batch import publish_text

    run = Run(root, loading.load(config_path))
    publish_text(run.layout.config, yaml.safe_dump(loading.read_mapping(config_path), sort_keys=False))
    return run
