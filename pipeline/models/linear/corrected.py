"""Models whose scores are corrected for hubs (see hubness.py), by columns that are added to the vectors of images and
sentences."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pipeline.compute.device import upload
from pipeline.compute.multivectors import Comparison, Items, MultiVectors, ScoreRule, one_vector_each
from pipeline.compute.precision import to_numpy
from pipeline.errors import IntegrityError
from pipeline.models.joint_model import (
    Features,
    JointModel,
    ModelClass,
    RegionSource,
    Sentences,
    Settings,
    embed_images,
    is_multi_vector,
    read_setting,
)
from pipeline.models.linear.hubness import REMOVED_STATISTICS, SIDES, STATISTICS, Bank, BankItems, Term
from pipeline.models.linear.projection import unit_rows

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

MAX_SCORES = 1 << 24
"""Maximum number of scores of items with the items of a bank that are in memory at once. If there are more scores, the
items are processed in blocks."""
BIAS_TOLERANCE = 1e-3
"""Largest relative excess over `HubnessCorrection.greatest_bias` that rounding can cause. If the bias of a vector
exceeds the greatest bias by more, `HubnessCorrection.extend` logs a warning."""
MULTI_VECTOR_ARRAYS = ("vectors", "offsets", "globals")
"""Names of the arrays that are stored for the images, the sentences and the queries of a bank of multi-vector items."""
TENSOR_PREFIX = "hubness/"
"""Prefix of the names of the tensors of the correction, among the stored tensors of a corrected model."""


class HubnessCorrection:
    """The hubness correction of images and of sentences: the bias b(g) that is subtracted from each score of an item g.

    `terms` maps each side (`images`, `sentences`) to the terms whose sum is the bias b(g) of an item of this side. If a
    side has no terms, nothing is subtracted. A term may be a list, as in JSON. The terms are measured with the items of
    the `bank`. `device` is the device of the bank's tensors, or None if the bank has arrays.
    """

    def __init__(
        self, bank: Bank, terms: Mapping[str, Sequence[Sequence]], device: "torch.device | None" = None
    ) -> None:
        self.terms = {side: [Term(*term) for term in terms[side]] for side in SIDES}
        self.bank = bank.balanced(self.terms)
        self.device = device

    def on(self, device: "torch.device") -> "HubnessCorrection":
        """Return a copy of this correction with the bank as tensors on `device`.

        If the items are multi-vector, this correction itself is returned, which still computes biases from arrays.
        """
        if not isinstance(self.bank.comparison, str):
            return self
        arrays = {name: upload(array, device) for name, array in self.tensors().items()}
        return HubnessCorrection(read_bank(arrays, self.bank.comparison), self.terms, device)

    def bias(self, side: str, items: Items) -> np.ndarray:
        """Compute the biases b(g) of n `items` of a side, `images` or `sentences`. Return an array (n,) float32, even
        if the biases are computed on a GPU."""
        banks = (self.bank.images, self.bank.sentences, self.bank.queries)
        size = max(1, MAX_SCORES // max(len(bank) for bank in banks if bank is not None))
        parts = []
        for start in range(0, max(1, len(items)), size):
            block: BankItems = items[start : start + size]
            if self.device is not None:
                block = upload(one_vector_each(block), self.device)
            parts.append(to_numpy(self.bank.measure(side, block, self.terms[side])))
        return np.concatenate(parts)

    def greatest_bias(self, side: str) -> float:
        """Return an upper bound of the absolute bias of unit vectors of a side, `images` or `sentences`. `extend` uses
        this bound as B. It is 0 for a side without terms."""
        balance = to_numpy(self.bank.balance.get(side, np.zeros(1)))
        return sum(term.weight for term in self.terms[side]) * (1 + float(np.abs(balance).max()))

    def extend(self, side: str, items: Items, global_weight: float = 1.0) -> Items:
        """Return a copy of the `items` of a side, `images` or `sentences`, with further columns. The products of
        extended images and extended sentences are the corrected scores, times a constant.

        An image with one vector x becomes [x, -b, 1, sqrt(B^2 - b^2), 0], and a sentence with one vector y becomes
        [y, 1, -b, 0, sqrt(B^2 - b^2)], where b is the bias of the item, and B is `greatest_bias` of the side. The
        results are scaled to unit length. The product of the new columns is nearly the same for any two images, so that
        the order of images by their similarity to an image is almost unchanged.

        `global_weight` is the weight that the score rule gives to products of globals. The globals g of multi-vector
        items become [g, -b / global_weight, 1] for images, and [g, 1, -b / global_weight] for sentences.

        A warning is logged if a bias of an item with one vector is greater than B. This happens only if the item or an
        item of the bank does not have unit length.
        """
        bias = self.bias(side, items)
        column = list(SIDES).index(side)
        new_columns = np.zeros((len(items), 4), np.float32)
        new_columns[:, column] = -bias
        new_columns[:, 1 - column] = 1
        if isinstance(items, MultiVectors):
            new_columns = new_columns[:, :2]
            new_columns[:, column] /= global_weight
            if items.globals is not None:
                new_columns = np.hstack([to_numpy(items.globals), new_columns])
            return replace(items, globals=new_columns)
        greatest = self.greatest_bias(side)
        if len(bias) and np.abs(bias).max() > greatest * (1 + BIAS_TOLERANCE):
            row = int(np.abs(bias).argmax())
            log.warning(
                "The hubness bias of row %d of the %s is %g, but a vector of unit length has a bias of at most %g, so"
                " the scores of this row are distorted. Set the key hubness only for models that compare by cosine,"
                " such as ncca, and rerun.",
                row, side, bias[row], greatest,
            )  # fmt: skip
        new_columns[:, 2 + column] = np.sqrt(np.maximum(greatest**2 - bias**2, 0))
        return unit_rows(np.hstack([items, new_columns]))

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays of the bank by name, to be stored. `read_bank` restores the bank from them.

        The names are `images`, `sentences` and, if the bank has queries, `queries`. For multi-vector items the names
        are `images/vectors`, `images/offsets`, `images/globals` and so on. If the bank has a balance for a side, the
        name of the balance is `balance/images` or `balance/sentences`. Tensors on a GPU are copied to arrays.
        """
        bank = self.bank
        sides = {"images": bank.images, "sentences": bank.sentences, "queries": bank.queries}
        if not isinstance(bank.comparison, str):
            sides = {
                f"{side}/{name}": getattr(items, name, None)
                for side, items in sides.items()
                for name in MULTI_VECTOR_ARRAYS
            }
        arrays = {**sides, **{f"balance/{side}": numbers for side, numbers in bank.balance.items()}}
        return {name: to_numpy(array) for name, array in arrays.items() if array is not None}


