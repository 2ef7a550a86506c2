"""Seconds of `fit`: factors, solutions and trials on dev of the linear models, for every training.

A ridge of either view costs a Cholesky factor, one of the text also a triangular product; each pair of ridges another
product of that kind, a Gram matrix and its eigenvectors; each dimension and power of each pair ranks on dev.
"""

from math import prod

from pipeline.config import Config
from pipeline.plan.rates import Rates
from pipeline.plan.sizes import Sizes
from pipeline.settings.models import Fit
from pipeline.specs.models import ModelSpec
from pipeline.specs.trainings import STACKING, TRAININGS

EFFICIENCY = {"fit": 0.35, "gram": 1.0, "map": 0.5, "rank": 0.11}
"""Estimates: share of the rate of a plain product in single precision that is reached; ranks are in double."""
COUNTING = 27
"""An estimate: dimensions whose products take as long as the counting of ranks."""
EIGENVECTORS = 4
"""An estimate: operations for the top eigenvectors of a matrix of n rows, over n cubed."""
LINES = 1.25
"""An estimate: pairs of ridges that a search along lines tries, over the ridges of both views."""
DISK_BYTES = 150e6
"""An estimate: bytes a second that are written, read back and hashed."""


def fit(config: Config, name: str, s: Sizes, rates: Rates) -> float | None:
    """One model, reading the moments included; None for one that is not solved from moments alone, whose work depends
    on its data more than on its size."""
    model = config.model(name)
    if not model.spec.grid or model.settings:
        return None
    dim, terms, transfer = sum(s.dims[name] for name in model.encoders), s.terms, model.transfer
    train = s.splits.get("train", 0)
    weak = sum(s.splits.get(split, 0) for split in config.auxiliary.splits)
    most = max(transfer.auxiliary_dimensions)
    views = {
        "target": (dim, terms, train), "auxiliary": (dim, terms, weak), "joint": (dim, terms, train + weak),
        "text-feature": (dim + terms, terms, train), "stacked": (most, most, train),
        "sae-linear": (dim + most, terms + most, train),
        "sae": (dim + transfer.features, terms + transfer.features, train),
    }  # fmt: skip
    axes = (getattr(transfer, key) for key in TRAININGS[model.training])
    times, grid = prod(len(axis) for axis in axes if isinstance(axis, list | tuple)), model.fit
    if config.refitted(name):
        point = {name: getattr(grid, name)[:1] for name in ("image_ridge", "text_ridge", "eigenvalue_power")}
        times, grid = 1, grid.model_copy(update=point)
    seconds = times * _tuning(grid, model.spec, *views[model.training], s, rates)
    if model.training in STACKING:
        seconds += _tuning(model.fit, model.spec, dim, terms, weak, s, rates)
    if model.training == "sae":
        mapped = train * (1 + s.texts) * transfer.features * (transfer.features + dim + 2 * most)
        seconds += times * mapped / EFFICIENCY["map"] / rates.flops
    read = (1 if model.training == "target" else 2) * s.shards * s.moments_bytes / 2
    start = rates.starts if model.training in ("text-feature", "sae") else rates.starts_light  # feature maps: torch
    return start + read / DISK_BYTES + seconds


def _tuning(grid: Fit, spec: ModelSpec, dim: int, terms: int, rows: int, s: Sizes, rates: Rates) -> float:
    """All ridges, dimensions and powers of views of `dim` and `terms` columns; the image view's are at most `rows`."""
    dim = min(dim, rows)
    image, text = len(grid.image_ridge), len(grid.text_ridge) if "text_ridge" in spec.grid else 1
    pairs = image * text if grid.search == "grid" else min(image * text, LINES * (image + text))
    kept = min(max(grid.dimensions), dim)
    factors = image * dim**3 / 3 + text * (terms**3 / 3 + terms**2 * dim)
    small, large = min(dim, terms), max(dim, terms)
    solution = dim**2 * terms + (dim**2 + terms**2) * kept + EIGENVECTORS * small**3
    gram = 2 * small**2 * large + 2 * dim * terms * kept
    solved = (factors + pairs * solution) / EFFICIENCY["fit"] + pairs * gram / EFFICIENCY["gram"]
    powers = len(grid.eigenvalue_power) if "eigenvalue_power" in spec.grid else 1
    dev = min(grid.dev_images, s.splits.get("dev", 0))
    columns = sum(min(size, kept) + COUNTING for size in grid.dimensions)
    ranked = pairs * powers * ranks(dev, dev * s.texts, columns)
    return (solved + ranked) / rates.flops


def ranks(images: float, sentences: float, columns: float) -> float:
    """Operations of a plain product in the time in which ranks are counted; `columns` of the vectors and COUNTING."""
    return 2 * images * sentences * columns / EFFICIENCY["rank"]
