"""What a run will take: seconds, memory and disk of every rule, and what does not fit into the machine.

Seconds are work (pipeline.plan.work, pipeline.plan.solving) over a rate that was measured here. Rules whose work
depends on the data more than on its size (train, fit-csls, combine, kernels, Wsabie, generators, parsers, the study)
are left out and named, rather than guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.config import Config
from pipeline.plan import work
from pipeline.plan.needs import NEEDS
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes
from pipeline.plan.solving import fit


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
    models = {name: config.model(name) for name in config.every_model() if not config.scaled(name)}
    fitted = [name for name, model in models.items() if model.spec.made_by == "fit"]
    trained = [name for name, model in models.items() if model.spec.made_by == "train"]
    summed = ("train", "dev") if any(config.refitted(name) for name in fitted) else ("train",)
    weak = sorted({models[name].documents for name in fitted if models[name].training != "target"})
    finetuned = [e for e in config.encoders if e.weights == "finetuned"]
    weakly = sum(s.splits.get(split, 0) for split in config.auxiliary.splits)
    evaluations = sum(len(config.judged_splits(name)) for name in config.models) * len(config.evaluate.protocols)
    start, light, n = rates.starts, rates.starts_light, s.shards
    text = light + rates.first_text
    fits = [fit(config, name, s, rates) for name in fitted]
    made = len(config.encoders) - len(finetuned)
    works: list[tuple[str, int, float | None]] = [
        ("make_demo", int(config.demo.generate), None),
        ("ingest", 1, light + s.images / rates.inspected),
        ("plan", 1, 2 * (start + light)),
        ("prepare_encoder", made, made * start),
        ("finetune", len(finetuned), work.finetune(config, finetuned, rates)),
        ("extract", n * len(rates.images), work.extract(s, rates)),
        ("extract_regions", n * len(config.regions.encoders), work.regions(config, s, rates)),
        ("pool_regions", n * (len(config.encoders) - len(rates.images)), None),
        ("build_vocabulary", 1, text + s.sentences * work.train_share(s) / rates.encoded),
        ("encode_sentences", n, n * text + s.sentences / rates.encoded),
        ("encode_documents", n * len(weak), len(weak) * (n * text + weakly / rates.encoded)),
        ("accumulate", n * len(summed), sum(work.accumulate(s.splits.get(split, 0), s, rates) for split in summed)),
        ("accumulate_auxiliary", n * len(weak), len(weak) * work.accumulate(weakly, s, rates)),
        ("train", len(trained), None),
        ("fit", len(fitted), None if None in fits else sum(fits)),
        ("embed", n * len(config.models), sum(work.embed(config, name, s, rates) for name in config.models)),
        ("evaluate", evaluations, work.evaluate(config, s, rates)),
        ("summarise", 1, light / 2),
        ("build_index", len(config.models), sum(work.index(config, name, s, rates) for name in config.models)),
        ("report", 1, 2 * light),
    ]
    return [_stage(rule, jobs, seconds, s, gpu) for rule, jobs, seconds in works if jobs]


def _stage(rule: str, jobs: int, seconds: float | None, s: Sizes, gpu: bool) -> Stage:
    need = NEEDS[rule]
    on_gpu = need.gpu(s) if gpu and need.gpu else 0
    return Stage(rule, jobs, seconds, need.memory(s), on_gpu, jobs * need.disk(s))


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
        " extract.batch_size, or set device to cpu"
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
