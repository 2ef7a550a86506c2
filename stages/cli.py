"""The command `jointspace`, with all commands of the catalogue. A module is imported when its command is used."""

import gc
import logging
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

import click

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, UsageError, did_you_mean
from pipeline.printable import printable
from stages.catalogue import COMMANDS, GROUPS, STAGES, USER_COMMANDS, first_sentence, help_text, open_command
from stages.commands import Command, command_of, runnable

log = logging.getLogger(__name__)
FORMER = {
    "index-add": "add", "index-remove": "remove", "prepare-text-encoder": "prepare-encoder",
    "import-features": "import-vectors", "import-sentences": "import-vectors",
    "tabulate": "reproduce",
}  # fmt: skip
"""Former name of a command -> its present name. The former names work until the next release."""
FORMER_FOLDERS = {"prepare-text-encoder": "text/encoders", "import-features": "features", "import-sentences": "text"}
"""Former name of a stage -> the folder of a run to which this stage wrote. The stage that replaces it needs the folder
before the name of the encoder: `import-features clip` has become `stage import-vectors features/clip`."""
GPU_IS_FULL = (
    "The memory of the GPU is full. Lower batch_size of the model or generator (or finetune.images for finetune), end"
    " other programs that use the GPU, or set device to cpu in the configuration."
)
"""The error of a stage that cannot continue with smaller batches when the memory of the GPU is full."""
STAGES_BY_TITLE = {
    title: [name for name in STAGES if COMMANDS[name].split(".")[1] == folder] for folder, title in GROUPS.items()
}


class OneLine(logging.Formatter):
    """A formatter of log messages for the terminal and the log file. Characters that would control a terminal are
    written as escapes, such as \\x1b.

    Commands of jointspace and pip in a message are written so that they can be copied into the shell (see `runnable`).
    A traceback is not changed.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(runnable(super().formatMessage(record)))


class AboveBars(logging.StreamHandler):
    """A handler of log messages that writes them above the progress bars of tqdm, if the terminal shows any."""

    def emit(self, record: logging.LogRecord) -> None:
        if "tqdm" not in sys.modules:
            super().emit(record)
            return
        with sys.modules["tqdm"].tqdm.external_write_mode(self.stream):
            super().emit(record)


class Catalogue(Command, click.Group):
    """A group that lists its commands under titles. `titled` maps a title to the names of commands.

    The module of a command is imported when the command is used. The help of the group imports the modules of all its
    commands.
    """

    def __init__(self, *arguments: Any, titled: Mapping[str, Collection[str]], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.titled = {title: names for title, names in titled.items() if names}

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return [name for names in self.titled.values() for name in names]

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """Return the command `cmd_name`, or None if this group has no such command. Underscores in `cmd_name` count as
        hyphens."""
        name = cmd_name.replace("_", "-")
        if name not in self.list_commands(ctx):
            return None
        command = open_command(name)
        return command if isinstance(command, click.Command) else command_of(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = did_you_mean(args[0], self.list_commands(ctx))
            raise UsageError(f"Unknown command {args[0]}. {near}`{self._path} --help` lists the commands.")
        return super().resolve_command(ctx, args)

    @property
    def _path(self) -> str:
        return "jointspace" if self.name == "jointspace" else f"jointspace {self.name}"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands under their titles, each with the first sentence of its help, and then the options."""
        for title, names in self.titled.items():
            with formatter.section(title):
                formatter.write_dl([(name, first_sentence(help_text(name))) for name in names])
        click.Command.format_options(self, ctx, formatter)


class Jointspace(Catalogue):
    """The command `jointspace`. Besides its own commands, it has the group `stage`. It also accepts former names of
    commands, and names of stages without the word `stage`."""

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name == "stage":
            return stage
        return super().get_command(ctx, cmd_name) or stage.get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0].replace("_", "-") if args else ""
        if name in FORMER:
            args = _translate(name, args[1:])
        elif name in STAGES:
            log.warning("jointspace %s is called jointspace stage %s now. Use the new name.", name, name)
        return super().resolve_command(ctx, args)


