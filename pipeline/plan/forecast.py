"""What a run will take: seconds, memory and disk of every rule.

Seconds are operations and bytes over rates that were measured here (pipeline.plan.rates). Rules whose work goes by the
data more than by its size (tune, train, fit-csls, combine, kernels, Wsabie, generators, parsers, the study) are left
out and named, rather than guessed. Constants in capitals are estimates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.config import Config
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes
from pipeline.settings.models import FitSettings
from pipeline.specs.models import ModelSpec
from pipeline.specs.trainings import STACKING, TRAININGS

EFFICIENCY = {"accumulate": 0.6, "fit": 0.35, "map": 0.5, "embed": 0.3, "rank": 0.17}
"""Share of the rate of a plain product in single precision that a piece of work reaches."""
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
WORDS, QUERIES, SET_QUERIES = 10, 1000, 100
"""Words of a sentence; vectors and sets that measure an index, as in pipeline.index, which imports slowly."""


@dataclass(frozen=True)
class Forecast:
    """Of one rule: `jobs`, `seconds` of all of them in turn (None: not forecast), `memory` and `gpu_memory` of
    one, `disk` of all, in MB."""

    rule: str
    jobs: int
    seconds: float | None
    memory: float
    gpu_memory: float
    disk: float


def forecast(
    config: Config, made: Sequence[tuple[Any, Sequence[str]]], s: Sizes, rates: Rates, parts: int, gpu: bool
) -> list[Forecast]:
    """The rules of what is `made`, declared stages with their names, in that order; of a sharded stage each name is
    `parts` jobs. On a machine with a `gpu` or without."""
    work, found = _Work(config, s, rates, parts), []
    for stage in {stage.name: stage for stage, _ in made}.values():
        names = [given for other, given in made if other.name == stage.name]
        formula = getattr(work, stage.name, None)
        joining = {given: {"shared": True} for given in map(tuple, list(stage.together(config))[1:])}
        seconds = [formula(*given, **joining.get(tuple(given), {})) if formula else None for given in names]
        jobs = len(stage.batches(config)) if stage.batch else len(names) * (parts if stage.sharded else 1)
        starts = (len(names) - jobs) * rates.starts_light if stage.batch else 0  # that the others of a batch do without
        found.append(
            Forecast(
                stage.name,
                jobs,
                None if None in seconds else max(0, sum(seconds) - starts),
                stage.needs.memory(s),
                stage.needs.gpu(s) if gpu and stage.needs.gpu else 0,
                len(names) * (s.shards if stage.sharded else 1) * stage.needs.disk(s),
            )
        )
    return found


@dataclass(frozen=True)
class _Work:
    """Seconds of the jobs of a stage of these names; a method is called as its stage. D is the dimension of the image
    view."""

    config: Config
    s: Sizes
    rates: Rates
    parts: int

    def ingest(self) -> float:
        return self.rates.starts_light + self.s.images / self.rates.inspected

    def plan(self) -> float:
        return 2 * (self.rates.starts + self.rates.starts_light)

    def prepare_encoder(self, encoder: str) -> float:
        return self.rates.starts

    def extract(self, encoder: str, shared: bool = False) -> float | None:
        """All images; in each job the decoders start too. Where the work is `shared`, another's job has decoded. None
        where the encoder was not measured."""
        speed = self.rates.images.get(encoder)
        if speed is None:
            return None
        if shared:
            return self.s.images / self.rates.forward[encoder] + self.parts * self.rates.starts_light
        return self.s.images / speed + 2 * self.parts * self.rates.starts

    def import_features(self, encoder: str) -> float:
        return self.parts * self.rates.starts_light + 4 * self.s.images * self.s.dims.get(encoder, 0) / DISK_BYTES

    def extract_regions(self, encoder: str) -> float | None:
        """The regions of all images, whose pixels count against those of whole images; proposals are not counted."""
        chosen, known = self.config.regions, self.config.encoder(encoder)
        side, forward = known.crop or known.resize, self.rates.forward.get(encoder)
        if forward is None:
            return None
        crops = (chosen.count + 1) * ((chosen.crop_side or side) / side) ** 2
        passed = crops if chosen.features == "crops" else (chosen.map_side / side) ** 2
        return self.s.images * (passed / forward + 1 / self.rates.decoded[encoder]) + 2 * self.parts * self.rates.starts

    def finetune(self, encoder: str) -> float | None:
        """Steps on warped regions, whose pixels count against those that the encoder takes, then the held-out images'
        candidates. Images are decoded in turn."""
        tuning, rates, known = self.config.finetune, self.rates, self.config.encoder(encoder)
        if rates.forward.get(encoder) is None:
            return None
        seen = tuning.images * tuning.iterations
        regions = BACKWARD * seen * (tuning.positives + tuning.background) + tuning.held_out_images * tuning.candidates
        share = (tuning.side / (known.crop or known.resize)) ** 2
        return 2 * rates.starts + regions * share / rates.forward[encoder] + seen / rates.decoded[encoder]

    def prepare_text_encoder(self, encoder: str) -> float | None:
        learned = self.s.sentences * self.s.splits.get("train", 0) / max(1, self.s.described)
        return self._texts(encoder, 1, learned)

    def encode_sentences(self, encoder: str) -> float | None:
        return self._texts(encoder, self.parts, self.s.sentences)

    def import_sentences(self, encoder: str) -> float:
        read = 4 * self.s.sentences * self.s.text_dims.get(encoder, 0) / DISK_BYTES
        return self.parts * self.rates.starts_light + read

    def encode_documents(self, documents: str, encoder: str) -> float | None:
        return self._texts(encoder, self.parts, self._weak)

    def accumulate(self, pairs: str) -> float:
        """The moments of the images of some splits, all shards: X'X of n rows is n D^2 operations."""
        images = {"target": self.s.splits.get("train", 0), "dev": self.s.splits.get("dev", 0)}.get(pairs, self._weak)
        summed = images * self.s.dim**2 / self.rates.flops / EFFICIENCY["accumulate"]
        return summed + self.parts * self.rates.starts_light + self.s.shards * self.s.moments_bytes / 2 / DISK_BYTES

    def fit(self, name: str) -> float | None:
        """One model, reading the moments included; None for one that is not solved from moments alone, whose work
        depends on its data more than on its size."""
        config, s, model = self.config, self.s, self.config.model(name)
        if not model.spec.grid or model.settings:
            return None
        transfer = model.transfer
        dim, terms = (
            sum(map(of.get, names)) for of, names in ((s.dims, model.encoders), (s.text_dims, model.text_encoders))
        )
        train = s.splits.get("train", 0)
        most, mapped = max(transfer.auxiliary_dimensions), transfer.features
        view = {
            "target": (dim, terms, train), "auxiliary": (dim, terms, self._weak),
            "joint": (dim, terms, train + self._weak), "text-feature": (dim + terms, terms, train),
            "stacked": (most, most, train),
            "sae-linear": (dim + most, terms + most, train), "sae": (dim + mapped, terms + mapped, train),
        }[model.training]  # fmt: skip
        axes = (getattr(transfer, key) for key in TRAININGS[model.training])
        times, grid = prod(len(axis) for axis in axes if isinstance(axis, list | tuple)), model.fit
        if config.refitted(name):
            point = {
                name: getattr(grid, name)[:1]
                for name in ("image_ridge", "text_ridge", "eigenvalue_power", "eigenvalues")
            }
            times, grid = 1, grid.model_copy(update=point)
        times *= 1 if config.refitted(name) else prod(map(len, model.text_weights.values()))
        flops = times * self._tuning(grid, model.spec, *view)
        if model.training in STACKING:
            flops += self._tuning(model.fit, model.spec, dim, terms, self._weak)
        if model.training == "sae":
            flops += times * train * (1 + s.texts) * mapped * (mapped + dim + 2 * most) / EFFICIENCY["map"]
        read = (1 if model.training == "target" else 2) * s.shards * s.moments_bytes / 2
        by_torch = model.training in ("text-feature", "sae")
        return self._start(by_torch) + read / DISK_BYTES + flops / self.rates.flops

    def _tuning(self, grid: FitSettings, spec: ModelSpec, dim: int, terms: int, rows: int) -> float:
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
        powers = len(grid.eigenvalue_power) * len(grid.eigenvalues) if "eigenvalue_power" in spec.grid else 1
        ranked = sum(self._ranks(dev * dev * self.s.texts, min(size, kept)) for size in grid.dimensions)
        return (factors + pairs * solution) / EFFICIENCY["fit"] + pairs * powers * ranked

    def adopt(self, name: str) -> float:
        return self.rates.starts_light

    def embed(self, name: str) -> float:
        """The vectors of a model, all shards; those of multi-vector models are made by networks, counted alike."""
        vectors, model = self._vectors(name), self.config.model(name)
        by_torch = model.training == "sae" or model.spec.made_by == "train" or model.spec.multi_vector
        flops = 2 * vectors[0] * self.s.dim * self.s.dimensions / EFFICIENCY["embed"]
        written = 4 * self.s.dimensions * sum(vectors) / DISK_BYTES
        return self.parts * self._start(by_torch) + flops / self.rates.flops + written

    def evaluate(self, name: str, split: str, protocol: str) -> float:
        """Ranks in the whole split and in its folds, and the bootstrap of both."""
        settings, s, images = self.config.evaluate, self.s, self.s.splits.get(split, 0)
        many, folded = prod(self._vectors(name)) / (s.images * s.sentences), settings.folds > 1
        sentences = images * (s.texts if protocol == "all-sentences" else 1)
        drawn = settings.bootstrap * (1 + folded) * (images + sentences)
        flops = self._ranks((1 + folded / settings.folds) * images * sentences * many, s.dimensions)
        return self._start(many > 1) + drawn / RESAMPLES + flops / self.rates.flops

    def summarise(self) -> float:
        return self.rates.starts_light / 2

    def build_index(self, name: str) -> float:
        """A bundle: exact search for the queries that measure it, for an index that is not exact what the candidates
        take; multi-vector models are measured on items too, each scored with everything."""
        s, (images, sentences) = self.s, self._vectors(name)
        times = [2 if vectors <= self.config.index.exact_limit else CANDIDATES for vectors in (images, sentences)]
        searched = QUERIES * (times[0] * images + times[1] * sentences)
        if sets := self.config.model(name).spec.multi_vector:
            searched += SET_QUERIES * images * sentences * (1 / s.images + 1 / s.sentences)
        start = self.rates.starts if sets else 2 * self.rates.starts_light  # faiss loads too
        flops = 2 * searched * s.dimensions / EFFICIENCY["embed"]
        return start + flops / self.rates.flops + 2 * 4 * (images + sentences) * s.dimensions / DISK_BYTES

    def report(self) -> float:
        return 2 * self.rates.starts_light

    @property
    def _weak(self) -> int:
        """Images with weak text."""
        return sum(self.s.splits.get(split, 0) for split in self.config.auxiliary.splits)

    def _texts(self, encoder: str, jobs: int, texts: float) -> float | None:
        """Reading `texts` in some jobs, each of which loads the dictionaries; None where there is no rate."""
        speed = self.rates.encoded.get(encoder)
        return None if speed is None else jobs * (self.rates.starts_light + self.rates.first_text) + texts / speed

    def _start(self, by_torch: bool) -> float:
        return self.rates.starts if by_torch else self.rates.starts_light

    def _vectors(self, name: str) -> tuple[float, float]:
        """Vectors of all images and of all sentences of a model."""
        if not self.config.model(name).spec.multi_vector:
            return self.s.images, self.s.sentences
        return self.s.images * (1 + self.config.regions.count), self.s.sentences * WORDS

    def _ranks(self, pairs: float, dimensions: float) -> float:
        """Operations in the time in which ranks among `pairs` of vectors are counted."""
        return 2 * pairs * (dimensions + COUNTING) / EFFICIENCY["rank"]
