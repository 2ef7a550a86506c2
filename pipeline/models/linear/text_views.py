"""The text view: the vectors of one or several text encoders side by side, sparse and dense."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.models.linear.columns import Rows, is_sparse, side_by_side
from pipeline.models.linear.views import normalise
from pipeline.precision import to_float32
from pipeline.text.tfidf import unit_rows


@dataclass(frozen=True)
class TextView:
    """`encoders` in order; of each the `dims` of its vectors, whether they are `sparse`, the `steps` (`sqrt`, `l2`) of
    their normalisation, and the `weights` by which its columns are multiplied then."""

    encoders: tuple[str, ...]
    dims: tuple[int, ...]
    sparse: tuple[bool, ...]
    steps: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, sentences: Mapping[str, Any], steps: Mapping[str, Sequence[str]] | None = None) -> "TextView":
        """That of `sentences`, text encoder -> (n, its dim), each by its `steps` and with the weight 1."""
        dims, kinds = zip(*((block.shape[1], is_sparse(block)) for block in sentences.values()), strict=True)
        own = tuple(tuple((steps or {}).get(name, ())) for name in sentences)
        return cls(tuple(sentences), dims, kinds, own, (1.0,) * len(dims))

    @classmethod
    def from_dict(cls, value: Mapping[str, Sequence]) -> "TextView":
        """From JSON's lists; ignores other keys."""
        steps = tuple(map(tuple, value["steps"]))
        return cls(**{**{one.name: tuple(value[one.name]) for one in fields(cls)}, "steps": steps})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def dim(self) -> int:
        return sum(self.dims)

    @property
    def weight_of(self) -> dict[str, float]:
        """The weight of each encoder's columns."""
        return dict(zip(self.encoders, self.weights, strict=True))

    def stack(self, sentences: Mapping[str, Any]) -> Rows:
        """(n, dim) from `sentences`, text encoder -> (n, its dim), sparse or dense; sparse ones stay sparse.

        Raises IntegrityError when an encoder is missing or has another dimension.
        """
        return side_by_side(list(self._blocks(sentences)))

    def _blocks(self, sentences: Mapping[str, Any]) -> Iterator[Any]:
        n = next(iter(sentences.values())).shape[0] if sentences else 0
        for name, dim, steps, weight in zip(self.encoders, self.dims, self.steps, self.weights, strict=True):
            if name not in sentences:
                raise IntegrityError(f"vectors of text encoder {name} are missing (given: {', '.join(sentences)})")
            if sentences[name].shape != (n, dim):
                raise IntegrityError(
                    f"vectors of text encoder {name} have shape {sentences[name].shape}, not {(n, dim)}"
                )
            yield _prepared(sentences[name], steps, weight)

    def select(self, encoders: Sequence[str]) -> "TextView":
        """The view of some of the encoders, in this view's order."""
        if missing := set(encoders) - set(self.encoders):
            raise IntegrityError(f"no vectors of text encoder {min(missing)} (there are {', '.join(self.encoders)})")
        kept = [i for i, name in enumerate(self.encoders) if name in encoders]
        return TextView(*(tuple(value[i] for i in kept) for value in vars(self).values()))

    def columns(self, part: "TextView") -> np.ndarray:
        """The columns of another view, `part`, which has some of the encoders and the first columns of each."""
        starts = dict(zip(self.encoders, np.cumsum([0, *self.dims[:-1]]), strict=True))
        chosen = zip(part.encoders, part.dims, strict=True)
        return np.concatenate([np.arange(starts[name], starts[name] + dim) for name, dim in chosen])

    def is_part_of(self, view: "TextView") -> bool:
        """Whether it is `view`, perhaps weighted or without some encoders."""
        known = set(self.encoders) <= set(view.encoders)
        return known and view.select(self.encoders).weighted(self.weight_of) == self

    def weighted(self, weights: Mapping[str, float]) -> "TextView":
        """This view with other weights, without the encoders whose weight is 0."""
        view = self.select([name for name in self.encoders if weights.get(name, 1.0)])
        return replace(view, weights=tuple(float(weights.get(name, 1.0)) for name in view.encoders))

    @property
    def unnormalised(self) -> "TextView":
        """This view without its steps."""
        return replace(self, steps=((),) * len(self.encoders))

    def first_terms(self, terms: int | None) -> "TextView":
        """This view with at most the first `terms` columns of each sparse block; None: all."""
        if terms is None:
            return self
        dims = (min(dim, terms) if one else dim for dim, one in zip(self.dims, self.sparse, strict=True))
        return replace(self, dims=tuple(dims))

    def factors(self) -> np.ndarray:
        """(dim,) the weight of each column."""
        return np.repeat(self.weights, self.dims)


def _prepared(block: Any, steps: Sequence[str], weight: float) -> Any:
    """The vectors (n, d) of one encoder, normalised and weighted."""
    if is_sparse(block):
        for step in steps:
            block = unit_rows(block) if step == "l2" else block.sign() * abs(block).sqrt()
        return block if weight == 1 else block * np.float32(weight)
    if not steps and weight == 1 and block.dtype == np.float32:
        return block
    block = normalise(to_float32(block), steps)
    block *= np.float32(weight)
    return block


def weightings(tried: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """Every combination of the weights `tried` of each text encoder, but for those without a positive one."""
    every = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
    return [one for one in every if any(one.values())]
