"""The registered global models on word sequences: bow, devise, rnn, gru, lstm (Kiros et al. 2014, section 2.2)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.device import OomBatcher, place
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.device_views import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import JointNetwork, arrays_of
from pipeline.models.neural.packing import pack
from pipeline.models.neural.sentences import LinearOfWords, MeanOfWords, Recurrent
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import Training, seeded

BLOCK = 512
"""Sentences, or images, that are embedded at once."""


class GlobalModel:
    """An image and a sentence each become one unit vector; their inner product is the score. Trained with the squared
    loss, they are vectors of any length, and their distance counts.

    A registered model names its `sentence_encoder`, made of word vectors, the dimension of the space, dropout, and
    what it has to `learn` of the training sentences.
    """

    sentence_encoder: ClassVar[Any]
    multi_vector: ClassVar[bool] = False
    sentence_view: ClassVar[str] = "tokens"

    def __init__(self, view: ImageView, network: JointNetwork, learned: Mapping[str, Any]) -> None:
        self.view = view
        self.network = network.eval()
        self.learned = learned
        self.metric = "inner_product" if network.unit else "euclidean"

    @classmethod
    def build(
        cls,
        view: ImageView,
        mean: np.ndarray,
        words: np.ndarray,
        dimensions: int,
        dropout: float,
        seed: int,
        learned: Mapping[str, Any],
        unit: bool,
    ) -> "GlobalModel":
        """Untrained, on the training images' `mean` (D,) and word vectors (V + 1, d), the unknown word's last."""
        with seeded(seed):
            sentences = cls.sentence_encoder(torch.tensor(words), dimensions, dropout, **learned)
            dimensions = cls.dimensions(dimensions, words.shape[1])
            return cls(view, JointNetwork(torch.tensor(mean), sentences, dimensions, dropout, unit), learned)

    @classmethod
    def begin(cls, task: TrainingTask) -> "WordTrainer":
        """The model at the beginning of its training."""
        return WordTrainer(cls.untrained(task).to(task.device), task)

    @classmethod
    def untrained(cls, task: TrainingTask) -> "GlobalModel":
        """The model with the first parameters."""
        settings = task.settings
        model = cls.build(
            task.view, task.mean_image, task.words, settings.dimensions, settings.dropout, task.seed,
            cls.learn(task), unit=settings.loss != "squared",
        )  # fmt: skip
        model.network.sentences.words.requires_grad_(task.train_words)
        model.network.sentences.precision = task.precision
        return model

    @classmethod
    def dimensions(cls, wanted: int, word_dim: int) -> int:
        """The dimension of the joint space."""
        return wanted

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        """What the sentence encoder has to know of the training sentences, as JSON values."""
        return {}

    def anchors(self) -> dict[str, Tensor]:
        """What weight decay pulls parameters towards, by name, at the beginning of training; the others to zero."""
        return {}

    def arrange(self, sentences: Any) -> Any:
        """`sentences` in the form that the sentence encoder takes."""
        return pack(sentences, self.unknown)

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    @property
    def dim(self) -> int:
        """c, the dimension of the joint space."""
        return len(self.network.image_map)

    @property
    def unknown(self) -> int:
        """The id of every word outside the vocabulary."""
        return len(self.network.sentences.words) - 1

    def to(self, device: torch.device) -> "GlobalModel":
        """This model, whose network computes on `device` from now on."""
        self.network.to(device)
        return self

    @property
    def device(self) -> torch.device:
        """Where the network computes."""
        return next(self.network.parameters()).device

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""

        def embed(rows: slice) -> Tensor:
            part = {name: block[rows] for name, block in features.items()}
            return self.network.embed_images(stack_on(self.view, part, self.device))

        return _in_blocks(embed, len(next(iter(features.values()))), self.dim)

    def embed_sentences(self, sentences: Any) -> np.ndarray:
        """(n, c) float32 from word sequences, or trees, over the vocabulary that the model was trained with."""

        def embed(rows: slice) -> Tensor:
            arranged = self.arrange(sentences.take(np.arange(rows.start, rows.stop)))
            return self.network.embed_sentences(place(arranged, self.device))

        return _in_blocks(embed, len(sentences), self.dim)

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "dimensions": self.dim, "unit": self.network.unit, "learned": self.learned}

    def tensors(self) -> dict[str, np.ndarray]:
        return arrays_of(self.network)

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "GlobalModel":
        """The model that `settings` and `tensors` came from."""
        words, mean = tensors["sentences.words"], tensors["mean"]
        model = cls.build(
            ImageView.from_dict(settings), mean, words, settings["dimensions"], dropout=0, seed=0,
            learned=settings.get("learned", {}), unit=settings.get("unit", True),
        )  # fmt: skip
        model.network.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
        return model


class WordTrainer:
    """A global model in training."""

    def __init__(self, model: GlobalModel, task: TrainingTask) -> None:
        train, dev = task.train, task.dev
        dev_features = dev.images(np.arange(dev.n_images))

        def draw(rows: np.ndarray) -> tuple[Tensor, Any]:
            return task.draw_images(rows), model.arrange(train.sentences.take(rows))

        def judge() -> float:
            images, sentences = model.embed_images(dev_features), model.embed_sentences(dev.sentences)
            return recall_sum(count_ranks(images, sentences, dev.owners, model.metric))

        # The squared loss alone would shrink both sides to nothing: in turns, each learns what the other stands for.
        names = {name for name, _ in model.network.named_parameters()}
        turns = () if model.network.unit else ({"image_map"}, names - {"image_map"})
        self.model = model
        self.training = Training(
            model.network, draw, train.owners, train.names, task.objective, task.schedule,
            judge, anchors=model.anchors(), turns=turns,
        )  # fmt: skip

    def finish(self) -> GlobalModel:
        """The model as it is read again: in float32, without dropout."""
        return type(self.model).from_parts(self.model.settings(), self.model.tensors())


def _in_blocks(embed: Callable[[slice], Tensor], count: int, dimensions: int) -> np.ndarray:
    """(count, dimensions) from `embed(rows)`, BLOCK rows at a time."""
    with torch.inference_mode():
        blocks = OomBatcher(BLOCK, "row").map(lambda rows: embed(rows).cpu().numpy(), count)
    return np.concatenate([np.empty((0, dimensions), np.float32), *blocks])


class BagOfWords(GlobalModel):
    """The mean of word vectors that are vectors of the joint space: the linear encoder of Kiros et al. 2014, section
    3.3.

    Its space has the dimension of the word vectors.
    """

    sentence_encoder = MeanOfWords

    @classmethod
    def dimensions(cls, wanted: int, word_dim: int) -> int:
        return word_dim


class DeViSE(GlobalModel):
    """A linear map of the mean word vector (the baseline of Kiros et al. 2014, section 3.1)."""

    sentence_encoder = LinearOfWords


class RNN(GlobalModel):
    """The last hidden state of a plain recurrent network."""

    sentence_encoder = partial(Recurrent, "rnn")


class GRU(GlobalModel):
    """The last hidden state of gated recurrent units."""

    sentence_encoder = partial(Recurrent, "gru")


class LSTM(GlobalModel):
    """The last hidden state of long short-term memory: the model of Kiros et al. 2014."""

    sentence_encoder = partial(Recurrent, "lstm")
