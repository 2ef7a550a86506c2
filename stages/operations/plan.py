"""`plan`: what a run will take on this machine, and after it what it took."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.plan.needs import MB, TORCH, Need, encoder_gpu, fixed, rows_mb
from pipeline.run import Job, Run, Stage, needed
from stages.commands import CONFIG, FOLDER, begin, json_option

if TYPE_CHECKING:
    from pipeline.plan.forecast import Forecast
    from pipeline.plan.rates import Rates

BUSY = 0.8
"""Share of the processors below which the machine is said to be busy."""


def plan(run: Run, job: Job, sample: int | None = None, compare: bool = False, as_json: bool = False) -> None:
    """Measure this machine on a few images, then forecast time, memory and disk of every stage."""
    from itertools import islice

    from pipeline.plan import comparison
    from pipeline.plan.forecast import forecast
    from pipeline.plan.machine import free_disk, free_memory, gpu_memory
    from pipeline.plan.sizes import sizes_of
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.benchmarks import read_benchmarks
    from stages.catalogue import declared
    from stages.rates import SAMPLE_SENTENCES, measure, own_photographs

    settings, manifest = run.config, run.manifest
    photographs = own_photographs(run, sample or settings.plan.sample)
    rates, dims, text_dims = measure(run, photographs, list(islice(manifest.training_texts(), SAMPLE_SENTENCES)))
    gpu_free = gpu_memory() / MB
    gpu = bool(gpu_free) and settings.device != "cpu"

    sizes = sizes_of(settings, manifest.summary, dims, text_dims)
    made = needed(declared(), settings, run.layout)
    stages = forecast(settings, made, sizes, rates, len(run.parts), gpu)
    warnings = comparison.misfits(stages, free_memory() / MB, gpu_free, free_disk(run.root) / MB)
    facts = comparison.add_up(read_benchmarks(run.layout.benchmarks)) if compare else {}

    _show(comparison.compare(stages, facts), stages, rates, warnings, as_json)
    if not compare:
        value = {"rates": vars(rates), "dims": dims, "text_dims": text_dims, "gpu": gpu}
        publish_record(job.path, {**value, "inputs": {"manifest": manifest.fingerprint}})


def foresee(run: Run, images: int, sentences: float, workers: int, sample: int | None, as_json: bool) -> None:
    """Forecast a collection that is not there yet: so many `images`, with so many `sentences` each, with so many jobs
    at once. By the rates in the run's plan, or by drawn photographs and sentences where it has none."""
    from pipeline.collections.splits import EVERY, MOST
    from pipeline.index.candidates import candidate_factories
    from pipeline.plan import comparison
    from pipeline.plan.forecast import forecast
    from pipeline.plan.rates import Rates
    from pipeline.plan.sizes import sizes_of
    from pipeline.run.parts import divide
    from pipeline.storage.forms import PlanForm
    from pipeline.storage.records import read_record
    from stages.catalogue import declared
    from stages.rates import draw_photographs, draw_sentences, measure

    settings = run.config
    if run.layout.plan.path.exists():
        known = read_record(run.layout.plan.path, PlanForm)
        rates, dims, text_dims, gpu = Rates(**known["rates"]), known["dims"], known["text_dims"], known["gpu"]
    else:
        photographs = draw_photographs(sample or settings.plan.sample)
        rates, dims, text_dims = measure(run, photographs, draw_sentences())
        gpu = run.gpu is not None
        click.echo(
            "measured on drawn photographs of 500 x 375 pixels and drawn sentences: yours may differ", err=as_json
        )
    held_out = min(MOST, images // EVERY)
    splits = {"train": images - 2 * held_out, "dev": held_out, "test": held_out}
    summary = {"splits": splits, "counts": {"sentences": {"kept": round(images * sentences)}}}
    sizes = sizes_of(settings, summary, dims, text_dims)
    parts = len(divide(sizes.shards, sizes.shard_images, settings.shards_per_job))
    stages = forecast(settings, needed(declared(), settings, run.layout), sizes, rates, parts, gpu)
    rows = [row | {"elapsed": comparison.elapsed(row, workers)} for row in comparison.compare(stages, {})]
    _show(rows, stages, rates, (), as_json)
    factories = ["Flat"]
    if images > settings.index.exact_limit:
        factories = settings.index.candidates if settings.index.candidates != "auto" else None
        factories = factories or [found[0] for found in candidate_factories(images, sizes.dimensions)]
    click.echo(
        f"index of {images:,} images in {sizes.dimensions} dimensions: first of all {' or '.join(factories)}",
        err=as_json,
    )


def _show(
    rows: "Sequence[dict]", stages: "Sequence[Forecast]", rates: "Rates", warnings: "Sequence[str]", as_json: bool
) -> None:
    """Print a forecast as a table with what is to be known of it, or all of that as JSON."""
    from pipeline.plan import comparison
    from pipeline.printable import printable_json

    unknown = [stage.rule for stage in stages if stage.seconds is None]
    if as_json:
        about = {"does_not_fit": warnings, "not_forecast": unknown, "share": rates.share}
        click.echo(printable_json({"stages": rows, "total": comparison.total(rows), **about}))
        return
    table = comparison.render(comparison.cost_table(rows))
    for line in [*table, *(f"does not fit: {warning}" for warning in warnings)]:
        click.echo(line)
    if unknown:
        click.echo(f"not forecast, and not in the total: {', '.join(unknown)}")
    if rates.share < BUSY:
        busy = f"other programs used {1 - rates.share:.0%} of the processors during the measurement"
        click.echo(f"{busy}; the forecast includes that")


STAGE = Stage(
    plan,
    version=3,
    needs=Need(lambda s: TORCH + 1500 + rows_mb(s), fixed(5), fixed(20), "`plan.sample`", encoder_gpu),
    keys=lambda config: {
        "plan": config.plan.model_dump(),
        "encoders": [one.model_dump() for one in config.encoders],
        "text_encoders": [one.model_dump() for one in config.text_encoders],
        "precision": config.extract.precision,
    },
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.plan,
    threads=8,
)


@click.command("plan")
@click.option("--run", "root", type=FOLDER, help="Folder of the run.")
@click.option("--sample", type=click.IntRange(min=8), help="Images measured. [default: plan.sample]")
@click.option("--compare", is_flag=True, help="Show what the run took, too, and leave plan.json as it is.")
@click.option("--images", type=click.FloatRange(min=10), help="Forecast so many images, such as 100e6, instead.")
@click.option("--sentences", type=click.FloatRange(min=0), default=1, show_default=True, help="Of each of --images.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Jobs at once, of --images.")
@json_option
@click.option(*CONFIG[0], **CONFIG[1])
def command(
    root: Path | None, config_path: Path | None, sample: int | None, compare: bool, images: float | None,
    sentences: float, workers: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure this machine on a few images, then forecast time, memory and disk of every stage.

    With --images it needs neither a manifest nor a run, but a configuration.
    """
    from pipeline import config
    from pipeline.errors import UsageError
    from pipeline.run.runner import make

    if images is None:
        if root is None:
            raise UsageError("plan: name a run by --run, or say how many images a collection will have by --images")
        make(begin(root, config_path), STAGE, sample=sample, compare=compare, as_json=as_json)
        return
    if config_path is None and root is None:
        raise UsageError("plan: give a configuration by --config, or a run by --run, for these images")
    chosen = config.load(config_path) if config_path else Run(root).config
    run = Run(root or Path(chosen.results_root) / chosen.name, chosen)
    foresee(run, round(images), sentences, workers, sample, as_json)
