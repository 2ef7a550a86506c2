"""The networks of `lbl`, `mlbl`, `mnlm` and `sc-nlm` (Kiros et al. 2014, sections 2.3 to 2.5): a window of words to
the next.

Classes are V words, the unknown word V, and the boundary V + 1, which also pads the context of the first words.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import upload
from pipeline.generate.beam import State
from pipeline.models.neural.networks import INITIAL_RANGE
from pipeline.models.neural.task import required
from pipeline.text.sequences import Tokens


@dataclass(frozen=True)
class LogBilinearSizes:
    """`context`: n - 1 words; `dimensions`: K; `factors`: F; `condition`: c, the joint space's; `ahead`: k parts of
    speech after the next word's own; `tags`: T parts of speech; `dropout` of word vectors and factors; `gate_bias`:
    whether the gates have a bias."""

    context: int
    dimensions: int
    factors: int
    condition: int
    ahead: int
    tags: int
    dropout: float
    gate_bias: bool


def _uniform(*shape: int, scale: float = INITIAL_RANGE) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).uniform_(-scale, scale))


class LogBilinear(nn.Module):
    """Equations 7 and 8: r^ = sum_i C_i w_i; P(w_n = j) is proportional to exp(r^ . r_j + b_j).

    Paper to code: R `words` (V + 2, K), C_i the rows i K to (i + 1) K of `contexts` ((n - 1) K, K), b `bias`. The image
    is ignored. C_i are initialised near I / (n - 1).
    """

    structured = False
    precision: torch.dtype

    def __init__(self, sizes: LogBilinearSizes, frequencies: Tensor) -> None:
        """`frequencies` (V + 2,): log shares of the classes, the initial biases."""
        super().__init__()
        self.sizes, self.precision = sizes, torch.float32
        self.bias = nn.Parameter(frequencies)
        identity = torch.eye(sizes.dimensions).repeat(sizes.context, 1) / sizes.context
        self.contexts = nn.Parameter(identity + torch.randn_like(identity) * 0.01)
        self.make_words(len(frequencies))

    def make_words(self, classes: int) -> None:
        self.words = _uniform(classes, self.sizes.dimensions)

    def forward(self, context: Tensor, targets: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """The mean -log P of `targets` (k,) after `context` (k, n - 1), given u (k, c) and `tags` (k, 1 + ahead)."""
        return self.losses(context, targets, u, tags).mean()

    def losses(self, context: Tensor, targets: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """(k,) -log P of each target."""
        return functional.cross_entropy(self.logits(context, u, tags), targets, reduction="none")

    def logits(self, context: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """(k, V + 2)."""
        predicted = self.predict(functional.embedding(context, self.words))
        return self.output(predicted + self.shift(u), self.words)

    def shift(self, u: Tensor | None) -> Tensor | float:
        """What the image adds to r^ (k, K)."""
        return 0.0

    def output(self, predicted: Tensor, classes: Tensor) -> Tensor:
        """(k, V + 2) float32 of `predicted` (k, d) and the vectors of `classes` (V + 2, d), computed in `precision`."""
        parts = (part.to(self.precision) for part in (predicted, classes, self.bias))
        return functional.linear(*parts).float()

    def predict(self, words: Tensor) -> Tensor:
        """r^ (k, K) from word vectors (k, n - 1, K)."""
        words = functional.dropout(words, self.sizes.dropout, self.training)
        return words.flatten(1) @ self.contexts


class Additive(LogBilinear):
    """r^ = sum_i C_i w_i + C_u u: the additive variant that section 2.4 compares with (Kiros, Salakhutdinov and Zemel
    2014, "Multimodal neural language models"). Unit vectors u are scaled by sqrt(c).

    Paper to code: C_u `content` (K, c).
    """

    def make_words(self, classes: int) -> None:
        super().make_words(classes)
        self.content = _uniform(self.sizes.dimensions, self.sizes.condition, scale=self.sizes.condition**-0.5)

    def shift(self, u: Tensor | None) -> Tensor | float:
        return functional.linear(required(u) * self.sizes.condition**0.5, self.content)


class Multiplicative(LogBilinear):
    """Equations 9 and 10: word vectors E = (W^fk)' W^fv, f = (W^fk r^) * (W^fd u), P prop. to exp(W^fv_j . f + b_j).

    Paper to code: W^fv `factors` (V + 2, F), W^fk `to_factors` (F, K), W^fd `gates` (F, G). `gate_bias` (F,) or
    None: it lets the model ignore an uninformative u, and the paper has none. Unit vectors u are scaled by sqrt(c).
    """

    def make_words(self, classes: int) -> None:
        sizes = self.sizes
        self.factors = _uniform(classes, sizes.factors, scale=0.3)
        self.to_factors = _uniform(sizes.factors, sizes.dimensions, scale=0.3)
        self.gates = _uniform(sizes.factors, self.attribute_size)
        self.gate_bias = nn.Parameter(torch.ones(sizes.factors)) if sizes.gate_bias else None

    @property
    def attribute_size(self) -> int:
        """G."""
        return self.sizes.condition

    def attribute(self, u: Tensor, tags: Tensor | None) -> Tensor:
        """The input (k, G) of the gates."""
        return u * self.sizes.condition**0.5

    def logits(self, context: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        predicted = self.predict(functional.embedding(context, self.factors) @ self.to_factors)
        gates = functional.linear(self.attribute(required(u), tags), self.gates, self.gate_bias)
        factors = functional.linear(predicted, self.to_factors) * gates
        factors = functional.dropout(factors, self.sizes.dropout, self.training)
        return self.output(factors, self.factors)


class StructureContent(Multiplicative):
    """Equation 11: u^ = ReLU(sum_i T_i t_i + T_u u + b) replaces u, over the parts of speech t_n to t_{n+k}.

    Paper to code: t_i rows of `tags` (T + 1, G), the boundary's last, T_i the rows i G to (i + 1) G of `structure`
    ((1 + k) G, G), T_u `content` (G, c), b `attribute_bias`. G is K.
    """

    structured = True

    def make_words(self, classes: int) -> None:
        super().make_words(classes)
        sizes, g = self.sizes, self.attribute_size
        self.tags = _uniform(sizes.tags + 1, g, scale=0.5)
        self.structure = _uniform((1 + sizes.ahead) * g, g, scale=((1 + sizes.ahead) * g) ** -0.5)
        self.content = _uniform(g, sizes.condition, scale=sizes.condition**-0.5)
        self.attribute_bias = nn.Parameter(torch.zeros(g))

    @property
    def attribute_size(self) -> int:
        return self.sizes.dimensions

    def attribute(self, u: Tensor, tags: Tensor | None) -> Tensor:
        content = functional.linear(super().attribute(u, None), self.content, self.attribute_bias)
        return (content + self.tags[tags].flatten(1) @ self.structure).relu()


class WindowDecoder:
    """Runs a network word by word for k sentences; see pipeline.generate.beam.Decoder.

    The state holds each sentence's window of words, its position, and its row of `u` and of `structures` (the parts of
    speech), if any.
    """

    def __init__(self, network: LogBilinear, u: Tensor, structures: Tokens | None) -> None:
        self.network, self.u, self.boundary = network, u, len(network.bias) - 1
        self.tags = None
        if structures is not None:
            sizes, longest = network.sizes, int(structures.lengths.max())
            tags = np.full((len(structures), longest + 2 + sizes.ahead), sizes.tags)
            for row, kinds in zip(tags, structures, strict=True):
                row[: len(kinds)] = kinds
            self.tags = upload(tags, u.device)

    def begin(self) -> tuple[Tensor, State]:
        k, device = len(self.u), self.u.device
        context = torch.full((k, self.network.sizes.context), self.boundary, device=device)
        return self._logits((context, context.new_zeros(k), torch.arange(k, device=device)))

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        context, position, rows = state
        return self._logits((torch.cat([context[:, 1:], words[:, None]], dim=1), position + 1, rows))

    def _logits(self, state: State) -> tuple[Tensor, State]:
        context, position, rows = state
        tags = None
        if self.tags is not None:
            last = self.tags.shape[1] - 1
            ahead = position[:, None] + torch.arange(1 + self.network.sizes.ahead, device=position.device)
            tags = self.tags[rows[:, None], ahead.clamp(max=last)]
        return self.network.logits(context, self.u[rows], tags), state
