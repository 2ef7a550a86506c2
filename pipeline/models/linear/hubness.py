"""Hubness correction: the methods, and the choice of a method and its parameters on dev.

A hub is an item that is near many queries, so that it ranks above the right items of these queries. The correction
turns the score s(q, g) of a query q and an item g of the gallery into s(q, g) - b(g). The bias b(g) is measured once,
with queries q' from a *bank* of training pairs (querybank normalisation, Bogolin et al. 2022). A corrected score
therefore depends only on its query and its item, and corrected vectors are indexed like any other vectors
(`corrected.py`). Images are the gallery for sentences, and sentences are the gallery for images.

Each method is a function that yields, for each trial, the `Term`s whose sum is b. `Bank.measure` computes the sum of
the terms: for dev when the correction is chosen (`choose_correction`), and later for all items that are embedded. The
audit has its own CSLS score (`cross_fit.py`), which also uses `mean_of_greatest`.
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
"""The embeddings of n images or of n sentences: an array (n, c), or a tensor (n, c) on a device, if each item has one
vector, and MultiVectors if each item has several vectors."""
Scores: TypeAlias = "np.ndarray | Tensor"

SIDES = {"images": "sentence_to_image", "sentences": "image_to_sentence"}
"""Side, `images` or `sentences` -> the direction of search in which the items of this side are ranked. In this
direction, only the biases of this side change the ranks."""
SINKHORN_ROUNDS = 10
"""Number of rounds of Sinkhorn's iteration, as in Pan et al. 2025. A round balances the rows and then the columns."""
LOWEST_EXPONENT = -80.0
"""Smallest exponent in the matrix of Sinkhorn's iteration. Smaller exponents are raised to this number, so that no
exponential vanishes in float32."""


class Term(NamedTuple):
    """A term of the bias of an item: `weight` times a `statistic` of the item's scores with the queries q' of the bank.

    The statistic `nearest` is the mean of the k greatest scores, where k is the `parameter`. The statistic `balanced`
    is log(mean of exp(beta (s - a(q')))) / beta, where the mean is over all q', s is the item's score with q', beta is
    the `parameter`, and a(q') is the entry for q' in the `balance` of the bank for the side of the item.
    """

    weight: float
    statistic: str
    parameter: float


STATISTICS = ("nearest", "balanced")
REMOVED_STATISTICS = ("softmax", "gallery")
Trials = Iterator[tuple[dict[str, float], list[Term]]]
"""An iterator over the trials of a method. A trial has its parameters, name -> value, and the terms of the bias b."""


def mean_of_nearest(grid: "HubnessSettings", deviation: float) -> Trials:
    """Yield the trials of the bias b(g) = w r(g) of an item g, for each weight w of `grid` except 0 and for each k.

    r(g) is the mean of the k greatest scores s(q', g) with the queries q' of the bank, and the corrected score of a
    query q is s(q, g) - b(g). With w = 1/2 and the same k in both directions, items have the same order by the
    corrected score and by the score 2 s(q, g) - r(q) - r(g) (Conneau et al. 2018, section 2.3), because r(q) is
    constant for a query. Nearest neighbour normalisation (Chowdhury et al. 2024) chooses w (alpha in the paper) and k
    for each direction. `deviation`, which `sinkhorn` needs, is not used.
    """
    for weight, k in itertools.product(filter(None, grid.weight), grid.neighbours):
        yield {"weight": weight, "neighbours": k}, [Term(weight, "nearest", k)]


def sinkhorn(grid: "HubnessSettings", deviation: float) -> Trials:
    """Yield the trials of the bias b(g) = log(mean over q' of exp(beta (s(q', g) - a(q')))) / beta of an item g, for
    each sharpness of `grid`.

    s(q', g) is the score of the item with a query q' of the bank. beta is the sharpness divided by `deviation`, the
    standard deviation of the scores of the dev items with the queries of the bank. The numbers a(q') come from
    Sinkhorn's iteration, which balances the matrix of the exponentials exp(beta s) between the gallery and the queries
    of the bank, so that all rows have nearly equal sums and all columns have nearly equal sums. The number of rounds is
    fixed (SINKHORN_ROUNDS). This is dual bank Sinkhorn normalisation (Pan et al. 2025), except that the matrix of the
    paper also contains the gallery that is searched.
    """
    for sharpness in grid.sharpness:
        yield {"sharpness": sharpness}, [Term(1.0, "balanced", sharpness / deviation)]


