"""Seconds of work of each stage but `fit`: operations and bytes over the rates of a machine.

X'X of n rows in D dimensions is n D^2 operations (a symmetric update).
"""

from collections.abc import Sequence

from pipeline.config import Config
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes
from pipeline.plan.solving import COUNTING, DISK_BYTES, ranks
from pipeline.settings.images import Encoder

EFFICIENCY = {"accumulate": 0.6, "embed": 0.3, "sets": 0.15}
"""Estimates: share of the rate of a plain product in single precision that a stage reaches."""
RESAMPLES = 1.25e7
"""An estimate: images and sentences a second that a bootstrap draws and counts."""
BACKWARD = 3
"""An estimate: a step of training over a forward pass of the same images."""
CANDIDATES = 10
"""An estimate: exact searches that trying the candidates of an index that is not exact takes as long as."""
WORDS = 10
"""An estimate: words of a sentence."""
QUERIES, SET_QUERIES = 1000, 100
"""Vectors and sets that measure an index, as in pipeline.index, which takes a second to import."""


def extract(s: Sizes, rates: Rates) -> float | None:
    """All images through all encoders; in each job the decoders start too. None where an encoder was not measured."""
    speeds = list(rates.images.values())
    if None in speeds:
        return None
    return sum(s.images / speed for speed in speeds) + 2 * s.shards * len(speeds) * rates.starts


def regions(config: Config, s: Sizes, rates: Rates) -> float | None:
    """The regions of all images through the encoders of `regions`, whose pixels count against those of whole images;
    proposals are not counted. None where an encoder was not measured."""
    chosen, seconds = config.regions, 0.0
    for encoder in map(config.encoder, chosen.encoders):
        side, forward = encoder.crop or encoder.resize, rates.forward.get(encoder.name)
        if forward is None:
            return None
        crops = (chosen.count + 1) * ((chosen.crop_side or side) / side) ** 2
        passed = crops if chosen.features == "crops" else (chosen.map_side / side) ** 2
        seconds += s.images * (passed / forward + 1 / rates.decoded[encoder.name]) + 2 * s.shards * rates.starts
    return seconds


def finetune(config: Config, encoders: Sequence[Encoder], rates: Rates) -> float:
    """Steps on warped regions, whose pixels count against those that the encoder takes; images are decoded meanwhile on
    other processes where there is a GPU, else in turn. Then the held-out images' candidates."""
    tuning, seconds = config.finetune, 0.0
    regions = tuning.images * (tuning.positives + tuning.background) * tuning.iterations
    judged = tuning.held_out_images * tuning.candidates
    for encoder in encoders:
        share = (tuning.side / (encoder.crop or encoder.resize)) ** 2
        passed = (BACKWARD * regions + judged) * share / rates.forward[encoder.name]
        decoded = tuning.images * tuning.iterations / rates.decoded[encoder.name]
        seconds += 2 * rates.starts + passed + decoded
    return seconds


def train_share(s: Sizes) -> float:
    """The share of the sentences that are of the train split."""
    return s.splits.get("train", 0) / max(1, s.described)


def accumulate(rows: int, s: Sizes, rates: Rates) -> float:
    """The moments of `rows` images, all shards."""
    summed = rows * s.dim**2 / rates.flops / EFFICIENCY["accumulate"]
    return summed + s.shards * (rates.starts_light + s.moments_bytes / 2 / DISK_BYTES)


def embed(config: Config, row: str, s: Sizes, rates: Rates) -> float:
    """The vectors of one row, all shards; fragments are made by networks, whose products count as the others do."""
    images, sentences = _fragments(config, row, s)
    flops = 2 * images * s.dim * s.dimensions / EFFICIENCY["embed"]
    model = config.model(row)
    by_torch = model.training == "sae" or model.spec.made_by == "train" or model.spec.multi_vector
    start = rates.starts if by_torch else rates.starts_light
    return s.shards * start + flops / rates.flops + 4 * s.dimensions * (images + sentences) / DISK_BYTES


def evaluate(config: Config, s: Sizes, rates: Rates) -> float:
    """All rows, splits and protocols: ranks in the whole split and in its folds, and the bootstrap of both."""
    seconds, folds = 0.0, config.evaluate.folds
    galleries = 1 if folds == 1 else 2
    for row in config.models:
        sets = is_of_sets(config, row)
        for split in config.judged_splits(row):
            for protocol in config.evaluate.protocols:
                texts = s.texts if protocol == "all-sentences" else 1
                images, sentences = s.splits.get(split, 0), s.splits.get(split, 0) * texts
                drawn = config.evaluate.bootstrap * (galleries * (images + sentences) + (texts > 1) * sentences)
                pairs = (1 if folds == 1 else 1 + 1 / folds) * images * sentences
                flops = _scores(config, s, pairs) if sets else ranks(1, pairs, s.dimensions + COUNTING)
                start = rates.starts if sets else rates.starts_light
                seconds += start + drawn / RESAMPLES + flops / rates.flops
    return seconds


def index(config: Config, row: str, s: Sizes, rates: Rates) -> float:
    """One row's bundle: exact search for the queries that measure it, and for an index that is not exact what the
    candidates take; fragments are measured on sets too, each scored with everything."""
    images, sentences = _fragments(config, row, s)
    sets = is_of_sets(config, row)
    flops = 0.0
    for vectors, asking in ((images, sentences / s.sentences), (sentences, images / s.images)):
        times = 2 if vectors <= config.index.exact_limit else CANDIDATES
        flops += times * 2 * QUERIES * vectors * s.dimensions / EFFICIENCY["embed"]
        if sets:
            flops += 2 * SET_QUERIES * asking * vectors * s.dimensions / EFFICIENCY["sets"]
    start = rates.starts if sets else 2 * rates.starts_light  # faiss loads too
    return start + flops / rates.flops + 2 * 4 * (images + sentences) * s.dimensions / DISK_BYTES


def is_of_sets(config: Config, row: str) -> bool:
    """Whether images and sentences of a row are sets of fragments."""
    return config.model(row).spec.multi_vector


def _fragments(config: Config, row: str, s: Sizes) -> tuple[float, float]:
    """Vectors of all images and of all sentences of a row."""
    if not is_of_sets(config, row):
        return s.images, s.sentences
    return s.images * (1 + config.regions.count), s.sentences * WORDS


def _scores(config: Config, s: Sizes, pairs: float) -> float:
    """Operations of a plain product in the time in which `pairs` of sets are scored."""
    return 2 * pairs * (1 + config.regions.count) * WORDS * s.dimensions / EFFICIENCY["sets"]
