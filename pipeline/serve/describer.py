"""One generator as a server asks it: sentences of its own for a photograph."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pipeline.generate.describing import Generator, Sources, Told


@dataclass(frozen=True)
class Describer:
    """The `generator` of the name `registered` and its `sources`; `top` sentences where a request names no number.

    `features(data)` encodes a photograph's bytes, by at least the generator's encoders; have it called by the thread
    that decodes, and `describe` by one thread at a time.
    """

    registered: str
    generator: "Generator"
    sources: "Sources"
    features: Callable[[bytes], Mapping[str, np.ndarray]]
    top: int

    def describe(self, features: Mapping[str, np.ndarray], top: int) -> list["Told"]:
        """At most `top` sentences, best first, for the photograph that these features, encoder -> (1, dim), are of."""
        from pipeline.generate.describing import describe_images  # and torch, which searches do without

        return describe_images(self.generator, features, self.sources, top)[0]