def _translate(former: str, args: list[str]) -> list[str]:
    """Return the arguments that replace the command `former` and its arguments `args`.

    `index-add --index A --from B --output C` becomes `add A B --copy-to C`. A warning names the new command, except if
    only the name of the command differs.
    """
    if former in FORMER_FOLDERS:
        options = ("--run", "--config", "--set-config", "--part")
        named = [
            word if word.startswith("-") or before in options else f"{FORMER_FOLDERS[former]}/{word}"
            for before, word in zip(["", *args], args, strict=False)
        ]
        translated = ["stage", FORMER[former], *named]
    elif not any(word.startswith("--index") for word in args):
        return [FORMER[former], *args]
    else:
        words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
        given = list(zip(words[::2], words[1::2], strict=False))
        named = ("--image",) if former == "index-remove" else ("--from", "--run")
        renamed = {"--output": "--copy-to", "--list": "--from-file"}
        kept = [word for option, value in given if option in renamed for word in (renamed[option], value)]
        first = [value for option, value in given if option == "--index"]
        translated = [FORMER[former], *first, *(value for option, value in given if option in named), *kept]
    command = shlex.join(["jointspace", *translated])
    log.warning("%s is called %s now. The former name works until the next release.", former, command)
    return translated


@click.group(
    "stage",
    cls=Catalogue,
    titled=STAGES_BY_TITLE,
    epilog="`jointspace stage NAME --help` shows the options of a stage.",
)
def stage() -> None:
    """Run a single stage of a run. `jointspace run` calls all stages that need to run."""


@click.group(
    "jointspace",
    cls=Jointspace,
    titled=USER_COMMANDS,
    former={"--cards": "--gpus"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Threads of all libraries. [default: all cores]"
)
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="Reserve N GPUs. [default: all visible GPUs]")
# The rules of Snakemake pass --log, so that a job writes its messages to a file. The help does not show this option.
@click.option("--log", "log_path", type=click.Path(dir_okay=False), hidden=True)
@click.option(
    "--allow",
    metavar="MODULE:NAME",
    multiple=True,
    help="Allow this model or encoder to be imported and run.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show warnings and errors only.")
@click.option("-v", "--verbose", is_flag=True, help="Show more messages, with time and module.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="jointspace")
def cli(
    threads: int | None,
    gpus: int | None,
    log_path: str | None,
    allow: tuple[str, ...],
    debug: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Search your own photos in plain language, with a model fitted to your captions.
    `jointspace stage --help` lists the stages of a run.
    """
    runtime.configure(threads)
    # Pydantic would otherwise search every installed package for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    handlers: list[logging.Handler] = [AboveBars(sys.stderr)]
    if log_path:
        try:
            handlers.append(logging.FileHandler(log_path, "w", "utf-8"))
        except OSError as error:
            raise UsageError(
                f"The log file {log_path} cannot be written ({error.strerror}). Give another file with --log."
            ) from error
    for handler in handlers:
        handler.setFormatter(OneLine("%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=handlers)
    for package in ("pipeline", "stages"):
        level = logging.DEBUG if verbose else logging.INFO
        logging.getLogger(package).setLevel(logging.WARNING if quiet else level)
    if allow:
        from pipeline.config import registry

        registry.allow(allow)
    if gpus is not None:
        from pipeline.compute.device import take_gpus

        take_gpus(gpus)


def main() -> None:
    """Run the command that `sys.argv` names, and exit. The exit codes are listed in docs/recovery.md."""
    try:
        cli(standalone_mode=False)
    except JointspaceError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        error.message = printable(error.message)  # pyright: ignore[reportAttributeAccessIssue]  # click omits its type
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except RuntimeError as error:
        from pipeline.compute.device import memory_is_full

        if not memory_is_full(error, 1):
            raise
        _fail(GPU_IS_FULL, UsageError.exit_code)
    finally:
        gc.disable()  # A last garbage collection would only delay the end of the process.


def _fail(message: str, code: int) -> NoReturn:
    """Write an error to stderr and to the log file, if any, and exit with the exit code `code`.

    With --debug, nothing is written, and the error that is being handled is raised once more.
    """
    if "--debug" in sys.argv:
        raise
    message = printable(runnable(message))
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream:
            handler.stream.write(f"jointspace: {message}\n")
    plain = "NO_COLOR" in os.environ  # click itself omits colours if stderr is not a terminal
    click.echo(f"{'jointspace:' if plain else click.style('jointspace:', fg='red')} {message}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
