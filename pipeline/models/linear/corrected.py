"""A model whose scores are corrected for hubs: its vectors are longer, so that their products are corrected."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.compute.device import upload
from pipeline.compute.multivectors import Comparison, Items, MultiVectors, ScoreRule
from pipeline.compute.precision import to_numpy
from pipeline.models.linear.hubness import SIDES, Bank, Term
from pipeline.models.linear.projection import unit_rows

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

PRODUCTS = 1 << 24
"""Scores of items with a bank that are held at once."""
ROUNDING = 1e-3
"""Relative excess of a bias over the greatest possible one that rounding explains."""
PARTS = ("vectors", "offsets", "globals")
PREFIX = "hubness/"
"""Of the correction's tensors among those of a model."""


class HubnessCorrection:
    """The `terms` that b(g) is the sum of, for each side of the gallery (none: nothing is subtracted), with the `bank`
    that they are measured among, whose arrays may be on a `device`. Terms may be lists, as in JSON."""

    def __init__(
        self, bank: Bank, terms: Mapping[str, Sequence[Sequence]], device: "torch.device | None" = None
    ) -> None:
        self.terms = {side: [Term(*term) for term in terms[side]] for side in SIDES}
        self.bank, self.device = bank.balanced(self.terms), device

    def on(self, device: "torch.device") -> "HubnessCorrection":
        """The same that measures items of one vector on `device`."""
        if not isinstance(self.bank.comparison, str):
            return self
        arrays = {name: upload(array, device) for name, array in self.tensors().items()}
        return HubnessCorrection(read_bank(arrays, self.bank.comparison), self.terms, device)

    def bias(self, side: str, items: Items) -> np.ndarray:
        """(n,) float32 b of n items of a side."""
        banks = (self.bank.images, self.bank.sentences, self.bank.queries)
        size = max(1, PRODUCTS // max(len(bank) for bank in banks if bank is not None))
        parts = []
        for start in range(0, max(1, len(items)), size):
            block = items[start : start + size]
            block = block if self.device is None else upload(block, self.device)
            parts.append(to_numpy(self.bank.measure(side, block, self.terms[side])))
        return np.concatenate(parts)

    def extend(self, side: str, items: Items, global_weight: float = 1.0) -> Items:
        """Extend `items` of a side so that their products with the other side's are the corrected scores, times a
        constant.

        Of one vector: [x, -b, 1, sqrt(B^2 - b^2), 0] of images or [y, 1, -b, 0, sqrt(B^2 - b^2)] of sentences with B
        the greatest b that there can be, divided by sqrt(2 + B^2), which makes all unit vectors. Two images then have
        nearly the same product of the new columns, so that their order by similarity to an image hardly changes. Of
        several vectors: globals [g, -b / global_weight, 1] of images or [g, 1, -b / global_weight] of sentences.
        A bias beyond B, which only vectors of another length have, is named in a warning.
        """
        bias, column = self.bias(side, items), list(SIDES).index(side)
        more = np.zeros((len(items), 4), np.float32)
        more[:, column] = -bias
        more[:, 1 - column] = 1
        if isinstance(items, MultiVectors):
            more = more[:, :2]
            more[:, column] /= global_weight
            return replace(items, globals=more if items.globals is None else np.hstack([items.globals, more]))
        balance = to_numpy(self.bank.balance.get(side, np.zeros(1)))
        greatest = sum(term.weight for term in self.terms[side]) * (1 + np.abs(balance).max())
        if len(bias) and np.abs(bias).max() > greatest * (1 + ROUNDING):
            row = int(np.abs(bias).argmax())
            log.warning(
                "the hubness bias of row %d of the %s is %g, but vectors of unit length have at most %g, so the scores"
                " of this row are distorted; use hubness only with models that compare by cosine, such as ncca",
                row, side, bias[row], greatest,
            )  # fmt: skip
        more[:, 2 + column] = np.sqrt(np.maximum(greatest**2 - bias**2, 0))
        return unit_rows(np.hstack([items, more]))

    def tensors(self) -> dict[str, np.ndarray]:
        """The bank's: `images`, or `images/vectors` and so on of several an item, and `balance/images`."""
        bank = self.bank
        sides = {"images": bank.images, "sentences": bank.sentences, "queries": bank.queries}
        if not isinstance(bank.comparison, str):
            sides = {f"{side}/{name}": getattr(items, name, None) for side, items in sides.items() for name in PARTS}
        arrays = {**sides, **{f"balance/{side}": numbers for side, numbers in bank.balance.items()}}
        return {name: array for name, array in arrays.items() if array is not None}


def read_bank(tensors: Mapping[str, Any], comparison: Comparison) -> Bank:
    """The bank of a HubnessCorrection's `tensors`."""
    sides = {name: array for name, array in tensors.items() if not name.startswith("balance/")}
    balance = {name.removeprefix("balance/"): array for name, array in tensors.items() if name not in sides}
    if not isinstance(comparison, str):
        names = dict.fromkeys(name.split("/")[0] for name in sides)
        sides = {side: MultiVectors(*(tensors.get(f"{side}/{name}") for name in PARTS)) for side in names}
    return Bank(**sides, comparison=comparison, balance=balance)


class HubCorrected:
    """A registered `model` whose scores are corrected: the same but for longer vectors or globals."""

    def __init__(self, model: Any, correction: HubnessCorrection) -> None:
        self.model, self.correction = model, correction
        self._computing = correction

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet set while the object is copied
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: "torch.device") -> "HubCorrected":
        """This model, which embeds on `device` from now on."""
        self.model.to(device)
        self._computing = self.correction.on(device)
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
        return self._computing.extend(side, items, self.rule.global_weight if self.model.multi_vector else 1.0)

    def settings(self) -> dict[str, Any]:
        terms = {side: [list(term) for term in of_side] for side, of_side in self.correction.terms.items()}
        return {**self.model.settings(), "hubness": terms}

    def tensors(self) -> dict[str, np.ndarray]:
        """The model's, and those of the correction as `hubness/...`."""
        own = {PREFIX + name: tensor for name, tensor in self.correction.tensors().items()}
        return {**self.model.tensors(), **own}

    @classmethod
    def from_parts(
        cls, registered: Any, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
    ) -> "HubCorrected":
        """The corrected model of the class `registered` that `settings` and `tensors` came from."""
        of_bank = {name.removeprefix(PREFIX): array for name, array in tensors.items() if name.startswith(PREFIX)}
        of_model = {name: array for name, array in tensors.items() if not name.startswith(PREFIX)}
        model = registered.from_parts({name: value for name, value in settings.items() if name != "hubness"}, of_model)
        comparison = model.rule if model.multi_vector else "inner_product"
        return cls(model, HubnessCorrection(read_bank(of_bank, comparison), settings["hubness"]))
