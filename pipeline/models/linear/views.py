"""The image view: the features of one or several encoders side by side, each normalised separately."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.errors import IntegrityError
from pipeline.precision import to_float32

STEPS = ("sqrt", "l2")
"""What can be done to the features of an image, in `normalise`."""


@dataclass(frozen=True)
class ImageView:
    """`encoders` in order, the `dims` of their features, and the `steps` (`sqrt`, `l2`) applied to each block."""

    encoders: tuple[str, ...]
    dims: tuple[int, ...]
    steps: tuple[str, ...]

    @classmethod
    def from_dict(cls, value: Mapping[str, Sequence]) -> "ImageView":
        """From JSON's lists; ignores other keys."""
        return cls(tuple(value["encoders"]), tuple(value["dims"]), tuple(value["steps"]))

    @property
    def dim(self) -> int:
        return sum(self.dims)

    def stack(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, dim) float32 from `features`, encoder -> (n, its dim) float16 or float32.

        Raises IntegrityError when an encoder is missing or has another dimension.
        """
        x = np.empty((len(next(iter(features.values()))), self.dim), np.float32)
        for block, part in zip(self.select_blocks(features), self.split(x).values(), strict=True):
            normalise(to_float32(block, part), self.steps)
        return x

    def select_blocks(self, features: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """The features (n, dim) of each encoder, unchanged. Raises as `stack`."""
        n = len(next(iter(features.values())))
        for name, dim in zip(self.encoders, self.dims, strict=True):
            if name not in features:
                raise IntegrityError(f"features of encoder {name} are missing (given: {', '.join(features)})")
            if features[name].shape != (n, dim):
                raise IntegrityError(f"features of encoder {name} have shape {features[name].shape}, not {(n, dim)}")
            yield features[name]

    def split(self, stacked: np.ndarray) -> dict[str, np.ndarray]:
        """Encoder -> its columns of `stacked` (n, dim)."""
        return dict(zip(self.encoders, np.split(stacked, np.cumsum(self.dims)[:-1], axis=1), strict=True))

    def columns(self, encoders: Sequence[str]) -> np.ndarray:
        """The columns of `encoders`, in this view's order."""
        starts = np.concatenate([[0], np.cumsum(self.dims)])
        chosen = [np.arange(starts[i], starts[i + 1]) for i, name in enumerate(self.encoders) if name in encoders]
        return np.concatenate(chosen)

    def select(self, encoders: Sequence[str]) -> "ImageView":
        """The view of some of the encoders, in this view's order."""
        kept = [(name, dim) for name, dim in zip(self.encoders, self.dims, strict=True) if name in encoders]
        if missing := set(encoders) - {name for name, _ in kept}:
            raise IntegrityError(f"no features of encoder {min(missing)} (there are {', '.join(self.encoders)})")
        return ImageView(tuple(name for name, _ in kept), tuple(dim for _, dim in kept), self.steps)


def normalise(x: np.ndarray, steps: Sequence[str]) -> np.ndarray:
    """Apply `steps` to the rows of x (n, d) in place: `sqrt` keeps the sign, `l2` leaves zero rows unchanged."""
    for step in steps:
        if step == "sqrt":
            root = np.abs(x)
            np.sqrt(root, out=root)
            np.copysign(root, x, out=x)
        elif step == "l2":
            length = np.sqrt(np.einsum("ij,ij->i", x, x))
            x /= np.where(length > 0, length, 1)[:, None]
        else:
            raise ValueError(f"unknown step {step}")
    return x
