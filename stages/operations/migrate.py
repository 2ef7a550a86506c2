"""`migrate`: a run on another encoder, before that has seen more than a sample of the photographs."""

from pathlib import Path

import click


@click.command("migrate")
@click.argument("old")
@click.argument("new")
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--images", type=click.IntRange(min=1), default=1000, show_default=True, help="Photos that both encoders see."
)
@click.option("--cores", type=click.IntRange(min=1), help="Of this machine, for the run. [default: all]")
def command(old: str, new: str, config_path: Path | None, images: int, cores: int | None) -> None:
    """Run CONFIG with its encoder NEW at once, on features mapped from those of OLD.

    A sample of the photos is encoded to fit the map; answers that rest on mapped features say so (`mapped_from`). The
    next `jointspace run CONFIG` extracts the rest and remakes everything.
    """
    from pipeline.config import loading
    from pipeline.errors import UsageError, meant
    from pipeline.run import Run
    from stages.workflow import run_workflow

    config = loading.load(config_path)
    encoders = [encoder.name for encoder in config.encoders if encoder.spec.reads == "pixels"]
    if new not in encoders:
        raise UsageError(
            f"the configuration has no encoder {new} of photos; {meant(new, encoders)}add it to `encoders`, and to the"
            " models that are to use it"
        )
    if old == new:
        raise UsageError(
            f"OLD and NEW are both {new}; name the encoder that the run has, then the one that replaces it"
        )
    run = Run(Path(config.results_root) / config.name, config)
    if not run.layout.features(old).part(0).exists():
        there = sorted(path.name for path in run.layout.features(old).folder.parent.glob("*") if path.name != new)
        raise UsageError(f"{run.root} has no features of {old}; {meant(old, there)}it has {', '.join(there) or 'none'}")
    run_workflow(config_path, cores=cores, changes={"extract": {"mapped": {new: old}, "mapping_images": images}})
