"""A comparison of ways to join frozen encoders: all methods get the same training pairs, and the settings of each
method are chosen on dev. The command `bench` runs this comparison."""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from pipeline.compute import runtime
from pipeline.config.models import FitSettings, HubnessSettings, TransferSettings
from pipeline.config.registry import import_object, model_spec
from pipeline.metrics.paired import Difference, Draw, compare_draws, draw_of_ranks
from pipeline.metrics.ranks import Ranks, rank_scores, score
from pipeline.metrics.retrieval import Bootstrap
from pipeline.metrics.summary import DIRECTIONS, RECALLS
from pipeline.models.joint_model import JointModel
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.corrected import HubnessCorrection
from pipeline.models.linear.hubness import Bank, choose_correction
from pipeline.models.linear.projection import unit_rows
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView, TextView, ViewBlock, one_matrix
from pipeline.models.neural.task import TrainingPairs, TrainingTask, train

MAX_BANK_ROWS = 2000
"""Maximum number of training pairs with which hubs are measured. The images and sentences of these pairs are the bank
of the hubness correction."""
DIMENSIONS = (8, 16, 32, 64, 96, 128, 192, 256, 384)
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
FIT: Mapping[str, Any] = {"dimensions": DIMENSIONS, "image_ridge": RIDGES, "text_ridge": RIDGES}
"""Key of the configuration's section `fit` -> the values that a method in closed form tries on dev. Ridges are relative
to the mean variance of their view."""
TRAIN: Mapping[str, Sequence] = {"learning_rate": (0.0005, 0.002), "dropout": (0.4, 0.7), "epochs": (30,)}
"""Key of the configuration's section for a trained model -> the values that a trained method tries on dev. All
combinations are tried."""
ALIGNED_PAIRS = 500
"""Maximum number of dev pairs on which `align_encoders` measures the alignment of two encoders."""
COLUMNS = [(direction, measure) for direction in DIRECTIONS for measure in RECALLS]
"""The six recalls of a method (recall@1, @5 and @10 in both directions of search), as pairs of a direction and a
recall. Methods are compared by the sum of the six recalls."""
BATCH = 512
"""Number of pairs in a batch of a trained method. If there are fewer training pairs, a batch has all of them."""
MIN_STEPS = 20
"""Minimum number of batches in an epoch of a trained method. If there are too few pairs for so many batches, each pair
occurs several times in an epoch. The method is scored on dev after each epoch."""


@dataclass(frozen=True)
class Method:
    """A way to join two encoders: a registered `model`, and the settings to try on dev.

    `fit` maps keys of the configuration's section `fit` to the values to try. Only models in closed form read `fit`.
    `settings` maps keys of the model's own section of the configuration to the values to try. A trained model tries all
    combinations. For a model in closed form, each of these keys must have a single value.
    """

    model: str
    fit: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Sequence] = field(default_factory=dict)


METHODS: Mapping[str, Method] = {
    "ncca": Method("ncca", {**FIT, "eigenvalue_power": (0.5, 1.0, 2.0, 4.0)}),
    "ncca-refined": Method("ncca-refined", settings=TRAIN),
    "ridge": Method("ridge-cosine", FIT),
    "procrustes": Method("procrustes", FIT),
    "csa": Method("csa", {**FIT, "image_ridge": (0.0,), "text_ridge": (0.0,)}),
    "csa-ridge": Method("csa", FIT),
    "asif": Method("asif", settings={"anchors": (25_000,)}),
    "info-nce-1": Method("projector", settings={**TRAIN, "layers": (1,)}),
    "info-nce-2": Method("projector", settings={**TRAIN, "layers": (2,)}),
    "structure": Method("projector", settings={**TRAIN, "layers": (1,), "structure": (10.0,)}),
}


