"""What a run will take: seconds, memory and disk of every rule, and what does not fit into the machine.

Seconds are work over a rate that was measured here. The work of linear stages is counted in operations: X'X of n rows
in D dimensions is n D^2 (a symmetric update), a solution is two Cholesky factors, a triangular product and the
eigenvectors of the smaller side. Rules whose work depends on the data more than on its size (finetune, train, combine,
generators, parsers, the study) are left out and named, rather than guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.models import COMBINED, TRAINED
from pipeline.plan.needs import NEEDS
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes

EFFICIENCY = {"accumulate": 0.6, "fit": 0.35, "embed": 0.3, "rank": 0.25}
"""Estimates: share of the rate of a plain product in single precision that a stage reaches; ranks are in double."""
DISK_BYTES = 150e6
"""An estimate: bytes a second that are written, read back and hashed."""
RESAMPLES = 2.5e7
"""An estimate: images and sentences a second that a bootstrap draws and counts."""
GPU_FIXED, GPU_IMAGE = 900, 60
"""Estimates: MB of a GPU that a network takes, and each image of 224 x 224 pixels in a batch."""


@dataclass(frozen=True)
class Stage:
    """One rule: `jobs`, `seconds` of all of them one after another (None: not forecast), `memory` and `gpu_memory` of
    one, `disk` of all, in MB."""

    rule: str
    jobs: int
    seconds: float | None
    memory: float
    gpu_memory: float
    disk: float


def forecast(config: Config, s: Sizes, rates: Rates, gpu: bool) -> list[Stage]:
    """The rules that `all` runs, in their order; on a machine with a `gpu` or without."""
    plain = [row for row in config.models if config.row(row).model not in {*TRAINED, *COMBINED}]
    trained = [row for row in config.models if config.row(row).model in TRAINED]
    weak = sorted({config.row(row).documents for row in plain if config.row(row).training != "target"})
    finetuned = [e for e in config.encoders if e.weights == "finetuned"]
    pairs = {"target": s.splits.get("train", 0), "auxiliary": sum(s.splits.get(x, 0) for x in config.auxiliary.splits)}
    evaluations = len(config.models) * len(config.evaluate.splits) * len(config.evaluate.protocols)
    start, n = rates.starts, s.shards
    speeds = [rates.images[e.name] for e in config.encoders]
    extraction = (
        None if None in speeds else sum(s.images / speed for speed in speeds) + 2 * n * len(speeds) * start
    )  # decoders start too

    def summed(rows: int) -> float:
        return rows * s.dim**2 / rates.flops / EFFICIENCY["accumulate"] + n * (start + s.moments_bytes / 2 / DISK_BYTES)

    works: list[tuple[str, int, float | None]] = [
        ("make_demo", int(config.demo.generate), None),
        ("ingest", 1, start + s.images / rates.inspected),
        ("prepare_encoder", len(config.encoders) - len(finetuned), 2 * start * (len(config.encoders) - len(finetuned))),
        ("finetune", len(finetuned), None),
        ("extract", n * len(config.encoders), extraction),
        ("extract_regions", n * len(config.regions.encoders), None),
        ("build_vocabulary", 1, start / 2 + s.sentences * _train_share(s) / rates.encoded),
        ("encode_sentences", n, n * start / 2 + s.sentences / rates.encoded),
        ("encode_documents", n * len(weak), len(weak) * (n * start / 2 + pairs["auxiliary"] / rates.encoded)),
        ("accumulate", n, summed(pairs["target"])),
        ("accumulate_auxiliary", n * len(weak), len(weak) * summed(pairs["auxiliary"])),
        ("train", len(trained), None),
        ("fit", len(plain), sum(_fit_seconds(config, row, s, rates) for row in plain)),
        ("embed", n * len(config.models), len(config.models) * (n * start + _embed_seconds(s, rates))),
        ("evaluate", evaluations, evaluations * start + _evaluate_seconds(config, s, rates)),
        ("summarise", 1, start / 4),
        ("build_index", len(config.models), len(config.models) * (start + _index_seconds(config, s, rates))),
        ("report", 1, 2 * start),
    ]
    return [_stage(rule, jobs, seconds, config, s, gpu) for rule, jobs, seconds in works if jobs]


def _stage(rule: str, jobs: int, seconds: float | None, config: Config, s: Sizes, gpu: bool) -> Stage:
    need = NEEDS[rule]
    side = max(encoder.crop or encoder.resize for encoder in config.encoders)
    on_gpu = GPU_FIXED + GPU_IMAGE * config.extract.batch_size * (side / 224) ** 2 if gpu and need.gpu else 0
    return Stage(rule, jobs, seconds, need.memory(s), on_gpu, jobs * need.disk(s))


def _train_share(s: Sizes) -> float:
    described = sum(count for split, count in s.splits.items() if split != "weak")
    return s.splits.get("train", 0) / max(1, described)


def _fit_seconds(config: Config, row: str, s: Sizes, rates: Rates) -> float:
    """One row: a Cholesky factor for each ridge of either view, a solution for each pair of them, and for each of these
    the ranks on dev of all dimensions and powers. `lines` goes about twice along each ridge, `grid` tries all pairs."""
    fit, variant = config.fit, config.row(row)
    dim, terms = sum(s.dims[name] for name in variant.encoders), s.terms
    image, text = len(fit.image_ridge), len(fit.text_ridge)
    pairs = image * text if fit.search == "grid" else 2 * (image + text)
    small, large = min(dim, terms), max(dim, terms)
    factors = image * dim**3 / 3 + text * (terms**3 / 3 + terms**2 * dim)
    solutions = pairs * (dim**2 * terms + small**2 * large + 4 * small**3)
    dev = min(fit.dev_images, s.splits.get("dev", 0))
    ranks = pairs * len(fit.eigenvalue_power) * 2 * dev**2 * s.texts * sum(fit.dimensions) / EFFICIENCY["rank"]
    stacked = 3 if variant.training in ("stacked", "sae", "sae-linear") else 1
    reading = s.shards * s.moments_bytes / 2 / DISK_BYTES / 3
    return rates.starts + reading + stacked * ((factors + solutions) / EFFICIENCY["fit"] + ranks) / rates.flops


def _embed_seconds(s: Sizes, rates: Rates) -> float:
    flops = 2 * s.images * s.dim * s.dimensions / EFFICIENCY["embed"]
    return flops / rates.flops + 4 * s.dimensions * (s.images + s.sentences) / DISK_BYTES


def _evaluate_seconds(config: Config, s: Sizes, rates: Rates) -> float:
    seconds = 0.0
    for split in config.evaluate.splits:
        for protocol in config.evaluate.protocols:
            images = s.splits.get(split, 0)
            sentences = images * (s.texts if protocol == "all-sentences" else 1)
            drawn = config.evaluate.bootstrap * (images + sentences) / RESAMPLES
            seconds += drawn + 2 * images * sentences * s.dimensions / rates.flops / EFFICIENCY["rank"]
    return seconds * len(config.models)


def _index_seconds(config: Config, s: Sizes, rates: Rates) -> float:
    vectors = s.images + s.sentences
    searched = 2 * 1000 * vectors * s.dimensions * (1 if vectors < config.index.exact_limit else 10)
    return searched / rates.flops / EFFICIENCY["embed"] + 2 * 4 * vectors * s.dimensions / DISK_BYTES


def misfits(stages: list[Stage], memory: float, gpu_memory: float, disk: float) -> list[str]:
    """One sentence for each thing that does not fit into the free `memory`, `gpu_memory` and `disk` (MB; 0: unknown),
    with the key to change."""
    keys: Mapping[str, str] = {
        "ingest": "split the collection", "extract": "shard_size or extract.batch_size",
        "accumulate": "text.size or the encoders", "accumulate_auxiliary": "text.size or the encoders",
        "fit": "text.size or the encoders", "embed": "shard_size", "build_index": "fit.dimensions or index.splits",
    }  # fmt: skip
    found = [
        f"{stage.rule} needs {stage.memory:,.0f} MB of memory and {memory:,.0f} are free; change"
        f" {keys.get(stage.rule, 'shard_size')}, or run it on a larger machine"
        for stage in stages
        if memory and stage.memory > memory
    ]
    found += [
        f"{stage.rule} needs {stage.gpu_memory:,.0f} MB of the GPU and it has {gpu_memory:,.0f}; change"
        " extract.batch_size"
        for stage in stages
        if gpu_memory and stage.gpu_memory > gpu_memory
    ]
    total = sum(stage.disk for stage in stages)
    if disk and total > disk:
        found.append(
            f"artefacts need {total:,.0f} MB of disk and {disk:,.0f} are free; change results_root, or text.size and"
            " the encoders, whose moments take the most"
        )
    return found