def read_bank(tensors: "Mapping[str, np.ndarray] | Mapping[str, torch.Tensor]", comparison: Comparison) -> Bank:
    """Restore the bank of a HubnessCorrection from the result of the method `HubnessCorrection.tensors`. Other names in
    `tensors` are ignored. The values may be arrays, or tensors on a device, and the bank then has tensors too.

    `comparison` says how an image and a sentence of the bank are scored: a metric, or a ScoreRule for multi-vector
    items.
    """
    balance = {name.removeprefix("balance/"): array for name, array in tensors.items() if name.startswith("balance/")}
    sides = {name: _read_side(tensors, name, comparison) for name in ("images", "sentences")}
    has_queries = any(name.split("/")[0] == "queries" for name in tensors)
    queries = _read_side(tensors, "queries", comparison) if has_queries else None
    return Bank(sides["images"], sides["sentences"], comparison, queries, balance)


def _read_side(
    tensors: "Mapping[str, np.ndarray] | Mapping[str, torch.Tensor]", side: str, comparison: Comparison
) -> BankItems:
    if isinstance(comparison, str):
        return tensors[side]
    vectors = tensors[f"{side}/vectors"]
    offsets = tensors[f"{side}/offsets"]
    return MultiVectors(vectors, to_numpy(offsets), tensors.get(f"{side}/globals"))


