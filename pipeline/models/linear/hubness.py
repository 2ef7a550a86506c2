"""Hubness correction: the methods, what each subtracts from a score, and the choice among them on dev.

A hub is near everything, and stands before what a query means. A score s(q, g) of a query and an item of the gallery
becomes s(q, g) - b(g). The bias b(g) is measured once, by queries q' and other items g' of the gallery in a *bank* of
training pairs (querybank normalisation, Bogolin et al. 2022), so a score depends on its pair alone, and corrected
vectors are indexed like any others (`corrected.py`). Images are a gallery for sentences, and sentences for images.

To change a method, change its function: it says for each trial which `Term`s add up to b, and `Bank.measure` computes
them, at fit for dev (`choose_correction`) and later for whatever is embedded. lme is the logarithm of the mean
exponential. The audit scores by a CSLS of its own (`cross_fit.py`), with `mean_of_greatest`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.compute.multivectors import Comparison, Items
from pipeline.metrics.ranks import rank_scores, score
from pipeline.metrics.retrieval import recall_sum, recall_sums

if TYPE_CHECKING:
    from pipeline.config.models import HubnessSettings

SIDES = {"images": "sentence_to_image", "sentences": "image_to_sentence"}
"""Side of the gallery -> the direction of search that its biases decide."""
ROUNDS, LOWEST = 10, -80.0
"""Rounds of Sinkhorn's iteration, as Pan et al. have; the exponent below which a pair counts no less."""


class Term(NamedTuple):
    """`weight` times a statistic of an item among the bank: `nearest`, the mean of its `parameter` greatest scores with
    queries, or lme(beta s) / beta with beta the `parameter`: `softmax` and `balanced` (less a(q')) with queries,
    `gallery` with items of its own kind."""

    weight: float
    statistic: str
    parameter: float


Trials = Iterator[tuple[dict[str, float], list[Term]]]
"""Parameters that are tried on dev, each with the terms of b."""


def csls(grid: "HubnessSettings", deviation: float) -> Trials:
    """b = w mean of the k greatest s(q', g). With w = 1/2 and the same k in both directions it is 2 s(q, g) - r(q) -
    r(g) of Conneau et al. 2018, section 2.3, up to a factor and to r(q), which changes no rank of q. Nearest neighbour
    normalisation (Chowdhury et al. 2024) has w (alpha) and k of each direction."""
    for weight, k in itertools.product(filter(None, grid.weight), grid.neighbours):
        yield {"weight": weight, "neighbours": k}, [Term(weight, "nearest", k)]


def inverted_softmax(grid: "HubnessSettings", deviation: float) -> Trials:
    """b = lme(beta s(q', g)) / beta: the logarithm of exp(beta s(q, g)) / sum over q' of exp(beta s(q', g)), divided by
    beta (Smith et al. 2017; Bogolin et al. 2022)."""
    for sharpness in grid.sharpness:
        yield {"sharpness": sharpness}, [Term(1.0, "softmax", sharpness / deviation)]


def dual_softmax(grid: "HubnessSettings", deviation: float) -> Trials:
    """b = [lme(beta s(q', g)) + lme(beta' s(g', g))] / (beta + beta'): of the product of two inverted softmaxes, over
    the queries and over the gallery (Wang, Jian and Xue 2023)."""
    for sharpness, gallery in itertools.product(grid.sharpness, repeat=2):
        beta, other = sharpness / deviation, gallery / deviation
        terms = [Term(beta / (beta + other), "softmax", beta), Term(other / (beta + other), "gallery", other)]
        yield {"sharpness": sharpness, "gallery_sharpness": gallery}, terms


def sinkhorn(grid: "HubnessSettings", deviation: float) -> Trials:
    """b = lme(beta (s(q', g) - a(q'))) / beta, with the numbers a(q') by which the exponentials between the queries and
    the gallery of the bank become a matrix with equal row and column sums (dual bank Sinkhorn normalisation, Pan et al.
    2025, whose gallery is part of that matrix)."""
    for sharpness in grid.sharpness:
        yield {"sharpness": sharpness}, [Term(1.0, "balanced", sharpness / deviation)]