@dataclass(frozen=True, eq=False)
class Bench:
    """The vectors of the splits `train`, `dev` and `test`, and the views `view` and `text` through which all methods
    read the vectors.

    In `train` and `dev`, sentence j belongs to the image in row j. An image of `train` with several sentences has one
    row for each of them, and `dev` has only the first sentence of each image. In `test`, sentence j belongs to the
    image in row `owners[j]`.
    """

    view: ImageView
    text: TextView
    splits: Mapping[str, PairArrays]

    def draw(self, count: int, seed: int) -> PairArrays:
        """Draw `count` different pairs of the split train in random order, or all pairs if there are fewer. `seed` and
        `count` decide which pairs are drawn. In the result, sentence j belongs to the image in row j."""
        train = self.splits["train"]
        rows = np.random.default_rng([seed, count]).permutation(len(train.owners))[:count]
        features = {name: block[rows] for name, block in train.features.items()}
        return PairArrays(
            features, {name: block[rows] for name, block in train.sentences.items()}, np.arange(len(rows))
        )


@dataclass(frozen=True)
class Measured:
    """The ranks of the test split for one method, one number of pairs and one seed, without or with a hubness
    correction.

    `method` is the name of the method, and `pairs` is the number of training pairs. Sentence j of the test split
    belongs to the image in row `owners[j]`. `hubness` is `none` without a correction, and `auto` with a correction.
    `seconds` are the CPU seconds of the fit or training, including the choice of the method's settings on dev. The
    seconds include neither the choice of the correction nor the fit of the `ncca` from which a refinement starts.
    `chosen` has the chosen settings of the method. If `hubness` is `auto`, `chosen` also has the settings of the
    correction.
    """

    method: str
    hubness: str
    pairs: int
    seed: int
    ranks: Ranks
    owners: np.ndarray
    seconds: float
    chosen: Mapping[str, Any]


def compare_methods(
    bench: Bench, methods: Mapping[str, Method], counts: Sequence[int], seeds: Sequence[int]
) -> Iterator[Measured]:
    """Measure each method with each number of training pairs and each seed, without and with a hubness correction.

    `methods` maps the name of a method to the method. Yields two measurements on the split test for each combination,
    first without and then with the correction. The combinations are in ascending order of the `counts` of pairs. A
    count that is larger than the number of all training pairs is replaced by this number, and equal counts are measured
    once. A seed decides which pairs are drawn, and is also the seed of the fit or training.

    The settings of methods in closed form are chosen on dev for each combination. The settings of trained methods are
    chosen on dev with the first seed for each number of pairs, and are kept for the other seeds.
    """
    owners = bench.splits["test"].owners
    available = len(bench.splits["train"].owners)
    settled: dict[str, Mapping[str, float]] = {}
    for count, seed in itertools.product(sorted({min(count, available) for count in counts}), seeds):
        pairs = bench.draw(count, seed)
        start: JointModel | None = None
        for name, method in methods.items():
            spec = model_spec(method.model)
            if start is None and spec.starts_from:
                start, _ = _fit(bench, METHODS["ncca"], pairs, seed)
            started = time.process_time()
            if spec.made_by == "fit":
                model, chosen = _fit(bench, method, pairs, seed)
            else:
                tried = _combinations(method) if seed == seeds[0] else [settled[name]]
                model, chosen = _train(bench, method, pairs, seed, start, tried)
                settled[name] = chosen
            start = model if name == "ncca" else start
            seconds = time.process_time() - started
            for hubness, (ranks, more) in _measure(bench, model, pairs).items():
                yield Measured(name, hubness, count, seed, ranks, owners, seconds, {**chosen, **more})


def _combinations(method: Method) -> list[Mapping[str, float]]:
    return [dict(zip(method.settings, values, strict=True)) for values in itertools.product(*method.settings.values())]


def _fit(bench: Bench, method: Method, pairs: PairArrays, seed: int) -> tuple[JointModel, Mapping[str, Any]]:
    """Fit a method in closed form to `pairs`, and choose its settings on dev. Return the model, and the chosen
    GridTrial as a dictionary."""
    spec = model_spec(method.model)
    block = ViewBlock(bench.view.stack(pairs.features), bench.text.stack(pairs.sentences), pairs.owners)
    accumulator = MomentsAccumulator(bench.view.dim, bench.text.dim, runtime.threads())
    accumulator.add(block.x, block.y, block.owners)
    sets = Sets(accumulator.result(), None, lambda: [block], lambda: [])
    (own,) = _combinations(method)
    settings = import_object(spec.section)(**own) if spec.section else None
    grid = FitSettings(**method.fit)
    dev = bench.splits["dev"]
    task = FitTask("target", bench.view, bench.text, sets, dev, grid, TransferSettings(), settings, seed)
    tuned = spec.load().fit(task)
    return tuned.model, asdict(tuned.chosen)