METHODS: dict[str, Callable[["HubnessSettings", float], Trials]] = {
    "csls": mean_of_nearest,
    "nnn": mean_of_nearest,
    "sinkhorn": sinkhorn,
}
"""Name of a method of hubness correction -> the function that yields its trials. The arguments of the function are the
settings with the values to try, and the standard deviation of the scores. `csls` and `nnn` have the same trials. For
`csls`, `choose_correction` chooses one trial for both directions of search. For `nnn`, it chooses one trial for each
direction."""


@dataclass(frozen=True)
class Bank:
    """Embedded training `images` and `sentences`, with which biases are measured.

    `comparison` says how an image and a sentence are scored. `images` (a, c) and `sentences` (b, c) are unit vectors,
    or have several vectors each. The biases of sentences are measured with `images`. The biases of images are measured
    with `queries`, or with `sentences` if `queries` is None. `queries` are embedded texts without images, such as
    logged text queries. `balance` maps each side that has a `balanced` term to the numbers a(q') (q,) of the queries
    for this side.
    """

    images: BankItems
    sentences: BankItems
    comparison: Comparison = "inner_product"
    queries: "BankItems | None" = None
    balance: Mapping[str, Scores] = field(default_factory=dict)

    def scores(self, side: str, items: BankItems) -> Scores:
        """Score n `items` of a side, `images` or `sentences`, with the q items of the bank that are the queries for
        this side: the bank's images for `sentences`, and the bank's queries or sentences for `images`. Return (n,
        q)."""
        if side == "sentences":
            return _compare(self.images, items, self.comparison).T
        return _compare(items, self.sentences if self.queries is None else self.queries, self.comparison)

    def measure(
        self, side: str, items: BankItems, terms: Sequence[Term], with_queries: "Scores | None" = None
    ) -> Scores:
        """Compute the bias of each of n `items` of a side, `images` or `sentences`, which is the sum of the `terms`.
        Return (n,) float32, as a tensor if the items are tensors and there are terms, and otherwise as an array.
        Without terms, all biases are 0.

        `with_queries` is the result of `scores` for the items, or None if the method must compute these scores. If
        there is a `balanced` term, the bank must have a balance for the side, which the method `balanced` computes.
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
        """Return a copy of this bank that has a balance for each side with a `balanced` term. `terms` maps a side to
        its terms. The balances that this bank has already are kept and not computed again."""
        betas = {side: term.parameter for side in terms for term in terms[side] if term.statistic == "balanced"}
        missing = {side: self._balance(side, beta) for side, beta in betas.items() if side not in self.balance}
        return replace(self, balance={**self.balance, **missing})

    def _balance(self, side: str, beta: float) -> np.ndarray:
        """Compute the numbers a(q') (q,) float32 of the bank's queries for a side, by Sinkhorn's iteration on the
        scores of these queries with the bank's items of this side.

        `beta` is the parameter of the `balanced` term. The mean of the numbers is 0.
        """
        kernel = np.asarray(self.scores(side, self.images if side == "images" else self.sentences), np.float32)
        # The greatest exponent of each row becomes 0, so that nothing overflows. The factors `of_gallery` absorb this.
        kernel = kernel - kernel.max(axis=1, keepdims=True)
        np.exp(np.maximum(kernel * np.float32(beta), LOWEST_EXPONENT), out=kernel)
        of_queries = np.ones(kernel.shape[1], np.float32)
        for _ in range(SINKHORN_ROUNDS):
            of_gallery = 1 / (kernel @ of_queries)
            of_queries = 1 / (of_gallery @ kernel)
        numbers = -np.log(of_queries) / np.float32(beta)
        return numbers - numbers.mean()


def _compare(images: BankItems, sentences: BankItems, comparison: Comparison) -> Scores:
    """Compute the scores (n, m) of n images with m sentences. Arrays and MultiVectors are scored by `comparison`, and
    tensors by their inner products. Both arguments are tensors, or neither is."""
    if isinstance(images, np.ndarray | MultiVectors):
        assert isinstance(sentences, np.ndarray | MultiVectors)
        return score(images, sentences, comparison)
    assert not isinstance(sentences, np.ndarray | MultiVectors)
    return images @ sentences.T


def mean_of_greatest(scores: Scores, k: int) -> Scores:
    """Average the k greatest values of each row of `scores` (n, b), or all b values if b is less than k. Return (n,) as
    an array float32, or as a tensor if `scores` are a tensor."""
    k = min(k, scores.shape[1])
    if isinstance(scores, np.ndarray):
        return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1, dtype=np.float32)
    return scores.topk(k, dim=1).values.mean(dim=1)


def log_mean_exp(scores: Scores, beta: float) -> Scores:
    """Compute log(mean of exp(beta s)) / beta for each row of `scores` (n, b), where the mean is over the scores s of
    the row. Return (n,), as a tensor if `scores` are a tensor, and otherwise as an array. The exponentials do not
    overflow."""
    if isinstance(scores, np.ndarray):
        greatest = scores.max(axis=1, keepdims=True)
        exponentials = np.exp((scores - greatest) * np.float32(beta))
        return greatest[:, 0] + np.log(exponentials.mean(axis=1, dtype=np.float32)) / np.float32(beta)
    return ((beta * scores).logsumexp(dim=1) - math.log(scores.shape[1])) / beta


def choose_correction(
    method: str, bank: Bank, images: Items, sentences: Items, owners: np.ndarray, grid: "HubnessSettings"
) -> tuple[dict[str, list[Term]], dict[str, Any]]:
    """Choose a hubness correction on the embeddings of the n images and m sentences of dev. Return the terms of the
    correction, side -> terms, and a log of the choice as JSON values.

    Sentence j belongs to image `owners[j]`. The biases are measured with `bank`, and `grid` has the values of the
    parameters to try. `method` is a name in METHODS, `none`, or `auto`. `auto` tries all methods except `csls`, because
    `nnn` tries the same values. The first trial is always no correction, which has no terms. For each direction of
    search, the trial with the greatest sum of recall@1, @5 and @10 in this direction is chosen. The method `csls`
    instead takes one trial for both directions, the trial with the greatest sum of all six recalls. Among equal trials,
    the first is chosen.

    In the log, `chosen` describes the chosen trial of each side, and has the recall sums in percent that the correction
    reaches. `trials` has all trials, the greatest `recall_sum` first.
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
    """A trial on dev: a method with one value for each of its parameters.

    `log` has the method and the parameters, and `choose_correction` adds the sums of recalls. `terms` has the terms of
    the bias for each side, `images` and `sentences`.
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
    """Describe the method and the parameters of the trial with this `log` in a text such as `nnn, weight 0.5,
    neighbours 10`."""
    named = [f"{key} {log[key]:g}" for key in ("weight", "neighbours", "sharpness") if key in log]
    return ", ".join([str(log["method"]), *named])


class _DevSide:
    """The dev `items` of one side, whose biases are computed for many trials. Trials with the same statistic and
    parameter share one measurement. `deviation` is the standard deviation of the items' scores with the queries of the
    bank."""

    def __init__(self, bank: Bank, side: str, items: Items) -> None:
        self.bank = bank
        self.side = side
        self.items = items
        self.with_queries = bank.scores(side, items)
        self.deviation = float(self.with_queries.std())
        self.measured: dict[Term, np.ndarray] = {}

    def bias(self, terms: Sequence[Term]) -> np.ndarray:
        """Compute the bias of each of the n items of this side of dev, which is the sum of the `terms`, or 0 without
        terms. Return (n,) float32. The statistic of a term is kept for later calls."""
        total = np.zeros(len(self.items), np.float32)
        for term in terms:
            alone = term._replace(weight=1.0)
            if alone not in self.measured:
                bank = self.bank.balanced({self.side: [alone]})
                self.measured[alone] = np.asarray(bank.measure(self.side, self.items, [alone], self.with_queries))
            total += np.float32(term.weight) * self.measured[alone]
        return total
