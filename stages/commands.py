"""Options and functions that several commands use, and the function that makes the command of a stage."""

import logging
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from pipeline.printable import counted, printable

if TYPE_CHECKING:
    from pipeline.run import Run, Stage

log = logging.getLogger(__name__)
PATH = click.Path(path_type=Path)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


class _ConfigType(click.Path):
    """A type of click for the path of a configuration. Raises UsageError for a folder.

    The message suggests the configuration in the folder, or else the configuration in the current folder that has the
    name of the folder. If neither exists, the message has the command that writes a configuration.
    """

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        from pipeline.config.section import as_name
        from pipeline.errors import UsageError

        folder = Path(value)
        if folder.is_dir():
            names = [folder / "config.yaml", Path(f"{as_name(folder.resolve().name)}.yaml")]
            found = [str(path) for path in names if path.is_file()]
            write = f"Write one with `{shlex.join(['jointspace', 'init', str(folder)])}`."
            remedy = f"Did you mean {found[0]}?" if found else write
            raise UsageError(f"{folder} is a folder and not a configuration. {remedy}")
        return super().convert(value, param, ctx)


class _RunType(click.Path):
    """A type of click for the folder of a run. Raises UsageError for a configuration file. The message names the folder
    of the run with this configuration."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        from pipeline.config import loading
        from pipeline.errors import UsageError

        if Path(value).suffix in (".yaml", ".yml") and os.path.isfile(value):
            config = loading.load(Path(value))
            root = Path(config.results_root, config.name)
            raise UsageError(f"{value} is a configuration and not the folder of a run. Did you mean {root}?")
        return super().convert(value, param, ctx)


CONFIG = _ConfigType(path_type=Path, dir_okay=False)
RUN = _RunType(path_type=Path, file_okay=False)


class Command(click.Command):
    """A command that accepts the former names of its options, and logs a warning if a former name is used.

    `former` maps the former name of an option to its new name, or to "" if the value of the option is the first
    argument of the command now.
    """

    def __init__(self, *arguments: Any, former: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.former = former or {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        usage = f"{ctx.command_path} {' '.join(self.collect_usage_pieces(ctx)[1:])}"
        return super().parse_args(ctx, replace_former_options(args, self.former, usage))


def replace_former_options(args: Sequence[str], former: Mapping[str, str], usage: str) -> list[str]:
    """Return the arguments of a command with the new names of options. Arguments after `--` are not changed.

    `former` maps the former name of an option to its new name, or to "" if the value of the option is the first
    argument now. Each former name causes a warning. `usage` is the usage line of the command, for these warnings.
    """
    first = []
    rest = []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *words]
        elif name not in former:
            rest.append(word)
        elif former[name]:
            log.warning("%s is called %s now. Use the new name.", name, former[name])
            rest.append(former[name] + equals + value)
        else:
            log.warning("%s is an argument now, as in: %s. Leave out the name of the option.", name, usage)
            first.append(value if equals else next(words, ""))
    return [*first, *rest]


run_option = click.option("--run", "root", type=RUN, required=True, help="Folder of the run.")
part_option = click.option(
    "--part", type=click.IntRange(min=0), metavar="N", help="Number of a chunk of shards. [default: all chunks]"
)
force_option = click.option("--force", "again", is_flag=True, help="Rerun jobs that are finished.")
set_config_option = click.option(
    "--set-config", "set_config_path", type=CONFIG, metavar="FILE",
    help="Replace the configuration of the run by this file, for good. [default: keep the run's configuration]",
)  # fmt: skip
config_option = click.option(
    "-c", "--config", "config_path", type=CONFIG, metavar="FILE",
    help="Configuration whose keys override config/default.yaml. [default: none]",
)  # fmt: skip
cores_option = click.option(
    "-j", "--cores", type=click.IntRange(min=1), metavar="N", help="Number of CPU cores to use. [default: all]"
)
verify_option = click.option(
    "--verify", is_flag=True, help="Hash every file of the index. [default: only files that were changed or are new]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
copy_option = click.option(
    "--copy-to", "output", type=FOLDER, metavar="FOLDER",
    help="Change a copy of INDEX in this new folder instead of INDEX. Unchanged files are hard links.",
)  # fmt: skip
STAGE_FORMER = {"--again": "--force", "--config": "--set-config"}
"""Former name of an option of stages -> its present name."""


def output(what: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the option `--output` to a command, and locks the folder that the user gives while
    the command runs. `what` is the help text of the option."""
    option = click.option("-o", "--output", type=FOLDER, required=True, metavar="FOLDER", help=what)
    return lambda function: option(lock_output(function))


def lock_output(function: Callable[..., None]) -> Callable[..., None]:
    """Decorate the function of a command so that it locks the file or folder `output` while it runs.

    A second command with the same output fails, and its message names the first command.
    """

    @wraps(function)
    def locked(output: Path, **arguments: object) -> None:
        from pipeline.storage.locks import hold

        with hold(output):
            function(output=output, **arguments)

    return locked


def runnable(text: str) -> str:
    """Return the message `text` with commands that run in the shell from which this process was started.

    If the shell finds no program `jointspace` or `pip`, or finds the program of another Python, the name in a command
    is replaced by the path of the program next to this Python. The commands therefore also work if the virtual
    environment is not activated.
    """
    from stages.catalogue import USER_COMMANDS

    names = "|".join(chain(*USER_COMMANDS.values(), ["stage", "--allow"]))
    commands = rf"(?<![\w/.-])(?:jointspace(?= (?:{names})\b)|pip(?= install\b))"
    return re.sub(commands, lambda found: _program(found[0]), text)


