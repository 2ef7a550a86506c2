"""What a run will take: seconds, memory and disk of every rule.

Seconds are operations and bytes over rates that were measured here (pipeline.plan.rates). Rules whose work depends on
the data more than on its size (train, fit-csls, combine, kernels, Wsabie, generators, parsers, the study) are left out
and named, rather than guessed. Constants in capitals are estimates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.config import Config
from pipeline.config.encoders import Encoder
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes
from pipeline.settings.models import Fit
from pipeline.specs.models import ModelSpec
from pipeline.specs.trainings import STACKING, TRAININGS

EFFICIENCY = {"accumulate": 0.6, "fit": 0.35, "map": 0.5, "embed": 0.3, "rank": 0.11}
"""Share of the rate of a plain product in single precision that a piece of work reaches; ranks are in double."""
COUNTING = 27
"""Dimensions whose products take as long as the counting of ranks."""
LINES = 1.25
"""Pairs of ridges that a search along lines tries, over the ridges of both views."""
DISK_BYTES, RESAMPLES = 150e6, 1.25e7
"""A second: bytes that are written, read back and hashed; images and sentences that a bootstrap draws and counts."""
BACKWARD = 3
"""A step of training over a forward pass of the same images."""
CANDIDATES = 10
"""Exact searches that trying the candidates of an index that is not exact takes as long as."""
WORDS = 10
"""Words of a sentence."""
QUERIES, SET_QUERIES = 1000, 100
"""Vectors and sets that measure an index, as in pipeline.index, which takes a second to import."""


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


def forecast(config: Config, declared: Mapping[str, Any], s: Sizes, rates: Rates, gpu: bool) -> list[Stage]:
    """The rules that `all` runs, in their order; on a machine with a `gpu` or without."""
    stages = []
    for rule, (jobs, seconds) in _Work(config, s, rates).of_rules().items():
        need = declared[rule].needs
        on_gpu = need.gpu(s) if gpu and need.gpu else 0
        if jobs:
            stages.append(Stage(rule, jobs, seconds, need.memory(s), on_gpu, jobs * need.disk(s)))
    return stages


@dataclass(frozen=True)
class _Work:
    """Seconds of the jobs of a rule together; D is the dimension of the image view."""

    config: Config
    s: Sizes
    rates: Rates

    def of_rules(self) -> dict[str, tuple[int, float | None]]:
        """Rule -> jobs and their seconds."""
        config, s, rates = self.config, self.s, self.rates
        models = {name: config.model(name) for name in config.every_model() if not config.scaled(name)}
        trained = [name for name, model in models.items() if model.spec.made_by == "train"]
        plain = [name for name, model in models.items() if model.spec.made_by == "fit"]
        summed = ("train", "dev") if any(config.refitted(row) for row in plain) else ("train",)
        weak = sorted({models[name].documents for name in plain if models[name].training != "target"})
        pairs = [*(s.splits.get(split, 0) for split in summed), *(self.weak for _ in weak)]
        finetuned = [encoder for encoder in config.encoders if encoder.weights == "finetuned"]
        evaluations = sum(len(config.judged_splits(row)) for row in config.models) * len(config.evaluate.protocols)
        made, n, start, light = len(config.encoders) - len(finetuned), s.shards, rates.starts, rates.starts_light
        text, learned = light + rates.first_text, s.sentences * s.splits.get("train", 0) / max(1, s.described)
        fits = [self.fit(row) for row in plain]
        return {
            "make_demo": (int(config.demo.generate), None),
            "ingest": (1, light + s.images / rates.inspected),
            "plan": (1, 2 * (start + light)),
            "prepare_encoder": (made, made * start),
            "finetune": (len(finetuned), sum(map(self.finetune, finetuned))),
            "extract": (n * len(rates.images), self.extract()),
            "extract_regions": (n * len(config.regions.encoders), self.regions()),
            "pool_regions": (n * (len(config.encoders) - len(rates.images)), None),
            "build_vocabulary": (1, text + learned / rates.encoded),
            "encode_sentences": (n, n * text + s.sentences / rates.encoded),
            "encode_documents": (n * len(weak), len(weak) * (n * text + self.weak / rates.encoded)),
            "accumulate": (n * len(pairs), sum(map(self.accumulate, pairs))),
            "train": (len(trained), None),
            "fit": (len(plain), None if None in fits else sum(fits)),
            "embed": (n * len(config.models), sum(map(self.embed, config.models))),
            "evaluate": (evaluations, sum(map(self.evaluate, config.models))),
            "summarise": (1, light / 2),
            "build_index": (len(config.models), sum(map(self.index, config.models))),
            "report": (1, 2 * light),
        }

    @property
    def weak(self) -> int:
        """Images with weak text."""
        return sum(self.s.splits.get(split, 0) for split in self.config.auxiliary.splits)

    def extract(self) -> float | None:
        """All images through all encoders; in each job the decoders start too. None where one was not measured."""
        speeds = list(self.rates.images.values())
        if None in speeds:
            return None
        return sum(self.s.images / speed for speed in speeds) + 2 * self.s.shards * len(speeds) * self.rates.starts

    def regions(self) -> float | None:
        """The regions of all images, whose pixels count against those of whole images; proposals are not counted."""
        chosen, seconds = self.config.regions, 0.0
        for encoder in map(self.config.encoder, chosen.encoders):
            side, forward = encoder.crop or encoder.resize, self.rates.forward.get(encoder.name)
            if forward is None:
                return None
            crops = (chosen.count + 1) * ((chosen.crop_side or side) / side) ** 2
            passed = crops if chosen.features == "crops" else (chosen.map_side / side) ** 2
            seconds += self.s.images * (passed / forward + 1 / self.rates.decoded[encoder.name])
            seconds += 2 * self.s.shards * self.rates.starts
        return seconds

    def finetune(self, encoder: Encoder) -> float:
        """Steps on warped regions, whose pixels count against those that the encoder takes, then the held-out images'
        candidates. Images are decoded in turn."""
        tuning, rates = self.config.finetune, self.rates
        seen = tuning.images * tuning.iterations
        regions = BACKWARD * seen * (tuning.positives + tuning.background) + tuning.held_out_images * tuning.candidates
        share = (tuning.side / (encoder.crop or encoder.resize)) ** 2
        return 2 * rates.starts + regions * share / rates.forward[encoder.name] + seen / rates.decoded[encoder.name]

    def accumulate(self, images: float) -> float:
        """The moments of `images`, all shards: X'X of n rows is n D^2 operations."""
        summed = images * self.s.dim**2 / self.rates.flops / EFFICIENCY["accumulate"]
        return summed + self.s.shards * (self.rates.starts_light + self.s.moments_bytes / 2 / DISK_BYTES)

    def fit(self, row: str) -> float | None:
        """One model, reading the moments included; None for one that is not solved from moments alone, whose work
        depends on its data more than on its size."""
        config, s, model = self.config, self.s, self.config.model(row)
        if not model.spec.grid or model.settings:
            return None
        transfer = model.transfer
        dim, terms, train = sum(s.dims[name] for name in model.encoders), s.terms, s.splits.get("train", 0)
        most, mapped = max(transfer.auxiliary_dimensions), transfer.features
        view = {
            "target": (dim, terms, train), "auxiliary": (dim, terms, self.weak),
            "joint": (dim, terms, train + self.weak), "text-feature": (dim + terms, terms, train),
            "stacked": (most, most, train),
            "sae-linear": (dim + most, terms + most, train), "sae": (dim + mapped, terms + mapped, train),
        }[model.training]  # fmt: skip
        axes = (getattr(transfer, key) for key in TRAININGS[model.training])
        times, grid = prod(len(axis) for axis in axes if isinstance(axis, list | tuple)), model.fit
        if config.refitted(row):
            point = {name: getattr(grid, name)[:1] for name in ("image_ridge", "text_ridge", "eigenvalue_power")}
            times, grid = 1, grid.model_copy(update=point)
        flops = times * self._tuning(grid, model.spec, *view)
        if model.training in STACKING:
            flops += self._tuning(model.fit, model.spec, dim, terms, self.weak)
        if model.training == "sae":
            flops += times * train * (1 + s.texts) * mapped * (mapped + dim + 2 * most) / EFFICIENCY["map"]
        read = (1 if model.training == "target" else 2) * s.shards * s.moments_bytes / 2
        by_torch = model.training in ("text-feature", "sae")
        return self._start(by_torch) + read / DISK_BYTES + flops / self.rates.flops

    def _tuning(self, grid: Fit, spec: ModelSpec, dim: int, terms: int, rows: int) -> float:
        """Operations of all ridges, dimensions and powers of views of `dim` and `terms` columns (the image view's are
        at most `rows`): a factor for each ridge, for each pair of ridges a Gram matrix, its top eigenvectors and the
        products around them, and ranks on dev."""
        dim = min(dim, rows)
        image, text = len(grid.image_ridge), len(grid.text_ridge) if "text_ridge" in spec.grid else 1
        pairs = image * text if grid.search == "grid" else min(image * text, LINES * (image + text))
        kept, small, large = min(max(grid.dimensions), dim), min(dim, terms), max(dim, terms)
        factors = image * dim**3 / 3 + text * (terms**3 / 3 + terms**2 * dim)
        solution = dim**2 * terms + (dim**2 + terms**2) * kept + 4 * small**3 + 0.7 * small**2 * large
        dev = min(grid.dev_images, self.s.splits.get("dev", 0))
        powers = len(grid.eigenvalue_power) if "eigenvalue_power" in spec.grid else 1
        ranked = sum(self._ranks(dev * dev * self.s.texts, min(size, kept)) for size in grid.dimensions)
        return (factors + pairs * solution) / EFFICIENCY["fit"] + pairs * powers * ranked

    def embed(self, row: str) -> float:
        """The vectors of one row, all shards; fragments are made by networks, whose products count as others do."""
        vectors, model = self._vectors(row), self.config.model(row)
        by_torch = model.training == "sae" or model.spec.made_by == "train" or model.spec.multi_vector
        flops = 2 * vectors[0] * self.s.dim * self.s.dimensions / EFFICIENCY["embed"]
        written = 4 * self.s.dimensions * sum(vectors) / DISK_BYTES
        return self.s.shards * self._start(by_torch) + flops / self.rates.flops + written

    def evaluate(self, row: str) -> float:
        """One row, all splits and protocols: ranks in the whole split and in its folds, and the bootstrap of both."""
        settings, s, seconds = self.config.evaluate, self.s, 0.0
        many, folded = prod(self._vectors(row)) / (s.images * s.sentences), settings.folds > 1
        for split in self.config.judged_splits(row):
            images = s.splits.get(split, 0)
            for protocol in settings.protocols:
                sentences = images * (s.texts if protocol == "all-sentences" else 1)
                drawn = settings.bootstrap * (1 + folded) * (images + sentences)
                flops = self._ranks((1 + folded / settings.folds) * images * sentences * many, s.dimensions)
                seconds += self._start(many > 1) + drawn / RESAMPLES + flops / self.rates.flops
        return seconds

    def index(self, row: str) -> float:
        """One row's bundle: exact search for the queries that measure it, for an index that is not exact what the
        candidates take; fragments are measured on sets too, each scored with everything."""
        s, (images, sentences) = self.s, self._vectors(row)
        times = [2 if vectors <= self.config.index.exact_limit else CANDIDATES for vectors in (images, sentences)]
        searched = QUERIES * (times[0] * images + times[1] * sentences)
        if sets := self._of_sets(row):
            searched += SET_QUERIES * images * sentences * (1 / s.images + 1 / s.sentences)
        start = self.rates.starts if sets else 2 * self.rates.starts_light  # faiss loads too
        flops = 2 * searched * s.dimensions / EFFICIENCY["embed"]
        return start + flops / self.rates.flops + 2 * 4 * (images + sentences) * s.dimensions / DISK_BYTES

    def _start(self, by_torch: bool) -> float:
        return self.rates.starts if by_torch else self.rates.starts_light

    def _of_sets(self, row: str) -> bool:
        """Whether images and sentences of a row are sets of fragments."""
        return self.config.model(row).spec.multi_vector

    def _vectors(self, row: str) -> tuple[float, float]:
        """Vectors of all images and of all sentences of a row."""
        if not self._of_sets(row):
            return self.s.images, self.s.sentences
        return self.s.images * (1 + self.config.regions.count), self.s.sentences * WORDS

    def _ranks(self, pairs: float, dimensions: float) -> float:
        """Operations in the time in which ranks among `pairs` of vectors are counted."""
        return 2 * pairs * (dimensions + COUNTING) / EFFICIENCY["rank"]
