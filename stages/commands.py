"""Commands made of declared stages: what to make, of which run, and by which configuration."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stages import options

if TYPE_CHECKING:
    from pipeline.run.run import Run
    from pipeline.run.stage import Stage


def command_of(stage: "Stage") -> click.Command:
    """The command of a stage: `jointspace embed ncca --run results/demo` does what its rule does."""

    def callback(root: Path, config_path: Path | None, **given: Any) -> None:
        from pipeline.run.runner import make

        run, names = begin(root, config_path), [given.pop(name) for name in stage.names]
        for chosen in stage.select(run.config, [name for name in names if name is not None]):
            make(run, stage, chosen, **given)

    params: list[click.Parameter] = [click.Argument([name], required=False) for name in stage.names]
    params.append(click.Option(["--run", "root"], type=options.FOLDER, required=True, help="Folder of the run."))
    if stage.sharded:
        params.append(click.Option(["--part"], type=click.IntRange(min=0), help="One range of shards. [default: all]"))
        params.append(click.Option(["--again"], is_flag=True, help="Make anew what is there already."))
    told = "Configuration that the run has from now on. [default: the one that it has]"
    params += [*stage.options, click.Option(["--config", "config_path"], type=options.FILE, help=told)]
    return click.Command(stage.command, callback=callback, params=params, help=stage.function.__doc__)


def begin(root: Path, config_path: Path | None) -> "Run":
    """The run in the folder `root`, which has the configuration in `config_path` from now on, if one is given."""
    from pipeline.run.run import Run

    if config_path is None:
        return Run(root)
    import yaml

    from pipeline import config
    from pipeline.storage.atomic import publish_text

    run = Run(root, config.load(config_path))
    publish_text(run.layout.config, yaml.safe_dump(config.read_mapping(config_path), sort_keys=False))
    return run
