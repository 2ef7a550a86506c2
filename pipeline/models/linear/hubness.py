"""Hubness correction: every item of the gallery has a number of its own, which all its scores lose.

A hub is near everything, and stands before what a query means. A score s(q, g) of a query and an item of the gallery
becomes s(q, g) - b(g), where b(g) is measured once, by queries q' and other items g' of the gallery in a *bank* of
training pairs (querybank normalisation, Bogolin et al. 2022). So a score depends on its pair alone, and corrected
vectors are indexed like any others. With `lme`, the logarithm of the mean exponential:

    csls               b = w mean of the k greatest s(q', g), with the same w and k in both directions; w = 1/2 is
                       2 s(q, g) - r(q) - r(g) of Conneau et al. 2018, section 2.3, up to a factor and to r(q), which
                       changes no rank of q
    nnn                the same, with w (alpha) and k of each direction (nearest neighbour normalisation, Chowdhury et
                       al. 2024)
    inverted-softmax   b = lme(beta s(q', g)) / beta: the logarithm of exp(beta s(q, g)) / sum over q' of
                       exp(beta s(q', g)), divided by beta (Smith et al. 2017; Bogolin et al. 2022)
    dual-softmax       b = [lme(beta s(q', g)) + lme(beta' s(g', g))] / (beta + beta'): of the product of two inverted
                       softmaxes, over the queries and over the gallery (Wang, Jian and Xue 2023)
    sinkhorn           b = lme(beta (s(q', g) - a(q'))) / beta, with the numbers a(q') by which the exponentials between
                       the queries and the gallery of the bank become a matrix with equal row and column sums (dual bank
                       Sinkhorn normalisation, Pan et al. 2025, whose gallery is part of that matrix)

`auto` takes what is best of all these but `csls` in each direction, or nothing; `nnn` tries the same as `csls`. What is
chosen is chosen on dev. The audit (`cross_fit.py`) scores by a CSLS of its own, with `mean_of_greatest`.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pipeline.config.models import HUBNESS
from pipeline.device import upload
from pipeline.metrics.ranks import rank_scores, score
from pipeline.metrics.retrieval import recall_sum, recall_sums
from pipeline.models.linear.projection import unit_rows
from pipeline.multivectors import Comparison, Items, MultiVectors, ScoreRule
from pipeline.precision import to_numpy

if TYPE_CHECKING:
    import torch

    from pipeline.config.models import HubnessSettings

SIDES = {"images": "sentence_to_image", "sentences": "image_to_sentence"}
"""Side of the gallery -> the direction of search that its numbers decide."""
PRODUCTS = 1 << 24
"""Scores of items with a bank that are held at once."""
PARTS = ("vectors", "offsets", "globals")
ROUNDS, LOWEST = 10, -80.0
"""Rounds of Sinkhorn's iteration, as Pan et al. have; the exponent below which a pair counts no less."""


PARAMETERS = ("weight", "neighbours", "sharpness", "gallery_sharpness")


class Term(NamedTuple):
    """`weight` times a statistic of an item among the bank: `nearest`, the mean of its `parameter` greatest scores with
    queries, or lme(beta s) / beta with beta the `parameter`: `softmax` and `balanced` (less a(q')) with queries,
    `gallery` with items of its own kind."""

    weight: float
    statistic: str
    parameter: float


