"""`plan`: what a run will take on this machine, and after it what it took."""

import click

from pipeline.plan.needs import MB, TORCH, Need, encoder_gpu, fixed, process
from pipeline.run import Job, Run, Stage, needed
from stages import inputs, texts

SAMPLE_SENTENCES = 50000
BUSY = 0.8
"""Share of the processors below which the machine is said to be busy."""


def plan(run: Run, job: Job, sample: int | None = None, compare: bool = False) -> None:
    """Measure this machine on a few images, then forecast time, memory and disk of every stage."""
    from pipeline import runtime
    from pipeline.plan import comparison
    from pipeline.plan.forecast import forecast
    from pipeline.plan.machine import free_disk, free_memory, gpu_memory
    from pipeline.plan.rates import LIGHT_MODULES, TORCH_MODULES, Rates, measure_flops, measure_start
    from pipeline.plan.sizes import sizes_of
    from pipeline.storage.atomic import publish_record
    from pipeline.storage.benchmarks import read_benchmarks
    from stages.catalogue import declared

    settings, manifest = run.config, run.manifest
    measured, dims = _measure_images(run, sample or settings.plan.sample)
    encoded, text_dims = _measure_texts(run)
    flops, share = measure_flops(runtime.threads())
    rates = Rates(
        **measured, **encoded, flops=flops, share=share,
        starts=measure_start(TORCH_MODULES), starts_light=measure_start(LIGHT_MODULES),
    )  # fmt: skip
    gpu_free = gpu_memory() / MB
    gpu = bool(gpu_free) and settings.device != "cpu"

    sizes = sizes_of(settings, manifest.summary, dims, text_dims)
    made = needed(declared(), settings, run.layout)
    stages = forecast(settings, made, sizes, rates, len(run.parts), gpu)
    warnings = comparison.misfits(stages, free_memory() / MB, gpu_free, free_disk(run.root) / MB)
    facts = comparison.add_up(read_benchmarks(run.layout.benchmarks)) if compare else {}

    table = comparison.render(comparison.cost_table(comparison.compare(stages, facts)))
    for line in [*table, *(f"does not fit: {warning}" for warning in warnings)]:
        click.echo(line)
    if unknown := [stage.rule for stage in stages if stage.seconds is None]:
        click.echo(f"not forecast, and not in the total: {', '.join(unknown)}")
    if share < BUSY:
        click.echo(
            f"other programs used {1 - share:.0%} of the processors during the measurement; the forecast includes that"
        )
    if not compare:
        value = {"rates": vars(rates), "dims": dims, "text_dims": text_dims, "gpu": gpu}
        publish_record(job.path, {**value, "inputs": {"manifest": manifest.fingerprint}})


def _measure_images(run: Run, sample: int):
    """What Rates says of images (None for an encoder that cannot be made yet), and the encoders' dimensions."""
    from functools import partial
    from operator import itemgetter

    from pipeline import runtime
    from pipeline.images.decode import ImageLimits, inspect
    from pipeline.images.preprocess import Photograph, load
    from pipeline.index.vectors import evenly_spaced
    from pipeline.plan.rates import extraction_rate, rate
    from pipeline.specs.stored import restore_encoder

    settings, manifest = run.config, run.manifest
    extract = settings.extract
    rows = manifest.pick(evenly_spaced(manifest.n_images, sample))
    photographs = [Photograph.from_row(row) for row in rows]
    limits = ImageLimits.from_settings(settings.collection)
    read, cores = run.images.read, runtime.threads()
    looked = rate(lambda: map(partial(inspect, read, limits), map(itemgetter(2), photographs)), len(photographs))
    networks = [chosen for chosen in settings.encoders if chosen.spec.reads == "pixels"]
    rates = {what: dict.fromkeys(chosen.name for chosen in networks) for what in ("images", "decoded", "forward")}
    dims, material = {}, inputs.read_material(run)
    for chosen in networks:
        if run.layout.encoder(chosen.name).commit.exists():
            parameters = run.encoder(chosen.name)
            encoder = restore_encoder(parameters.settings, parameters.tensors)
        elif chosen.spec.learned or "untrained" not in chosen.spec.weights:
            continue
        else:
            untrained = chosen.model_copy(update={"weights": "untrained", "file": None, "sha256": None})
            encoder = chosen.spec.load().prepare(untrained, material)
        work = encoder.work(settings.device, extract.precision, run.batch_size)
        pixels = [load(read, limits, encoder.preprocessing, photograph) for photograph in photographs]
        describe = work.describe or (lambda picture: picture)
        decoded = rate(
            lambda e=encoder, d=describe: (d(load(read, limits, e.preprocessing, p)) for p in photographs),
            len(photographs),
        )
        pictures = [describe(picture) for picture in pixels]
        dims[chosen.name] = next(work.extractor(pictures[: run.batch_size])).shape[1]
        forward = rate(lambda w=work, p=pictures: w.extractor(p), len(pictures))
        gpu = work.extractor.plan.device.type != "cpu"
        processes = min(cores, run.decoders or 1)
        rates["decoded"][chosen.name], rates["forward"][chosen.name] = decoded, forward
        rates["images"][chosen.name] = extraction_rate(decoded, forward, processes, gpu)
    return {**rates, "inspected": looked * cores}, dims


def _measure_texts(run: Run) -> tuple[dict, dict[str, int]]:
    """What Rates says of text encoders (None for one that cannot be made yet), and their dimensions."""
    from itertools import islice

    from pipeline.plan.rates import rate
    from pipeline.text.tokens import TermSettings, make_analyzer

    sentences, lemmas = (
        list(islice(run.manifest.training_texts(), SAMPLE_SENTENCES)),
        TermSettings(True, "words", True, (), 1),
    )
    found = {"encoded": {}, "first_text": 1 / rate(lambda: [make_analyzer(lemmas)("word")], 1)}
    dims = {}
    for chosen in (one for one in run.config.text_encoders if one.spec.reads == "texts"):
        if run.layout.text_encoder(chosen.name).commit.exists():
            made = texts.open_text_encoder(run, chosen.name)
        elif chosen.own.corpus or chosen.spec.extra:
            found["encoded"][chosen.name] = None  # its word vectors are yet to be learned, its network to be fetched
            continue
        else:
            made = chosen.spec.load().prepare(chosen, texts.read_text_material(run, chosen.name, SAMPLE_SENTENCES))
        found["encoded"][chosen.name] = rate(lambda e=made: [e.encode(sentences)], len(sentences))
        dims[chosen.name] = made.dim
    return found, dims


STAGE = Stage(
    plan,
    version=3,
    needs=Need(process(TORCH + 1500, images=0.002), fixed(5), fixed(20), "`plan.sample`", encoder_gpu),
    keys=lambda config: {
        "plan": config.plan.model_dump(),
        "encoders": [one.model_dump() for one in config.encoders],
        "text_encoders": [one.model_dump() for one in config.text_encoders],
        "precision": config.extract.precision,
    },
    reads=lambda config, layout: {"manifest": layout.manifest},
    writes=lambda layout: layout.plan,
    threads=8,
    options=(
        click.Option(["--sample"], type=click.IntRange(min=8), help="Images measured. [default: plan.sample]"),
        click.Option(["--compare"], is_flag=True, help="Show what the run took, too, and leave plan.json as it is."),
    ),
)
