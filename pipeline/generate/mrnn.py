"""The generator `mrnn`: the multimodal recurrent network of Karpathy and Fei-Fei 2015, section 3.2."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import move_tensors
from pipeline.generate.beam import Hypothesis, State, beam_search, sample
from pipeline.generate.generator import Description, HeldOut, Learned, Material, Sources
from pipeline.generate.training import Framed, framed, log_frequencies, log_probabilities, perplexity_of, train
from pipeline.models.joint_model import Settings, read_setting
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import INITIAL_RANGE, RecurrentWeights, arrays_of
from pipeline.models.neural.recurrence import recur
from pipeline.models.neural.task import TrainingPairs, mean_and_spread
from pipeline.models.neural.training import seeded


class DescribingNetwork(RecurrentWeights):
    """The recurrent network of Karpathy and Fei-Fei 2015, equations 13 to 15:

        b_v = W_hi I
        h_t = f(W_hx x_t + W_hh h_{t-1} + b_h + 1(t = 1) b_v)
        y_t = softmax(W_oh h_t + b_o)

    Paper to code: W_hi is `image_map`, W_hx `w`, W_hh `u`, b_h `bias` + `hidden_bias`, W_oh `output`, and b_o
    `output_bias`. The vectors x_t are rows of `words`. The paper's f is ReLU, which is the cell `relu`. The cell `rnn`
    has f = tanh, and the cells `lstm` and `gru` add b_v to all their gates.

    The V + 2 classes are the ids of V words, the unknown word (id V), and the boundary (id V + 1), which means START as
    an input and END as a prediction. I is the stacked features of the image, minus their mean over the training images
    (`mean`), and divided by the root mean square of all centred features of the training images (`scale`).
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        cell: str,
        word_dim: int,
        dimensions: int,
        mean: Tensor,
        scale: Tensor,
        frequencies: Tensor,
        dropout: float,
    ) -> None:
        """Initialise the parameters at random. b_o starts at `frequencies` (V + 2,), the logarithms of the relative
        frequencies of the classes in the training sentences (supplement 6.5).

        `cell` is relu, rnn, lstm or gru. `word_dim` is the length of x_t, and `dimensions` is the length H of h_t.
        `mean` (D,) and `scale` (a scalar) standardise the stacked features of an image, and are not trained. `dropout`
        is the probability with which an element of features, word vectors and hidden states is dropped in training.
        """
        super().__init__(
            cell, torch.empty(len(frequencies), word_dim).uniform_(-INITIAL_RANGE, INITIAL_RANGE), dimensions, dropout
        )
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.image_map = nn.Parameter(torch.empty(len(self.w), len(mean)).uniform_(-1, 1) / len(mean) ** 0.5)
        self.output = nn.Parameter(torch.empty(len(frequencies), dimensions).uniform_(-INITIAL_RANGE, INITIAL_RANGE))
        self.output_bias = nn.Parameter(frequencies)

    def image_bias(self, x: Tensor) -> Tensor:
        """Compute b_v, the term that an image adds to the inputs of the first step, for n images with the stacked
        features x (n, D), which are standardised here. Return (n, G H) for a cell with G gates, which is (n, H) for
        relu and rnn."""
        x = functional.dropout((x - self.mean) / self.scale, self.dropout, self.training)
        return functional.linear(x.to(self.precision), self.image_map.to(self.precision))

    def forward(self, x: Tensor, sentences: Framed) -> Tensor:
        """Compute the training loss: the mean of -log P over all words and ENDs of n sentences, a scalar. Sentence i
        belongs to the image in row i of x (n, D)."""
        return self.losses(self.image_bias(x), sentences).mean()

    def losses(self, image_bias: Tensor, sentences: Framed) -> Tensor:
        """Compute -log P of each word and END of n sentences, (total,), in the order of `sentences.targets`. Row i of
        `image_bias` (n, G H) is b_v of the image of sentence i. The logarithm is natural."""
        packed = sentences.inputs
        first = image_bias[packed.order]
        bias = functional.pad(first, (0, 0, 0, len(packed.ids) - len(first))) + self.bias.to(self.precision)
        words = functional.dropout(functional.embedding(packed.ids, self.words), self.dropout, self.training)
        hidden = recur(self.cell, packed.sizes, self.precision, words, self.w, self.u, bias, self.hidden_bias)
        hidden = functional.dropout(hidden, self.dropout, self.training)
        return functional.cross_entropy(self.logits(hidden), sentences.targets.ids, reduction="none")

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute the logits of the next word, (k, V + 2) float32, from the hidden states (k, H)."""
        parts = (part.to(self.precision) for part in (hidden, self.output, self.output_bias))
        return functional.linear(*parts).float()


class RecurrentDecoder:
    """A pipeline.generate.beam.Decoder that runs a DescribingNetwork word by word for n images. The constructor
    converts the weights to the precision of the network, so that the steps need not convert them."""

    def __init__(self, network: DescribingNetwork, x: Tensor) -> None:
        """Prepare decoding by `network` for n images with the stacked features x (n, D)."""
        self.cell = network.cell
        self.precision = network.precision
        self.boundary = len(network.words) - 1
        parts = (network.u, network.hidden_bias, network.output, network.output_bias)
        self.u, self.hidden_bias, self.output, self.output_bias = (part.to(self.precision) for part in parts)
        # W_hx x_t + `bias` depends only on the word, so it is computed once for each word of the vocabulary.
        self.inputs = functional.linear(network.words, network.w, network.bias).to(self.precision)
        self.first = network.image_bias(x)

    def begin(self) -> tuple[Tensor, State]:
        state = (self.first.new_zeros(len(self.first), self.u.shape[1], dtype=torch.float32),) * self.cell.states
        return self._advance(self.inputs[self.boundary] + self.first, state)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        return self._advance(self.inputs[words], state)

    def _advance(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        hidden = functional.linear(state[0].to(self.precision), self.u, self.hidden_bias)
        state = self.cell.step(inputs, hidden, state)[0]
        return functional.linear(state[0].to(self.precision), self.output, self.output_bias).float(), state


class MultimodalRNN:
    """The generator `mrnn`, a recurrent language model whose first hidden state depends on the image. DescribingNetwork
    has the equations.

    If `whole` is true, the model was trained on regions. For each encoder, it reads the features of the region,
    followed by the features of the whole image. If such a model describes a whole image, the features of the image are
    used twice.
    """

    def __init__(self, view: ImageView, cell: str, network: DescribingNetwork, whole: bool = False) -> None:
        self.view = view
        self.cell = cell
        self.whole = whole
        self.network = network.eval()

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Train a model on the training pairs of `material`: images with sentences, or regions with snippets. Return
        the model of the epoch with the lowest perplexity on dev, and the log of the training."""
        view = material.view
        pairs = material.train
        settings = material.settings
        mean, length = mean_and_spread(pairs.stacked(view))
        scale = length / view.dim**0.5
        frequencies = log_frequencies(pairs.sentences, len(material.vocabulary.terms) + 2)
        sizes = (settings.cell, settings.word_dim, settings.dimensions)
        buffers = torch.tensor(mean), torch.tensor(scale), torch.tensor(frequencies)
        with seeded(material.seed):
            network = DescribingNetwork(*sizes, *buffers, settings.dropout)
        model = cls(view, settings.cell, network, getattr(settings, "whole", False)).to(material.device)
        log = train(
            network,
            lambda rows: model._batch(pairs, rows),
            pairs.names,
            lambda: model.perplexity(material.dev),
            material,
        )
        return Learned(model, log)

    def to(self, device: torch.device) -> "MultimodalRNN":
        self.network.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def _batch(self, pairs: TrainingPairs, rows: np.ndarray) -> tuple:
        x = self._stack(pairs.images(pairs.owners[rows]))
        return x, framed(pairs.sentences.take(rows), len(self.network.words) - 1)

    def perplexity(self, pairs: TrainingPairs) -> float:
        """Compute the perplexity of the sentences of `pairs` given their images, over all words and sentence ends
        (END). Lower is better. All unknown words count as a single word of the vocabulary, the unknown word."""
        return perplexity_of(self.network, lambda rows: self._batch(pairs, rows), pairs.sentences)

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the natural log probability (n, m) float32 of each of the m held-out sentences
        `given.pairs.sentences`, END included, given each of n images, whose `features` are encoder -> (n, dim). The
        images need not be the images of `given`."""
        sentences = given.pairs.sentences
        network = self.network
        with torch.inference_mode():
            biases = network.image_bias(self._stack(features))

        def open_block(rows: np.ndarray) -> tuple[Tensor, Callable[[int], Tensor]]:
            block = move_tensors(framed(sentences.take(rows), len(network.words) - 1), biases.device)
            return block.targets.owners, lambda image: network.losses(biases[image].expand(len(rows), -1), block)

        return log_probabilities(sentences, len(biases), open_block)

    def perplexities(self, held_out: HeldOut) -> dict[str, float]:
        """Compute the perplexity of held-out sentences given their images. Return a dict that has the perplexity as
        `given_image`."""
        return {"given_image": self.perplexity(held_out.pairs)}

    def generate_captions(
        self, features: Mapping[str, np.ndarray], sources: Sources, count: int
    ) -> list[list[Description]]:
        """Generate at most `count` sentences, best first, for each of n images, whose `features` are given as encoder
        -> (n, dim).

        If `sources.temperature` is None, the sentences are found by beam search with the settings `sources.search`, and
        the score is ln P / L ** length_power, where P is the probability of the sentence and L counts its words and
        END. Otherwise `count` sentences are sampled, which may be equal, and the score is ln P.
        """
        decoder = self.decoder(features)
        search = sources.search
        if sources.temperature is None:
            power = search.length_power
            best = [hypotheses[:count] for hypotheses in beam_search(decoder, search)]
        else:
            power = 0
            random = sources.generator(self.network.words.device)
            drawn = [sample(decoder, search.longest, sources.temperature, random) for _ in range(count)]
            best = [sorted(group, key=lambda one: -one.log_probability) for group in zip(*drawn, strict=True)]
        terms = sources.corpus.vocabulary.terms

        def make_description(sentence: Hypothesis) -> Description:
            score = sentence.log_probability / (len(sentence.words) + 1) ** power
            return Description(tuple(terms[i] for i in sentence.words), score)

        return [list(map(make_description, hypotheses)) for hypotheses in best]

    def decoder(self, features: Mapping[str, np.ndarray]) -> RecurrentDecoder:
        """Create the decoder for n images, whose `features` are given as encoder -> (n, dim)."""
        with torch.inference_mode():
            return RecurrentDecoder(self.network, self._stack(features))

    def _stack(self, features: Mapping[str, np.ndarray]) -> Tensor:
        """Stack `features`, encoder -> (n, dim), as a tensor (n, D) on the device of the network. If `whole` is true,
        features of an encoder that have only half of the expected columns belong to whole images, and are used
        twice."""
        if self.whole:
            dims = dict(zip(self.view.encoders, self.view.dims, strict=True))
            features = {
                name: np.hstack([block, block]) if 2 * block.shape[1] == dims[name] else block
                for name, block in features.items()
            }
        return stack_on(self.view, features, self.network.words.device)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "cell": self.cell, "whole": self.whole}

    def tensors(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "MultimodalRNN":
        parts = {name: torch.tensor(array) for name, array in tensors.items()}
        cell = read_setting(settings, "cell", str)
        sizes = (cell, parts["words"].shape[1], parts["output"].shape[1])
        network = DescribingNetwork(*sizes, parts["mean"], parts["scale"], parts["output_bias"], dropout=0)
        network.load_state_dict(parts)
        return cls(ImageView.from_dict(settings), cell, network, bool(settings.get("whole", False)))