@cache
def _program(name: str) -> str:
    """Return the path of the program `name` that is installed next to this Python, quoted for a shell.

    The path is relative if the program is in or below the current folder. If the shell finds this program by its name,
    or if this Python has no such program, `name` itself is returned.
    """
    installed = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if not installed.exists() or (found and os.path.realpath(Path(found).parent) == os.path.realpath(installed.parent)):
        return name
    nearby = os.path.relpath(installed)
    return shlex.quote(str(installed) if nearby.startswith("..") else nearby)


def find_indexes() -> list[Path]:
    """Return the folders of all indexes of the runs in the folder `results`, in the order of their paths."""
    from pipeline.storage.card import CARD

    results = Path("results")
    cards = [card for below in ("*", "*/*") for card in results.glob(f"*/index/{below}/{CARD}")]
    return sorted({results.joinpath(*card.relative_to(results).parts[:3]) for card in cards})


def only_index(command: str) -> Path:
    """Return the only index in the folder `results`, for a command that was called without an index.

    `command` is an example of the command with the word INDEX, for the message. Raises UsageError if there is not
    exactly one index.
    """
    from pipeline.errors import UsageError

    found = find_indexes()
    if len(found) == 1:
        return found[0]
    listed = (
        f"The folder results has the indexes {', '.join(map(str, found))}."
        if found
        else "The folder results has no index."
    )
    example = command.replace("INDEX", shlex.quote(str(found[0] if found else "results/demo/index/sae")))
    raise UsageError(f"Give the folder of an index, as in: {example}. {listed}")


def require_order(folder: Path, rest: Sequence[str], accepts: Callable[[Path], bool], command: str) -> None:
    """Raise UsageError, with the right order, if the folder of a command is the last and not the first argument.

    `folder` is the first argument, `rest` are the other arguments, and `command` is the name of the command.
    `accepts(path)` says whether the command can use the folder `path`. The error is raised if the command can use the
    last argument, but cannot use `folder`. Other wrong arguments are not reported.
    """
    from pipeline.errors import UsageError

    if rest and os.path.isdir(rest[-1]) and accepts(Path(rest[-1])) and not accepts(folder):
        words = ["jointspace", command, rest[-1], str(folder), *rest[:-1]]
        raise UsageError(f"The arguments are in the wrong order. The folder comes first: {shlex.join(words)}")


def command_of(stage: "Stage") -> click.Command:
    """Make the command of a stage, with the arguments and options that every stage has, and the stage's own options.

    `jointspace stage embed ncca --run results/demo`, for example, does the same as the Snakemake rule of the stage.
    """

    def callback(
        root: Path,
        set_config_path: Path | None,
        again: bool,
        **options: Any,  # the arguments of the stage, --part, and the options of the stage
    ) -> None:
        from pipeline.run.runner import make_shards, run_stage

        run = begin(root, set_config_path)
        names = [name for name in map(options.pop, stage.names) if name is not None]
        jobs = stage.select(run.config, names)
        kept = 0
        if stage.together:
            kept = make_shards(run, stage, jobs, options["part"], again)
        else:
            source = click.get_current_context().get_parameter_source
            given = (option for option in stage.options if not option.is_flag)
            again |= any(source(option.name) == ParameterSource.COMMANDLINE for option in given)
            for job in jobs:
                kept += run_stage(run, stage, job, again=again, **options)
        if kept:
            outputs = counted(kept, "shard" if stage.sharded else "output")
            log.info(
                "%s: The inputs of %s are unchanged, so this work was skipped. To repeat the work, add --force.",
                stage.command, outputs,
            )  # fmt: skip
        say_next(lambda: stage.then(run, *jobs[-1]) or shlex.join(["jointspace", "run", str(run.layout.config)]))

    arguments = [click.argument(name, required=False) for name in stage.names]
    part = [part_option] if stage.sharded else []
    for decorate in reversed([*arguments, run_option, *part, force_option, set_config_option]):
        callback = decorate(callback)
    named = " and ".join(name.upper() for name in stage.names)
    epilog = f"Without {named}, the stage makes all of its artefacts that the run needs." if named else None
    command = click.command(
        stage.command, cls=Command, former=STAGE_FORMER, help=stage.function.__doc__, epilog=epilog
    )(callback)
    command.params += stage.options
    return command


def say(line: str, err: bool = False) -> None:
    """Print a line for the user on stdout, or on stderr if `err`, with commands that can be copied (see `runnable`)."""
    click.echo(printable(runnable(line)), err=err)


def say_next(following: Callable[[], str | None]) -> None:
    """Write to stderr which command to run next: the command that `following` returns. Nothing is written if stderr is
    not a terminal, or if `following` returns None."""
    if sys.stderr.isatty() and (command := following()):
        say(f"next: {command}", err=True)


def begin(root: Path, config_path: Path | None) -> "Run":
    """Open the run in the folder `root` with its stored configuration.

    If `config_path` is given, the run gets the configuration in this file, and the file replaces the stored
    configuration.
    """
    from pipeline.run.run import Run

    if config_path is None:
        return Run(root)
    import yaml

    from pipeline.config import loading
    from pipeline.storage.batch import publish_text

    run = Run(root, loading.load(config_path))
    publish_text(run.layout.config, yaml.safe_dump(loading.read_mapping(config_path), sort_keys=False))
    return run
