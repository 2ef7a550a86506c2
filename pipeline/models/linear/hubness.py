"""Hubness correction: the methods, and the choice of a method and its parameters on dev.

A hub is an item that is near many queries, so that it ranks above the items that the queries mean. The correction turns
the score s(q, g) of a query q and an item g of the gallery into s(q, g) - b(g). The bias b(g) is measured once, with
queries q' from a *bank* of training pairs (querybank normalisation, Bogolin et al. 2022). A corrected score therefore
depends only on its query and its item, and corrected vectors are indexed like any other vectors (`corrected.py`).
Images are the gallery for sentences, and sentences are the gallery for images.

Each method is a function that yields, for each trial, the `Term`s whose sum is b. `Bank.measure` computes the terms:
for dev when the correction is chosen (`choose_correction`), and later for all items that are embedded. The audit has
its own CSLS score (`cross_fit.py`), which also uses `mean_of_greatest`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pipeline.compute.multivectors import Comparison, Items, MultiVectors
from pipeline.metrics.ranks import rank_scores, score
from pipeline.metrics.retrieval import recall_sum, recall_sums

if TYPE_CHECKING:
    from torch import Tensor

    from pipeline.config.models import HubnessSettings

BankItems: TypeAlias = "Items | Tensor"
"""The embeddings of images or of sentences. If each has one vector, they may be a tensor (n, c) on a device."""
Scores: TypeAlias = "np.ndarray | Tensor"

SIDES = {"images": "sentence_to_image", "sentences": "image_to_sentence"}
"""Side of the gallery -> the direction of search that the biases of this side affect."""
SINKHORN_ROUNDS = 10
"""Rounds of Sinkhorn's iteration, as in Pan et al. 2025."""
LOWEST_EXPONENT = -80.0
"""Smallest exponent of a pair in Sinkhorn's iteration. It replaces smaller exponents, so that no exponential vanishes
in float32."""


class Term(NamedTuple):
    """A term of the bias of an item: `weight` times a `statistic` of the item's scores with the queries q' of the bank.

    `nearest` is the mean of the k greatest scores, where k is the `parameter`. `balanced` is
    log(mean of exp(beta (s - a(q')))) / beta, where s is the score with q', beta is the `parameter`, and a(q') is the
    number of q' in the `balance` of the bank.
    """

    weight: float
    statistic: str
    parameter: float


STATISTICS = ("nearest", "balanced")
REMOVED_STATISTICS = ("softmax", "gallery")
Trials = Iterator[tuple[dict[str, float], list[Term]]]
"""The parameters of each trial on dev, with the terms of the bias b."""


def mean_of_nearest(grid: "HubnessSettings", deviation: float) -> Trials:
    """Yield the trials of b = w * mean of the k greatest s(q', g), for each weight w of `grid` except 0 and for each k.

    With w = 1/2 and the same k in both directions, the corrected score ranks items like 2 s(q, g) - r(q) - r(g)
    (Conneau et al. 2018, section 2.3). The two scores differ by a positive factor and by r(q), which is constant for a
    query. Nearest neighbour normalisation (Chowdhury et al. 2024) chooses w (there alpha) and k for each direction.
    `deviation` is not used.
    """
    for weight, k in itertools.product(filter(None, grid.weight), grid.neighbours):
        yield {"weight": weight, "neighbours": k}, [Term(weight, "nearest", k)]


def sinkhorn(grid: "HubnessSettings", deviation: float) -> Trials:
    """Yield the trials of b = log(mean of exp(beta (s(q', g) - a(q')))) / beta, for each sharpness of `grid`.

    beta is the sharpness divided by the standard `deviation` of the scores. The numbers a(q') balance the matrix of the
    exponentials between the queries and the gallery of the bank, so that the sums of its rows are equal, and the sums
    of its columns too. This is dual bank Sinkhorn normalisation (Pan et al. 2025), but there the matrix also contains
    the gallery itself.
    """
    for sharpness in grid.sharpness:
        yield {"sharpness": sharpness}, [Term(1.0, "balanced", sharpness / deviation)]


METHODS: dict[str, Callable[["HubnessSettings", float], Trials]] = {
    "csls": mean_of_nearest,
    "nnn": mean_of_nearest,
    "sinkhorn": sinkhorn,
}
"""Name of a method of hubness correction -> a function from the grid and the standard deviation of the scores to the
trials. `csls` and `nnn` have the same trials, and `choose_correction` chooses among them in different ways."""