@dataclass(frozen=True)
class Bank:
    """Embedded training `images` and `sentences` and their comparison: unit vectors, (a, c) and (b, c), or several an
    item. `queries` are sentences without images, which stand for those that people ask; None: `sentences`."""

    images: Items
    sentences: Items
    comparison: Comparison = "inner_product"
    queries: Items | None = None

    def scores(self, side: str, items: Items) -> np.ndarray:
        """(n, q) scores of n `items` of a side with the q queries that look for them."""
        if side == "sentences":
            return score(self.images, items, self.comparison).T
        return score(items, self.sentences if self.queries is None else self.queries, self.comparison)

    def measure(
        self, side: str, items: Items, terms: Sequence[Term], balance: np.ndarray | None,
        with_queries: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """(n,) float32 the sum of `terms` of each of n `items` of a side. `balance` is a, and `with_queries` what
        `scores` gives, where it is known. All may be tensors, and then so is the sum."""
        if with_queries is None:
            with_queries = self.scores(side, items)
        weighted = []
        for weight, statistic, parameter in terms:
            if statistic == "nearest":
                measured = mean_of_greatest(with_queries, int(parameter))
            elif statistic == "gallery":
                measured = log_mean_exp(items @ getattr(self, side).T, parameter)
            else:
                measured = log_mean_exp(with_queries - balance if statistic == "balanced" else with_queries, parameter)
            weighted.append(float(weight) * measured)
        return sum(weighted) if weighted else np.zeros(len(items), np.float32)

    def balance(self, side: str, beta: float) -> np.ndarray:
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

    def tensors(self) -> dict[str, np.ndarray]:
        sides = {"images": self.images, "sentences": self.sentences, "queries": self.queries}
        sides = {name: items for name, items in sides.items() if items is not None}
        if isinstance(self.comparison, str):
            return sides
        named = {f"{side}/{name}": getattr(items, name) for side, items in sides.items() for name in PARTS}
        return {name: array for name, array in named.items() if array is not None}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, np.ndarray], model: Any) -> "Bank":
        """The bank that `tensors` came from, with the scores of `model`."""
        if not model.multi_vector:
            return cls(**tensors)
        names = dict.fromkeys(name.split("/")[0] for name in tensors)
        sides = {side: MultiVectors(*(tensors.get(f"{side}/{name}") for name in PARTS)) for side in names}
        return cls(**sides, comparison=model.rule)