METHODS: dict[str, Callable[["HubnessSettings", float], Trials]] = {
    "csls": csls, "nnn": csls, "inverted-softmax": inverted_softmax, "dual-softmax": dual_softmax,
    "sinkhorn": sinkhorn,
}  # fmt: skip
"""HUBNESS -> what it tries by the grid and the standard deviation of the scores with the bank."""


@dataclass(frozen=True)
class Bank:
    """Embedded training `images` and `sentences` and their comparison: unit vectors, (a, c) and (b, c), or several an
    item. `queries` are sentences without images, which stand for those that people ask; None: `sentences`. `balance`
    has the a(q') of a side with a `balanced` term."""

    images: Items
    sentences: Items
    comparison: Comparison = "inner_product"
    queries: Items | None = None
    balance: Mapping[str, np.ndarray] = field(default_factory=dict)

    def scores(self, side: str, items: Items) -> np.ndarray:
        """(n, q) scores of n `items` of a side with the q queries that look for them."""
        if side == "sentences":
            return score(self.images, items, self.comparison).T
        return score(items, self.sentences if self.queries is None else self.queries, self.comparison)

    def measure(
        self, side: str, items: Items, terms: Sequence[Term], with_queries: np.ndarray | None = None
    ) -> np.ndarray:
        """(n,) float32 the sum of `terms` of each of n `items` of a side; `with_queries` are their `scores`, if these
        are known. All may be tensors, and then so is the sum."""
        if with_queries is None:
            with_queries = self.scores(side, items)
        weighted = []
        for weight, statistic, parameter in terms:
            if statistic == "nearest":
                measured = mean_of_greatest(with_queries, int(parameter))
            elif statistic == "gallery":
                measured = log_mean_exp(items @ getattr(self, side).T, parameter)
            elif statistic == "balanced":
                measured = log_mean_exp(with_queries - self.balance[side], parameter)
            else:
                measured = log_mean_exp(with_queries, parameter)
            weighted.append(float(weight) * measured)
        return sum(weighted) if weighted else np.zeros(len(items), np.float32)

    def balanced(self, terms: Mapping[str, Sequence[Term]]) -> "Bank":
        """This bank with the `balance` of each side whose `terms` need it."""
        betas = {side: term.parameter for side in terms for term in terms[side] if term.statistic == "balanced"}
        missing = {side: self._balance(side, beta) for side, beta in betas.items() if side not in self.balance}
        return replace(self, balance={**self.balance, **missing})

    def _balance(self, side: str, beta: float) -> np.ndarray:
        """(q,) float32 the a(q') of the queries for a side, of mean zero."""
        kernel = self.scores(side, getattr(self, side)).astype(np.float32)
        kernel -= kernel.max(axis=1, keepdims=True)  # which the numbers of the gallery take back
        np.exp(np.maximum(kernel * np.float32(beta), LOWEST), out=kernel)
        of_queries = np.ones(kernel.shape[1], np.float32)
        for _ in range(ROUNDS):
            of_gallery = 1 / (kernel @ of_queries)
            of_queries = 1 / (of_gallery @ kernel)
        numbers = -np.log(of_queries) / np.float32(beta)
        return numbers - numbers.mean()


def mean_of_greatest(scores: np.ndarray, k: int) -> np.ndarray:
    """(n,) float32: for each row of `scores` (n, b) the mean of its k greatest, or of all if there are fewer."""
    k = min(k, scores.shape[1])
    if not isinstance(scores, np.ndarray):
        return scores.topk(k, dim=1).values.mean(dim=1)
    return np.partition(scores, -k, axis=1)[:, -k:].mean(axis=1, dtype=np.float32)


def log_mean_exp(scores: np.ndarray, beta: float) -> np.ndarray:
    """(n,) float32 log(mean of exp(beta s)) / beta over each row of `scores` (n, b)."""
    if not isinstance(scores, np.ndarray):
        return ((beta * scores).logsumexp(dim=1) - math.log(scores.shape[1])) / beta
    greatest = scores.max(axis=1, keepdims=True)
    exponentials = np.exp((scores - greatest) * np.float32(beta))
    return greatest[:, 0] + np.log(exponentials.mean(axis=1, dtype=np.float32)) / np.float32(beta)