def _train(
    bench: Bench,
    method: Method,
    pairs: PairArrays,
    seed: int,
    start: JointModel | None,
    tried: Sequence[Mapping[str, float]],
) -> tuple[JointModel, Mapping[str, float]]:
    """Train a method on `pairs` with each combination of settings in `tried`. Return the model with the greatest recall
    sum on dev, and the combination of settings of this model. A refinement starts from the fitted model `start`, which
    must not be None. Other methods ignore `start`."""
    spec = model_spec(method.model)
    assert spec.section is not None
    batch = min(BATCH, len(pairs.owners))
    rows = np.tile(np.arange(len(pairs.owners)), -(-MIN_STEPS * batch // len(pairs.owners)))
    repeated = {name: block[rows] for name, block in pairs.sentences.items()}
    dev = bench.splits["dev"]
    sides = (
        TrainingPairs(pairs.features, repeated, rows, rows),
        TrainingPairs(dev.features, dev.sentences, dev.owners, dev.owners),
    )
    steps = dict(zip(bench.text.encoders, bench.text.steps, strict=True))
    results = []
    for own in tried:
        settings = import_object(spec.section)(**own, batch_size=batch)
        task = TrainingTask(
            bench.view, *sides, settings, seed, torch.float32, train_words=False, start=start, text_steps=steps
        )
        trained = train(spec.load(), task, None, lambda training: None)
        results.append((trained.log["chosen"]["recall_sum"], trained.model, own))
    _, model, chosen = max(results, key=lambda result: result[0])
    return model, chosen


def _measure(bench: Bench, model: JointModel, pairs: PairArrays) -> dict[str, tuple[Ranks, Mapping[str, Any]]]:
    """Rank the test split by a model, without a hubness correction (`none`), and with the correction that is best on
    dev (`auto`). Hubs are measured with the first MAX_BANK_ROWS of the training `pairs`.

    Return a mapping with the keys `none` and `auto`. Each value is a pair: the ranks, and the chosen settings of the
    correction, which are empty for `none`.
    """
    test = bench.splits["test"]
    dev = bench.splits["dev"]
    rows = slice(0, MAX_BANK_ROWS)
    bank = Bank(
        model.embed_images({name: block[rows] for name, block in pairs.features.items()}),
        model.embed_sentences({name: block[rows] for name, block in pairs.sentences.items()}),
    )
    dev_items = model.embed_images(dev.features), model.embed_sentences(dev.sentences)
    terms, log = choose_correction("auto", bank, *dev_items, dev.owners, HubnessSettings())
    correction = HubnessCorrection(bank, terms)
    images = model.embed_images(test.features)
    sentences = model.embed_sentences(test.sentences)
    scores = score(images, sentences, "inner_product")
    biases = correction.bias("images", images)[:, None] + correction.bias("sentences", sentences)
    return {
        "none": (rank_scores(scores, test.owners), {}),
        "auto": (rank_scores(scores - biases, test.owners), log["chosen"]),
    }


def mutual_alignment(x: np.ndarray, y: np.ndarray, neighbours: int = 10) -> float:
    """Compute the mutual nearest-neighbour alignment of two views of n pairs, from 0 to 1 (Huh et al. 2024, eq. 11).

    Row i of x (n, D) and row i of y (n, d) are a pair. The k nearest other rows by cosine are found for row i, once in
    x and once in y. The result is the mean over i of the share of the k row numbers that both lists contain. k is
    `neighbours`, or n - 1 if n is not greater than `neighbours`. There must be at least two rows.
    """
    neighbours = min(neighbours, len(x) - 1)
    nearest = []
    for rows in map(unit_rows, (x, y)):
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        nearest.append(np.argpartition(cosines, -neighbours, axis=1)[:, -neighbours:])
    shared = [len(np.intersect1d(a, b)) for a, b in zip(*nearest, strict=True)]
    return float(np.mean(shared)) / neighbours


@dataclass(frozen=True)
class BenchCell:
    """The result of one row of the bench with one number of training pairs: the sum of the six recalls, in percent.

    `mean` and `deviation` are the mean and the standard deviation of the sum over the seeds. The deviation is 0 if
    there is one seed. `minus` is the sum of this row minus the sum of the first row with the same number of pairs, with
    the 95% interval of this difference. `minus` is None in the first row, and in all rows if there were no resamples.
    """

    mean: float
    deviation: float
    minus: Difference | None


@dataclass(frozen=True)
class BenchRow:
    """The row of the bench for a method without a hubness correction, or for a method with the correction. `name` is
    the name of the method, followed by `, hubness: auto` in a row with the correction. `cells` maps each number of
    training pairs to its cell."""

    name: str
    cells: Mapping[int, BenchCell]


def line_of(measured: Measured) -> dict[str, Any]:
    """Return the line of a measurement in bench.csv as a mapping column -> value. Recalls are in percent, `sum` is the
    sum of the six recalls, `seconds` are CPU seconds, and `chosen` is a JSON text."""
    ranks = vars(measured.ranks)
    recalls = [100 * float(np.mean(ranks[side] <= int(name.partition("@")[2]))) for side, name in COLUMNS]
    return {
        "method": measured.method,
        "hubness": measured.hubness,
        "pairs": measured.pairs,
        "seed": measured.seed,
        **{"_".join(column): recall for column, recall in zip(COLUMNS, recalls, strict=True)},
        "sum": sum(recalls),
        "seconds": measured.seconds,
        "chosen": json.dumps(measured.chosen),
    }


def summarise(measured: Sequence[Measured], bootstrap: Bootstrap) -> list[BenchRow]:
    """Return a row for each method without and with a hubness correction, in the order of the first measurements.

    A row has a cell for each number of training pairs, with the mean over the seeds. Each cell is compared with the
    cell of the first row with the same number of pairs. The interval of the difference comes from a paired bootstrap
    over the test images and, if there are several seeds, from the variance of the difference over the seeds. The cells
    of the first row have no difference. If `bootstrap` has 0 resamples, no cell has a difference. `measured` must not
    be empty.
    """
    draws: dict[str, dict[int, list[Draw]]] = {}
    for one in measured:
        owners = {"image_to_sentence": np.arange(len(one.ranks.image_to_sentence)), "sentence_to_image": one.owners}
        draw = draw_of_ranks(vars(one.ranks), owners, COLUMNS)
        name = one.method if one.hubness == "none" else f"{one.method}, hubness: {one.hubness}"
        draws.setdefault(name, {}).setdefault(one.pairs, []).append(draw)
    first, *_ = draws.values()
    rows = []
    for name, by_pairs in draws.items():
        cells = {}
        for pairs, own in by_pairs.items():
            sums = [draw.worth(np.ones(len(draw.images), np.int64)) for draw in own]
            minus = None
            if by_pairs is not first and bootstrap.resamples:
                minus = compare_draws(own, first[pairs], bootstrap, same_draws=True)
            cells[pairs] = BenchCell(float(np.mean(sums)), float(np.std(sums, ddof=len(sums) > 1)), minus)
        rows.append(BenchRow(name, cells))
    return rows


def align_encoders(bench: Bench) -> dict[tuple[str, str], float]:
    """Compute the mutual nearest-neighbour alignment of each image encoder with each text encoder, on the first
    ALIGNED_PAIRS pairs of dev. Return (image encoder, text encoder) -> alignment in percent. Dev must have at least two
    pairs."""
    dev = bench.splits["dev"]
    images = bench.view.split(bench.view.stack(dev.features)[:ALIGNED_PAIRS])
    found = {}
    for text in bench.text.encoders:
        y = one_matrix(bench.text.select([text]).stack({text: dev.sentences[text][:ALIGNED_PAIRS]}))
        for name, x in images.items():
            found[name, text] = 100 * mutual_alignment(x, y if isinstance(y, np.ndarray) else y.toarray())
    return found