@dataclass(frozen=True)
class HubnessCorrection:
    """The `terms` that b(g) is the sum of, for each side of the gallery (none: nothing is subtracted), with the `bank`
    that they are measured among, and `balance`, the a(q') of a side with a `balanced` term. Items of one vector are
    measured on `device`, if there is one."""

    bank: Bank
    terms: Mapping[str, Sequence[Term]]
    balance: Mapping[str, np.ndarray] = field(default_factory=dict)
    device: "torch.device | None" = None

    @cached_property
    def placed(self) -> "HubnessCorrection":
        """This one, with its arrays on the device."""
        if self.device is None or not isinstance(self.bank.comparison, str):
            return replace(self, device=None)
        bank, balance = (
            {name: upload(array, self.device) for name, array in arrays.items()}
            for arrays in (self.bank.tensors(), self.balance)
        )
        return replace(self, bank=replace(self.bank, **bank), balance=balance)

    def offsets(self, side: str, items: Items) -> np.ndarray:
        """(n,) float32 b of n items of a side."""
        bank, balance, device = self.placed.bank, self.placed.balance.get(side), self.placed.device
        banks = (bank.images, bank.sentences, bank.queries)
        size = max(1, PRODUCTS // max(len(bank) for bank in banks if bank is not None))
        blocks = (items[start : start + size] for start in range(0, max(1, len(items)), size))
        blocks = blocks if device is None else (upload(block, device) for block in blocks)
        return np.concatenate([to_numpy(bank.measure(side, block, self.terms[side], balance)) for block in blocks])

    def extend(self, side: str, items: Items, global_weight: float = 1.0) -> Items:
        """`items` of a side so that their products with the other side's are the corrected scores, up to a factor.

        Of one vector: [x, -b, 1, sqrt(B^2 - b^2), 0] of images or [y, 1, -b, 0, sqrt(B^2 - b^2)] of sentences with B
        the greatest b that there can be, divided by sqrt(2 + B^2), which makes all unit vectors. Two images then have
        nearly the same product of the new columns, so that their order by similarity to an image hardly changes. Of
        several vectors: globals [g, -b / global_weight, 1] of images or [g, 1, -b / global_weight] of sentences.
        """
        offsets, own = self.offsets(side, items), list(SIDES).index(side)
        more = np.zeros((len(items), 4), np.float32)
        more[:, own], more[:, 1 - own] = -offsets, 1
        if isinstance(items, MultiVectors):
            more = more[:, :2]
            more[:, own] /= global_weight
            return replace(items, globals=more if items.globals is None else np.hstack([items.globals, more]))
        greatest = sum(term.weight for term in self.terms[side]) * (1 + np.abs(self.balance.get(side, 0)).max())
        more[:, 2 + own] = np.sqrt(np.maximum(greatest**2 - offsets**2, 0))
        return unit_rows(np.hstack([items, more]))

    @classmethod
    def among(cls, bank: Bank, terms: Mapping[str, Sequence[Term]]) -> "HubnessCorrection":
        """By `terms` that were chosen, measured among a `bank`."""
        terms = {side: [Term(*term) for term in of_side] for side, of_side in terms.items()}
        balance = {
            side: bank.balance(side, term.parameter)
            for side in SIDES
            for term in terms[side]
            if term.statistic == "balanced"
        }
        return cls(bank, terms, balance)

    def settings(self) -> dict[str, Any]:
        return {side: [list(term) for term in terms] for side, terms in self.terms.items()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {**self.bank.tensors(), **{f"balance/{side}": numbers for side, numbers in self.balance.items()}}

    @classmethod
    def from_parts(
        cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray], model: Any
    ) -> "HubnessCorrection":
        bank = {name: tensor for name, tensor in tensors.items() if not name.startswith("balance/")}
        balance = {side: tensors[f"balance/{side}"] for side in SIDES if f"balance/{side}" in tensors}
        terms = {side: [Term(*term) for term in settings[side]] for side in SIDES}
        return cls(Bank.from_tensors(bank, model), terms, balance)


class HubCorrected:
    """A registered `model` whose scores are corrected: the same but for longer vectors or globals."""

    def __init__(self, model: Any, correction: HubnessCorrection) -> None:
        self.model, self.correction = model, correction

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet set while the object is copied
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: "torch.device") -> "HubCorrected":
        """This model, which embeds on `device` from now on."""
        self.model.to(device)
        self.correction = replace(self.correction, device=device)
        return self

    @property
    def rule(self) -> ScoreRule:
        """Of a multi-vector model."""
        rule = self.model.rule
        return rule._replace(global_weight=rule.global_weight or 1.0)

    def embed_images(self, features: Mapping[str, np.ndarray], *regions: Any) -> Items:
        """The model's, with four more columns, or two more columns of the globals."""
        return self._extend("images", self.model.embed_images(features, *regions))

    def embed_sentences(self, sentences: Any) -> Items:
        """The same for sentences, in the form that the model takes."""
        return self._extend("sentences", self.model.embed_sentences(sentences))

    def _extend(self, side: str, items: Items) -> Items:
        return self.correction.extend(side, items, self.rule.global_weight if self.model.multi_vector else 1.0)

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "hubness": self.correction.settings()}

    def tensors(self) -> dict[str, np.ndarray]:
        """The model's, and those of the correction as `hubness/...`."""
        own = {f"hubness/{name}": tensor for name, tensor in self.correction.tensors().items()}
        return {**self.model.tensors(), **own}

    @classmethod
    def from_parts(
        cls, registered: Any, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
    ) -> "HubCorrected":
        """The corrected model of the class `registered` that `settings` and `tensors` came from. Those that earlier
        versions stored have `csls` in place of `hubness`."""
        prefix = "csls/" if "csls" in settings else "hubness/"
        own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        of_model = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
        rest = {name: value for name, value in settings.items() if name != prefix[:-1]}
        stored = settings[prefix[:-1]]
        if "csls" in settings:
            stored = dict.fromkeys(SIDES, [(stored["weight"], "nearest", stored["neighbours"])])
        model = registered.from_parts(rest, of_model)
        return cls(model, HubnessCorrection.from_parts(stored, own, model))