def choose_correction(
    method: str, bank: Bank, images: Items, sentences: Items, owners: np.ndarray, grid: "HubnessSettings"
) -> tuple[dict[str, list[Term]], dict[str, Any]]:
    """The terms of each side that are best by `method`, one of HUBNESS or `auto` (all but `csls`, since `nnn` tries the
    same), for n images and m sentences of dev, where sentence j is of image `owners[j]`; and a log of the choice.

    Each direction of search takes the trial with its greatest sum of recall@1, @5 and @10, but `csls` that with the
    greatest sum of both; of equal ones the first. The first trial subtracts nothing.
    """
    scores = score(images, sentences, bank.comparison)
    dev = {"images": _DevSide(bank, "images", images), "sentences": _DevSide(bank, "sentences", sentences)}
    trials = list(_trials(method, bank, grid, *(side.deviation for side in dev.values())))
    for trial in trials:
        biases = {side: dev[side].bias(terms) for side, terms in trial.terms.items()}
        ranks = rank_scores(scores - (biases["images"][:, None] + biases["sentences"]), owners)
        trial.log.update(recall_sums(ranks), recall_sum=recall_sum(ranks))
    judged_by = dict.fromkeys(SIDES, "recall_sum") if method == "csls" else SIDES
    best = {side: max(trials, key=lambda trial: trial.log[measure]) for side, measure in judged_by.items()}
    reached = {direction: best[side].log[direction] for side, direction in SIDES.items()}
    chosen = {side: _in_words(trial.log) for side, trial in best.items()}
    log = {
        "chosen": {**chosen, **reached, "recall_sum": sum(reached.values())},
        "trials": sorted((trial.log for trial in trials), key=lambda log: -log["recall_sum"]),
    }
    return {side: trial.terms[side] for side, trial in best.items()}, log


class Trial(NamedTuple):
    """The method, its parameters and later its recalls, in a `log`, and the `terms` of each side."""

    log: dict[str, Any]
    terms: dict[str, list[Term]]


def _trials(
    method: str, bank: Bank, grid: "HubnessSettings", image_deviation: float, sentence_deviation: float
) -> Iterator[Trial]:
    yield Trial({"method": "none"}, {"images": [], "sentences": []})
    for name, tried in METHODS.items():
        if name != method and (method != "auto" or name == "csls"):
            continue
        if name == "dual-softmax" and not isinstance(bank.comparison, str):
            continue  # sets of vectors do not compare with their own kind
        both = zip(tried(grid, image_deviation), tried(grid, sentence_deviation), strict=True)
        for (parameters, of_images), (_, of_sentences) in both:
            yield Trial({"method": name, **parameters}, {"images": of_images, "sentences": of_sentences})


def _in_words(trial: Mapping[str, Any]) -> str:
    """The method and its parameters."""
    parameters = ("weight", "neighbours", "sharpness", "gallery_sharpness")
    named = (f"{key.replace('_', ' ')} {trial[key]:g}" for key in parameters if key in trial)
    return ", ".join([trial["method"], *named])


class _DevSide:
    """The biases of one side's `items` by any terms; each statistic is measured once."""

    def __init__(self, bank: Bank, side: str, items: Items) -> None:
        self.bank, self.side, self.items = bank, side, items
        self.with_queries = bank.scores(side, items)
        self.deviation = float(self.with_queries.std())
        self.measured: dict[Term, np.ndarray] = {}

    def bias(self, terms: Sequence[Term]) -> np.ndarray:
        """(n,) float32."""
        total = np.zeros(len(self.items), np.float32)
        for term in terms:
            alone = term._replace(weight=1.0)
            if alone not in self.measured:
                bank = self.bank.balanced({self.side: [alone]})
                self.measured[alone] = bank.measure(self.side, self.items, [alone], self.with_queries)
            total += np.float32(term.weight) * self.measured[alone]
        return total