@dataclass(frozen=True)
class Bank:
    """Embedded training `images` and `sentences`, with which biases are measured.

    `comparison` says how an image and a sentence are scored. The items are unit vectors, (a, c) and (b, c), or have
    several vectors each. `queries` are sentences without images, such as expected text queries. If it is None,
    `sentences` are the queries that measure images. `balance` has the numbers a(q') for each side with a `balanced`
    term.
    """

    images: BankItems
    sentences: BankItems
    comparison: Comparison = "inner_product"
    queries: "BankItems | None" = None
    balance: Mapping[str, Scores] = field(default_factory=dict)

    def scores(self, side: str, items: BankItems) -> Scores:
        """Score n `items` of a side, `images` or `sentences`, with the q items of the bank that are the queries for
        this side. Return (n, q)."""
        if side == "sentences":
            return _compare(self.images, items, self.comparison).T
        return _compare(items, self.sentences if self.queries is None else self.queries, self.comparison)

    def measure(
        self, side: str, items: BankItems, terms: Sequence[Term], with_queries: "Scores | None" = None
    ) -> Scores:
        """Sum the `terms` for each of n `items` of a side. Return (n,) float32, as a tensor if the items are tensors
        and there are terms, and otherwise as an array.

        `with_queries` are the `scores` of the items if they have been computed already.
        """
        if not terms:
            return np.zeros(len(items), np.float32)
        scores = self.scores(side, items) if with_queries is None else with_queries
        total = self._statistic(side, scores, terms[0])
        for term in terms[1:]:
            total = total + self._statistic(side, scores, term)
        return total

    def _statistic(self, side: str, scores: Scores, term: Term) -> Scores:
        if term.statistic == "nearest":
            return float(term.weight) * mean_of_greatest(scores, int(term.parameter))
        assert term.statistic == "balanced"
        return float(term.weight) * log_mean_exp(scores - self.balance[side], term.parameter)

    def balanced(self, terms: Mapping[str, Sequence[Term]]) -> "Bank":
        """Return this bank with a `balance` for each side that has a `balanced` term in `terms`."""
        betas = {side: term.parameter for side in terms for term in terms[side] if term.statistic == "balanced"}
        missing = {side: self._balance(side, beta) for side, beta in betas.items() if side not in self.balance}
        return replace(self, balance={**self.balance, **missing})

    def _balance(self, side: str, beta: float) -> np.ndarray:
        """Compute the numbers a(q') (q,) float32 of the queries for a side, by Sinkhorn's iteration.

        `beta` is the parameter of the `balanced` term. The mean of the numbers is 0.
        """
        kernel = np.asarray(self.scores(side, self.images if side == "images" else self.sentences), np.float32)
        kernel = kernel - kernel.max(axis=1, keepdims=True)  # The factors of the gallery cancel this subtraction.
        np.exp(np.maximum(kernel * np.float32(beta), LOWEST_EXPONENT), out=kernel)
        of_queries = np.ones(kernel.shape[1], np.float32)
        for _ in range(SINKHORN_ROUNDS):
            of_gallery = 1 / (kernel @ of_queries)
            of_queries = 1 / (of_gallery @ kernel)
        numbers = -np.log(of_queries) / np.float32(beta)
        return numbers - numbers.mean()


def _compare(images: BankItems, sentences: BankItems, comparison: Comparison) -> Scores:
    """Compute the scores (n, m) of n images with m sentences. Tensors are compared by their inner products."""
    if isinstance(images, np.ndarray | MultiVectors):
        assert isinstance(sentences, np.ndarray | MultiVectors)
        return score(images, sentences, comparison)
    assert not isinstance(sentences, np.ndarray | MultiVectors)
    return images @ sentences.T


def mean_of_greatest(scores: Scores, k: int) -> Scores:
    """Average the k greatest values of each row of `scores` (n, b). Return (n,) float32.

    If a row has fewer than k values, all of them are averaged.
    """
    k = min(k, scores.shape[1])
    if isinstance(scores, np.ndarray):
        return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1, dtype=np.float32)
    return scores.topk(k, dim=1).values.mean(dim=1)