def choose_correction(
    method: str, bank: Bank, images: Items, sentences: Items, owners: np.ndarray, grid: "HubnessSettings"
) -> tuple[HubnessCorrection, dict[str, Any]]:
    """What is best by `method`, one of HUBNESS or `auto`, for n images and m sentences of dev, where sentence j is of
    image `owners[j]`, and a log of it.

    Each direction of search takes the trial with its greatest sum of recall@1, @5 and @10, but `csls` that with the
    greatest sum of both; of equal ones the first. The first trial subtracts nothing.
    """
    scores, trials = score(images, sentences, bank.comparison), list(_trials(method, bank, grid))
    galleries = {"images": _Gallery(bank, "images", images), "sentences": _Gallery(bank, "sentences", sentences)}
    for trial in trials:
        offsets = {side: gallery.offsets(trial) for side, gallery in galleries.items()}
        ranks = rank_scores(scores - (offsets["images"][:, None] + offsets["sentences"]), owners)
        trial |= {**recall_sums(ranks), "recall_sum": recall_sum(ranks)}
    ranked = sorted(trials, key=lambda trial: -trial["recall_sum"])
    judged_by = dict.fromkeys(SIDES, "recall_sum") if method == "csls" else SIDES
    best = {side: max(trials, key=lambda trial: trial[measure]) for side, measure in judged_by.items()}
    correction = HubnessCorrection.among(bank, {side: galleries[side].terms(trial) for side, trial in best.items()})
    reached = {direction: best[side][direction] for side, direction in SIDES.items()}
    chosen = {side: _in_words(trial) for side, trial in best.items()}
    return correction, {"chosen": {**chosen, **reached, "recall_sum": sum(reached.values())}, "trials": ranked}


def _in_words(trial: Mapping[str, Any]) -> str:
    """The method and its parameters."""
    named = (f"{key.replace('_', ' ')} {trial[key]:g}" for key in PARAMETERS if key in trial)
    return ", ".join([trial["method"], *named])


def _trials(method: str, bank: Bank, grid: "HubnessSettings") -> Iterator[dict[str, Any]]:
    """The parameters of every trial."""
    yield {"method": "none"}
    for name in HUBNESS[1:] if method == "auto" else {method} & {*HUBNESS}:
        if name in ("csls", "nnn"):
            for weight, k in itertools.product(filter(None, grid.weight), grid.neighbours):
                yield {"method": name, "weight": weight, "neighbours": k}
        elif name != "dual-softmax":
            yield from ({"method": name, "sharpness": sharpness} for sharpness in grid.sharpness)
        elif isinstance(bank.comparison, str):  # sets of vectors do not compare with their own kind
            for sharpness, gallery in itertools.product(grid.sharpness, repeat=2):
                yield {"method": name, "sharpness": sharpness, "gallery_sharpness": gallery}


class _Gallery:
    """The numbers of one side's `items` by any trial; each statistic is measured once."""

    def __init__(self, bank: Bank, side: str, items: Items) -> None:
        self.bank, self.side, self.items = bank, side, items
        self.with_queries = bank.scores(side, items)
        self.deviation = float(self.with_queries.std())
        self.measured: dict[Term, np.ndarray] = {}

    def terms(self, trial: Mapping[str, Any]) -> list[Term]:
        """A beta is the trial's sharpness divided by the standard deviation of the scores with the bank."""
        if trial["method"] == "none":
            return []
        if "neighbours" in trial:
            return [Term(trial["weight"], "nearest", trial["neighbours"])]
        beta = trial["sharpness"] / self.deviation
        if trial["method"] != "dual-softmax":
            return [Term(1.0, "balanced" if trial["method"] == "sinkhorn" else "softmax", beta)]
        other = trial["gallery_sharpness"] / self.deviation
        return [Term(beta / (beta + other), "softmax", beta), Term(other / (beta + other), "gallery", other)]

    def offsets(self, trial: Mapping[str, Any]) -> np.ndarray:
        """(n,) float32."""
        total = np.zeros(len(self.items), np.float32)
        for term in self.terms(trial):
            alone = term._replace(weight=1.0)
            if alone not in self.measured:
                balance = self.bank.balance(self.side, term.parameter) if term.statistic == "balanced" else None
                self.measured[alone] = self.bank.measure(self.side, self.items, [alone], balance, self.with_queries)
            total += np.float32(term.weight) * self.measured[alone]
        return total


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
