"""The networks of `lbl`, `mlbl`, `mnlm` and `sc-nlm` (Kiros et al. 2014, sections 2.3 to 2.5), which predict the next
word from a window of the n - 1 words before it.

The V + 2 classes are the ids of V words, the unknown word (id V), and the boundary (id V + 1). The boundary as a
prediction is END, and it also fills the window before the first word. In the mappings from paper to code, ' means the
transpose.
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
from pipeline.text.vocabulary import Tokens


@dataclass(frozen=True)
class LogBilinearSizes:
    """The sizes of a network, with their symbols in the paper or in this module.

    - `context`: n - 1, the number of words in the window.
    - `dimensions`: K, the length of a word vector.
    - `factors`: F, the number of factors.
    - `condition`: c, the length of the conditioning vector u, which is the dimension of the joint space.
    - `ahead`: k, the number of parts of speech that the network sees after the part of speech of the next word.
    - `tags`: T, the number of different parts of speech.
    - `dropout`: the probability with which an element of word vectors and factors is dropped in training.
    - `gate_bias`: whether the gates have a bias.

    `factors` and `gate_bias` are used only by Multiplicative and StructureContent, and `ahead` and `tags` only by
    StructureContent.
    """

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
    """The log-bilinear model, which ignores the conditioning vector. By equations 7 and 8, r^ = sum_i C_i w_i, and
    P(w_n = j) is proportional to exp(r^ . r_j + b_j). w_i is the vector of word i of the window, r^ is the predicted
    vector of the next word, and r_j is the vector of class j, which is row j of R.

    Paper to code: R is `words` (V + 2, K), C_i' is the rows (i - 1) K to i K - 1 of `contexts` ((n - 1) K, K) for i
    from 1, and b is `bias` (V + 2,). The matrices C_i are initialised near I / (n - 1).
    """

    structured = False
    precision: torch.dtype

    def __init__(self, sizes: LogBilinearSizes, frequencies: Tensor) -> None:
        """Initialise the network. The biases start at `frequencies` (V + 2,), the logarithms of the relative
        frequencies of the classes (V words, the unknown word and the boundary) in the training sentences. The other
        parameters are random: the context matrices are near I / (n - 1)."""
        super().__init__()
        self.sizes = sizes
        self.precision = torch.float32
        self.bias = nn.Parameter(frequencies)
        identity = torch.eye(sizes.dimensions).repeat(sizes.context, 1) / sizes.context
        self.contexts = nn.Parameter(identity + torch.randn_like(identity) * 0.01)
        self.make_words(len(frequencies))

    def make_words(self, classes: int) -> None:
        """Create the word vectors of the classes, of which there are `classes` (V + 2), and the parameters that only
        this type of network has. The constructor calls this method."""
        self.words = _uniform(classes, self.sizes.dimensions)

    def forward(self, context: Tensor, targets: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """Compute the training loss, a scalar: the mean of -log P of the words or ENDs `targets` (k,) after the windows
        `context` (k, n - 1). `u` (k, c) are the conditioning vectors, and `tags` (k, 1 + ahead) are the parts of speech
        of each target and of the `ahead` words after it. A network that does not use `u` or `tags` ignores them, so
        they may be None."""
        return self.losses(context, targets, u, tags).mean()

    def losses(self, context: Tensor, targets: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """Compute -log P, with the natural logarithm, of each of the words or ENDs `targets` (k,) after the windows
        `context` (k, n - 1). Return (k,). `u` are conditioning vectors (k, c), and `tags` (k, 1 + ahead) are parts of
        speech, or None."""
        return functional.cross_entropy(self.logits(context, u, tags), targets, reduction="none")

    def logits(self, context: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        """Compute the logits (k, V + 2) float32 of the next words after the k windows `context` (k, n - 1) of word ids.
        `u` (k, c) are the conditioning vectors, and `tags` (k, 1 + ahead) are the parts of speech of the next word and
        of the `ahead` words after it. Both may be None for a network that does not use them."""
        predicted = self.predict(functional.embedding(context, self.words))
        return self.output(predicted + self.shift(u), self.words)

    def shift(self, u: Tensor | None) -> Tensor | float:
        """Compute the term (k, K) that the conditioning vectors u (k, c) add to the predicted vectors r^. The term is
        the number 0 in this class, which ignores u."""
        return 0.0

    def output(self, predicted: Tensor, classes: Tensor) -> Tensor:
        """Compute the logits (k, V + 2) float32: the inner products of `predicted` (k, d) with the vectors `classes` (V
        + 2, d) of the classes, plus the biases of the classes. d is K, or F in the multiplicative models."""
        parts = (part.to(self.precision) for part in (predicted, classes, self.bias))
        return functional.linear(*parts).float()

    def predict(self, words: Tensor) -> Tensor:
        """Compute the predicted vectors r^ (k, K) of the next words from the word vectors `words` (k, n - 1, K) of the
        windows."""
        words = functional.dropout(words, self.sizes.dropout, self.training)
        return words.flatten(1) @ self.contexts


class Additive(LogBilinear):
    """The additive variant, with which section 2.4 compares the multiplicative model (Kiros, Salakhutdinov and Zemel
    2014, "Multimodal neural language models"): r^ = sum_i C_i w_i + C_u u. Paper to code: C_u is `content` (K, c). The
    conditioning vectors u have unit length and are first multiplied by sqrt(c)."""

    def make_words(self, classes: int) -> None:
        super().make_words(classes)
        self.content = _uniform(self.sizes.dimensions, self.sizes.condition, scale=self.sizes.condition**-0.5)

    def shift(self, u: Tensor | None) -> Tensor | float:
        return functional.linear(required(u) * self.sizes.condition**0.5, self.content)


class Multiplicative(LogBilinear):
    """The multiplicative model (section 2.4, equations 9 and 10).

    The word vectors are the columns of E = (W^fk)' W^fv, the factor outputs are f = (W^fk r^) * (W^fd u), where *
    multiplies element by element, and P(w_n = j) is proportional to exp(W^fv_j . f + b_j), where W^fv_j is column j of
    W^fv.

    Paper to code: (W^fv)' is `factors` (V + 2, F), W^fk is `to_factors` (F, K), and W^fd is `gates` (F, G). The paper
    does not have `gate_bias` (F,), which is added to W^fd u unless it is None. With the bias, the model can ignore u if
    u has no information. The conditioning vectors u have unit length and are first multiplied by sqrt(c).
    """

    def make_words(self, classes: int) -> None:
        sizes = self.sizes
        self.factors = _uniform(classes, sizes.factors, scale=0.3)
        self.to_factors = _uniform(sizes.factors, sizes.dimensions, scale=0.3)
        self.gates = _uniform(sizes.factors, self.attribute_size)
        self.gate_bias = nn.Parameter(torch.ones(sizes.factors)) if sizes.gate_bias else None

    @property
    def attribute_size(self) -> int:
        """The length G of the attribute vector, which is the paper's name for the input of the gates. G is c in this
        class, and K in StructureContent."""
        return self.sizes.condition

    def attribute(self, u: Tensor, tags: Tensor | None) -> Tensor:
        """Compute the attribute vectors (k, G), which are the input of the gates, from the conditioning vectors u (k,
        c) of unit length. In this class, the attribute vectors are u times sqrt(c), and `tags` are not used."""
        return u * self.sizes.condition**0.5

    def logits(self, context: Tensor, u: Tensor | None, tags: Tensor | None) -> Tensor:
        predicted = self.predict(functional.embedding(context, self.factors) @ self.to_factors)
        gates = functional.linear(self.attribute(required(u), tags), self.gates, self.gate_bias)
        factors = functional.linear(predicted, self.to_factors) * gates
        factors = functional.dropout(factors, self.sizes.dropout, self.training)
        return self.output(factors, self.factors)


class StructureContent(Multiplicative):
    """The structure-content model, a Multiplicative model whose gates also depend on the parts of speech of the next
    word and of the k words after it.

    Equation 11: u^ = ReLU(sum_i T_i t_i + T_u u + b) replaces u. The sum is over the parts of speech t_n to t_{n+k}.

    Paper to code: t_i are rows of `tags` (T + 1, G), whose last row is for END and the positions after it. T_{n+i}' is
    the rows i G to (i + 1) G - 1 of `structure` ((1 + k) G, G), T_u is `content` (G, c), b is `attribute_bias` (G,),
    and G = K.
    """

    structured = True

    def make_words(self, classes: int) -> None:
        super().make_words(classes)
        sizes = self.sizes
        g = self.attribute_size
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
    """A pipeline.generate.beam.Decoder that runs a log-bilinear network word by word for k sentences. Sentence i has
    the conditioning vector u[i] of `u` (k, c) and, unless `structures` is None, the sequence of parts of speech
    structures[i]. The state has, for each hypothesis, the window of words, the position of the next word from 0, and
    the number i of its sentence."""

    def __init__(self, network: LogBilinear, u: Tensor, structures: Tokens | None) -> None:
        self.network = network
        self.u = u
        self.boundary = len(network.bias) - 1
        self.tags = None
        if structures is not None:
            sizes = network.sizes
            longest = int(structures.lengths.max())
            tags = np.full((len(structures), longest + 2 + sizes.ahead), sizes.tags)
            for row, kinds in zip(tags, structures, strict=True):
                row[: len(kinds)] = kinds
            self.tags = upload(tags, u.device)

    def begin(self) -> tuple[Tensor, State]:
        k = len(self.u)
        device = self.u.device
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
