"""The registered global models on word sequences: bow, rnn, gru, lstm (Kiros et al. 2014, section 2.2)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.compute.device import OomBatcher, full_float32, place, upload
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import mean_rank, recall_sum
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import (
    JointNetwork,
    LongShortTerm,
    MeanOfWords,
    NetworkModel,
    PlainRecurrent,
    Recurrent,
    Score,
    load_arrays,
)
from pipeline.models.neural.recurrence import pack
from pipeline.models.neural.task import RegionBlock, TrainingPairs, TrainingTask
from pipeline.models.neural.training import Training, seeded

BLOCK = 512
"""Sentences, or images, embedded at once."""


class GlobalModel(NetworkModel):
    """An image and a sentence each become one unit vector; their inner product is the score. By `score: product` they
    have any length; after training with the squared loss they do, too, and are compared by distance. Both are Socher et
    al.'s (2014), who report mean ranks, by which dev chooses there.

    A registered model names its `sentence_encoder`, a class or function of word vectors, the dimension of the space,
    dropout, and what `learn` found in the training sentences.
    """

    sentence_encoder: ClassVar[Any]
    in_word_space: ClassVar[bool] = False
    """Whether the joint space has the dimension of the word vectors, whatever the settings say."""

    def __init__(self, view: ImageView, network: nn.Module, learned: Mapping[str, Any]) -> None:
        self.view, self.network, self.learned = view, network.eval(), learned
        self.metric = "euclidean" if network.score == "distance" else "inner_product"
        self.by_mean_rank = network.score != "cosine"

    @classmethod
    def make_network(
        cls, mean: Tensor, words: Tensor, dimensions: int, dropout: float, learned: Mapping[str, Any], score: Score
    ) -> nn.Module:
        """Untrained, with `mean` (D,) subtracted from images, and word vectors (V + 1, d), the unknown word's last."""
        sentences = cls.sentence_encoder(words, dimensions, dropout, **learned)
        return JointNetwork(mean, sentences, words.shape[1] if cls.in_word_space else dimensions, dropout, score)

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """The training loop of an untrained model."""
        model = cls.untrained(task).to(task.device)

        def draw(rows: np.ndarray) -> tuple[Tensor, Any]:
            return task.draw_images(rows), model.arrange(task.train.sentences.take(rows))

        # The squared loss would shrink both sides to zero: W_I learns first, then sentences (Socher et al. 2014).
        sentences = {name for name, p in model.network.named_parameters() if p.requires_grad} - {"image_map"}
        groups = ({"image_map"}, sentences) if sentences and model.network.score == "distance" else ()
        return task.training(
            model.network,
            draw,
            judge=model.judge(task.dev),
            anchors=model.anchors(),
            groups=groups,
            finish=model.reloaded,
        )

    @classmethod
    def untrained(cls, task: TrainingTask) -> "GlobalModel":
        settings, learned = task.settings, cls.learn(task)
        score = "distance" if settings.loss == "squared" else settings.score
        mean = torch.tensor(task.mean_image if score == "cosine" else np.zeros_like(task.mean_image))
        with seeded(task.seed):
            sizes = settings.dimensions, settings.dropout
            network = cls.make_network(mean, torch.tensor(task.words), *sizes, learned, score)
        network.sentences.words.requires_grad_(task.train_words)
        network.sentences.precision = task.precision
        return cls(task.view, network, learned)

    def judge(self, dev: TrainingPairs) -> Callable[[], float]:
        """A function that gives the recall sum on `dev` of the parameters at the time, or minus their mean rank."""
        features = dev.images(np.arange(dev.n_images))

        def score() -> float:
            images, sentences = self.embed_images(features), self.embed_sentences(dev.sentences)
            ranks = count_ranks(images, sentences, dev.owners, self.metric)
            return -mean_rank(ranks) if self.by_mean_rank else recall_sum(ranks)

        return score

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        """What the sentence encoder must know of the training sentences, as JSON values."""
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

    def embed_images(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """(n, c) float32 from `features`, encoder -> (n, its dim)."""
        embed, count = self.network.embed_images, len(next(iter(features.values())))
        return self.in_blocks(lambda rows: embed(stack_on(self.view, features, self.device, rows)), count, "image")

    def embed_sentences(self, sentences: Any) -> np.ndarray:
        """(n, c) float32 from word sequences, or trees, over the vocabulary that the model was trained with."""

        def embed(rows: slice) -> Tensor:
            arranged = self.arrange(sentences.take(np.arange(rows.start, rows.stop)))
            return self.network.embed_sentences(place(arranged, self.device))

        return self.in_blocks(embed, len(sentences), "sentence")

    def embed_phrases(self, phrases: Any) -> np.ndarray:
        """(p, c) float32 of noun phrases, each as a sentence of its own (Niu et al. 2017, section 5.2)."""
        return self.embed_sentences(phrases)

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """(r, c) float32 of regions, each as an image of its own; their features are of the model's encoders, in its
        order."""
        x = self.view.stack(self.view.split(block.features))
        return self.in_blocks(lambda rows: self.network.embed_images(upload(x[rows], self.device)), len(x), "region")

    def in_blocks(self, embed: Callable[[slice], Tensor], count: int, what: str, size: int = BLOCK) -> np.ndarray:
        """(count, c) from `embed(rows)`, at most `size` rows at once; a row is called `what` in errors."""
        with torch.inference_mode(), full_float32():
            blocks = OomBatcher(size, what).map(lambda rows: embed(rows).cpu().numpy(), count)
        return np.concatenate([np.empty((0, self.dim), np.float32), *blocks])

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "dimensions": self.dim, "score": self.network.score, "learned": self.learned}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "GlobalModel":
        """The model that `settings` and `tensors` came from."""
        first, learned = map(torch.tensor, (tensors["mean"], tensors["sentences.words"])), settings.get("learned", {})
        with seeded(0):
            network = cls.make_network(*first, settings["dimensions"], 0, learned, settings["score"])
        return cls(ImageView.from_dict(settings), load_arrays(network, tensors), learned)


class BagOfWords(GlobalModel):
    """The mean of word vectors that are vectors of the joint space: the linear encoder of Kiros et al. 2014, section
    3.3, and on word vectors that stay fixed DeViSE as they have it in section 3.1. The space has the dimension of the
    word vectors."""

    sentence_encoder = MeanOfWords
    in_word_space = True


class RNN(GlobalModel):
    """The last hidden state of a plain recurrent network (Socher et al. 2014, section 6)."""

    sentence_encoder = PlainRecurrent

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"activation": task.settings.activation, "bias": task.settings.bias}


class GRU(GlobalModel):
    """The last hidden state of gated recurrent units."""

    sentence_encoder = partial(Recurrent, "gru")


class LSTM(GlobalModel):
    """The last hidden state of long short-term memory: the model of Kiros et al. 2014."""

    sentence_encoder = LongShortTerm

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"peepholes": True} if task.settings.peepholes else {}

    @classmethod
    def untrained(cls, task: TrainingTask) -> "LSTM":
        model = super().untrained(task)
        with torch.no_grad():
            model.network.sentences.bias.unflatten(0, (4, -1))[1] = task.settings.forget_bias
        return model
