"""`run`: a whole run by Snakemake, with one line of progress, and what to do next at its end."""

from pathlib import Path

import click

from stages.commands import json_option


class _Dashed(click.Command):
    """A command of which everything that follows two dashes is `further`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["further"] += tuple(args[at + 1 :])
        return rest


@click.command("run", cls=_Dashed, context_settings={"ignore_unknown_options": True})
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.argument("further", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE OPTIONS...]")
@click.option("--cores", type=click.IntRange(min=1), help="Cores of this machine to use. [default: all]")
@json_option
def command(config_path: Path | None, further: tuple[str, ...], cores: int | None, as_json: bool) -> None:
    """Run everything that CONFIG asks for (by default, the demo); finished work is kept.

    Pass Snakemake options and targets after `--`, e.g. `-- --keep-going`; this also shows Snakemake's output.
    """
    if config_path is not None and str(config_path).startswith("-"):
        config_path, further = None, (str(config_path), *further)
    from stages.workflow import run_workflow

    run_workflow(config_path, further, cores, as_json)