def log_mean_exp(scores: Scores, beta: float) -> Scores:
    """Compute log(mean of exp(beta s)) / beta over each row of `scores` (n, b). Return (n,) float32."""
    if isinstance(scores, np.ndarray):
        greatest = scores.max(axis=1, keepdims=True)
        exponentials = np.exp((scores - greatest) * np.float32(beta))
        return greatest[:, 0] + np.log(exponentials.mean(axis=1, dtype=np.float32)) / np.float32(beta)
    return ((beta * scores).logsumexp(dim=1) - math.log(scores.shape[1])) / beta


def choose_correction(
    method: str, bank: Bank, images: Items, sentences: Items, owners: np.ndarray, grid: "HubnessSettings"
) -> tuple[dict[str, list[Term]], dict[str, Any]]:
    """Choose the terms of each side on the n images and m sentences of dev. Return them with a log of the choice.

    Sentence j belongs to image `owners[j]`. The biases are measured with `bank`, and `grid` has the values of the
    parameters to try. `method` is a name in METHODS, `none`, or `auto`. `auto` tries all methods except `csls`, because
    `nnn` tries the same values. The first trial is always no correction. For each direction of search, the trial with
    the greatest sum of recall@1, @5 and @10 in this direction is chosen. `csls` instead takes the same trial for both
    directions, by the sum of both. Among equal trials, the first is chosen.
    """
    scores = score(images, sentences, bank.comparison)
    dev = {"images": _DevSide(bank, "images", images), "sentences": _DevSide(bank, "sentences", sentences)}
    trials = list(_trials(method, grid, *(side.deviation for side in dev.values())))
    for trial in trials:
        biases = {side: dev[side].bias(terms) for side, terms in trial.terms.items()}
        ranks = rank_scores(scores - (biases["images"][:, None] + biases["sentences"]), owners)
        trial.log.update(recall_sums(ranks), recall_sum=recall_sum(ranks))
    judged_by = dict.fromkeys(SIDES, "recall_sum") if method == "csls" else SIDES
    best = {side: max(trials, key=lambda trial: trial.log[measure]) for side, measure in judged_by.items()}
    reached = {direction: best[side].log[direction] for side, direction in SIDES.items()}
    chosen = {side: _describe_trial(trial.log) for side, trial in best.items()}
    log = {
        "chosen": {**chosen, **reached, "recall_sum": sum(reached.values())},
        "trials": sorted((trial.log for trial in trials), key=lambda log: -log["recall_sum"]),
    }
    return {side: trial.terms[side] for side, trial in best.items()}, log


class Trial(NamedTuple):
    """A trial on dev.

    `log` has its method, its parameters and later its recalls. `terms` has the terms of each side.
    """

    log: dict[str, Any]
    terms: dict[str, list[Term]]


def _trials(method: str, grid: "HubnessSettings", image_deviation: float, sentence_deviation: float) -> Iterator[Trial]:
    yield Trial({"method": "none"}, {"images": [], "sentences": []})
    for name in METHODS:
        if name != method and (method != "auto" or name == "csls"):
            continue
        both = zip(METHODS[name](grid, image_deviation), METHODS[name](grid, sentence_deviation), strict=True)
        for (parameters, image_terms), (_, sentence_terms) in both:
            yield Trial({"method": name, **parameters}, {"images": image_terms, "sentences": sentence_terms})


def _describe_trial(log: Mapping[str, str | float]) -> str:
    """Describe the method and its parameters, such as `nnn, weight 0.5, neighbours 10`."""
    named = [f"{key} {log[key]:g}" for key in ("weight", "neighbours", "sharpness") if key in log]
    return ", ".join([str(log["method"]), *named])


class _DevSide:
    """The dev `items` of one side, whose biases are summed from any terms. Each statistic is measured only once."""

    def __init__(self, bank: Bank, side: str, items: Items) -> None:
        self.bank = bank
        self.side = side
        self.items = items
        self.with_queries = bank.scores(side, items)
        self.deviation = float(self.with_queries.std())
        self.measured: dict[Term, np.ndarray] = {}

    def bias(self, terms: Sequence[Term]) -> np.ndarray:
        """Sum the `terms` for each of the n items. Return (n,) float32."""
        total = np.zeros(len(self.items), np.float32)
        for term in terms:
            alone = term._replace(weight=1.0)
            if alone not in self.measured:
                bank = self.bank.balanced({self.side: [alone]})
                self.measured[alone] = np.asarray(bank.measure(self.side, self.items, [alone], self.with_queries))
            total += np.float32(term.weight) * self.measured[alone]
        return total
