"""The command `jointspace` with all commands of the catalogue. A command is imported when it is used."""

import gc
import logging
import os
import shlex
import sys
from typing import NoReturn

import click

from pipeline.compute import runtime
from pipeline.errors import JointspaceError, UsageError, meant
from pipeline.printable import printable
from stages.catalogue import COMMANDS, FIRST, GROUPS, help_text, open_command
from stages.commands import command_of, first_sentence

FORMER = {
    "index-add": "add", "index-remove": "remove", "prepare-text-encoder": "prepare-encoder",
    "import-features": "import-vectors", "import-sentences": "import-vectors",
    "tabulate": "reproduce",
}  # fmt: skip
"""Former names of commands. They work until the next release."""
FOLDERS = {"prepare-text-encoder": "text/encoders", "import-features": "features", "import-sentences": "text"}
"""Former name of a stage -> the folder of the run that it wrote to, which is now a part of the name of the encoder."""


class OneLine(logging.Formatter):
    """Formats messages without characters that control a terminal. A traceback stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))


class AboveBars(logging.StreamHandler):
    """Writes messages above the progress bars that are shown."""

    def emit(self, record: logging.LogRecord) -> None:
        if "tqdm" not in sys.modules:
            super().emit(record)
            return
        with sys.modules["tqdm"].tqdm.external_write_mode(self.stream):
            super().emit(record)


class Commands(click.Group):
    """The commands. A module is imported when its command, or the help of all commands, is used."""

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        """Return a command, whose name may have hyphens or underscores, or None if there is none of this name."""
        name = cmd_name.replace("_", "-")
        if name not in COMMANDS:
            return None
        command = open_command(name)
        return command if isinstance(command, click.Command) else command_of(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0].replace("_", "-") in FORMER:
            args = _translate(args[0].replace("_", "-"), args[1:])
        if args and not args[0].startswith("-") and args[0].replace("_", "-") not in COMMANDS:
            raise UsageError(f"unknown command {args[0]}; {meant(args[0], COMMANDS)}`jointspace --help` lists them all")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands that a user needs first, then the others by group, each with its first sentence."""
        titled = {"Start here": list(FIRST)}
        for name, module in COMMANDS.items():
            if name not in FIRST:
                titled.setdefault(GROUPS[module.split(".")[1]], []).append(name)
        for title, names in titled.items():
            with formatter.section(title):
                formatter.write_dl([(name, first_sentence(help_text(name))) for name in names])


def _translate(former: str, args: list[str]) -> list[str]:
    """Translate a former command: `index-add --index A --from B --output C` becomes `add A B --output C`."""
    if former in FOLDERS:
        named = [
            word if word.startswith("-") or before in ("--run", "--config", "--part") else f"{FOLDERS[former]}/{word}"
            for before, word in zip(["", *args], args, strict=False)
        ]
        logging.getLogger(__name__).warning(
            "%s is called %s now", former, shlex.join(["jointspace", FORMER[former], *named])
        )
        return [FORMER[former], *named]
    if not any(word.startswith("--index") for word in args):
        return [FORMER[former], *args]
    words = [part for word in args for part in (word.split("=", 1) if word.startswith("--") else [word])]
    given = list(zip(words[::2], words[1::2], strict=False))
    named = ("--image",) if former == "index-remove" else ("--from", "--run")
    kept = [word for option, value in given if option in ("--output", "--list") for word in (option, value)]
    first = [value for option, value in given if option == "--index"]
    translated = [FORMER[former], *first, *(value for option, value in given if option in named), *kept]
    logging.getLogger(__name__).warning(
        "%s is called %s now, as in: jointspace %s", former, translated[0], " ".join(translated)
    )
    return translated


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--threads", type=click.IntRange(min=1), help="Total threads of all libraries. [default: all cores]")
@click.option(
    "--cards", type=click.IntRange(min=0), help="GPUs that this job may use on its own. [default: all visible]"
)
@click.option("--log", type=click.Path(dir_okay=False), help="Also write messages to this file.")
@click.option(
    "--allow", metavar="MODULE:NAME", multiple=True, help="Code of a model or encoder that an index may import."
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.option("--quiet", is_flag=True, help="Show warnings and errors only.")
@click.version_option(package_name="jointspace")
def cli(
    threads: int | None, cards: int | None, log: str | None, allow: tuple[str, ...], debug: bool, quiet: bool
) -> None:
    """Search your own photos in plain language, with a model fitted to your captions.

    Start with `jointspace init PHOTOS`, which writes NAME.yaml; `jointspace run NAME.yaml` calls the others as needed.
    """
    runtime.configure(threads)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # it would read the metadata of every distribution
    handlers = [AboveBars(sys.stderr), *([logging.FileHandler(log, "w", "utf-8")] if log else [])]
    for handler in handlers:
        handler.setFormatter(OneLine("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=handlers)
    for ours in ("pipeline", "stages"):
        logging.getLogger(ours).setLevel(logging.WARNING if quiet else logging.INFO)
    if allow:
        from pipeline.config import registry

        registry.allow(allow)
    if cards is not None:
        from pipeline.compute.device import take_gpus

        take_gpus(cards)


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed, 2 wrong use, 3 done with rejects above the limit."""
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
    finally:
        gc.disable()  # the process ends, and would first look through all that libraries hold


def _fail(message: str, code: int) -> NoReturn:
    """Show an error, also in the log file, and exit. With --debug, raise it instead."""
    if "--debug" in sys.argv:
        raise
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream:
            handler.stream.write(f"jointspace: {printable(message)}\n")
    plain = "NO_COLOR" in os.environ  # click leaves colours out wherever there is no terminal
    click.echo(f"{'jointspace:' if plain else click.style('jointspace:', fg='red')} {printable(message)}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