class HubCorrected:
    """A registered `model` with a hubness `correction`, which adds columns to the model's vectors or globals. The
    attributes that this class does not define are the attributes of the model."""

    def __init__(self, model: JointModel, correction: HubnessCorrection) -> None:
        self.model = model
        self.correction = correction
        self._computing = correction

    def __getattr__(self, name: str) -> Any:
        # `copy` looks for attributes before `model` is set, and this function would then call itself endlessly.
        if name == "model":
            raise AttributeError(name)
        return getattr(self.model, name)

    def to(self, device: "torch.device") -> Self:
        self.model.to(device)
        self._computing = self.correction.on(device)
        return self

    @property
    def rule(self) -> ScoreRule | None:
        """The score rule of a multi-vector model, or None for a model with one vector per image and per sentence.

        If the global weight of the model's rule is 0, this rule has the global weight 1, because the globals hold the
        correction.
        """
        rule = self.model.rule if is_multi_vector(self.model) else None
        return rule and rule._replace(global_weight=rule.global_weight or 1.0)

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> Items:
        """Embed images by the model, and add the columns of `HubnessCorrection.extend`, so that inner products become
        corrected scores. Four columns are added to a vector, or two columns to the globals of a multi-vector model."""
        return self._extend("images", embed_images(self.model, features, regions))

    def embed_sentences(self, sentences: "Sentences") -> Items:
        """Embed sentences by the model, and add the columns of `HubnessCorrection.extend`, so that inner products
        become corrected scores. Four columns are added to a vector, or two columns to the globals of a multi-vector
        model."""
        return self._extend("sentences", self.model.embed_sentences(sentences))

    def _extend(self, side: str, items: Items) -> Items:
        return self._computing.extend(side, items, self.rule.global_weight if self.rule else 1.0)

    def settings(self) -> dict[str, Any]:
        terms = {side: [list(term) for term in terms] for side, terms in self.correction.terms.items()}
        return {**self.model.settings(), "hubness": terms}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the model's tensors, and the correction's tensors under names that begin with `hubness/`."""
        return {
            **self.model.tensors(),
            **{TENSOR_PREFIX + name: array for name, array in self.correction.tensors().items()},
        }

    @classmethod
    def from_parts(
        cls, registered: ModelClass, settings: Settings, tensors: Mapping[str, np.ndarray]
    ) -> "HubCorrected":
        """Restore a corrected model from the results of `settings` and `tensors`. `registered` is the class of the
        model without the correction.

        Raises IntegrityError if the correction uses a statistic of a method that was removed, and ValueError for an
        unknown statistic.
        """
        hubness = read_setting(settings, "hubness", dict)
        used = {term[1] for terms in hubness.values() for term in terms}
        if unknown := used - {*STATISTICS, *REMOVED_STATISTICS}:
            raise ValueError(
                f"The stored hubness correction has the unknown statistic {min(unknown)}. Known are"
                f" {', '.join(STATISTICS)}. Make the model again with this version of jointspace."
            )
        if removed := used & {*REMOVED_STATISTICS}:
            raise IntegrityError(
                f"The hubness correction of the stored model uses {min(removed)}, which belongs to the removed methods"
                " inverted-softmax and dual-softmax. Set hubness: csls for this model in the configuration of the run,"
                " and run: jointspace run CONFIG"
            )
        bank_tensors = {
            name.removeprefix(TENSOR_PREFIX): array for name, array in tensors.items() if name.startswith(TENSOR_PREFIX)
        }
        model_tensors = {name: array for name, array in tensors.items() if not name.startswith(TENSOR_PREFIX)}
        model_settings = {name: value for name, value in settings.items() if name != "hubness"}
        model = registered.from_parts(model_settings, model_tensors)
        comparison = model.rule if is_multi_vector(model) else "inner_product"
        return cls(model, HubnessCorrection(read_bank(bank_tensors, comparison), hubness))
