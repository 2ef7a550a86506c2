"""The registered global models on word sequences: `bow`, `rnn`, `gru` and `lstm` (Kiros et al. 2014, section 2.2)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, get_args

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import OomBatcher, full_float32, move_tensors, upload
from pipeline.compute.multivectors import ScoreRule
from pipeline.config.models import LongShortTermTrainSettings, PlainTrainSettings
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import mean_rank, recall_sum
from pipeline.models.joint_model import (
    Features,
    RegionBlock,
    RegionSource,
    Sentences,
    Settings,
    WordForms,
    read_setting,
)
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.networks import (
    ArrangedWords,
    GlobalNetwork,
    JointNetwork,
    LongShortTerm,
    MeanOfWords,
    NetworkModel,
    PlainRecurrent,
    Recurrent,
    Score,
    load_arrays,
    set_gate_bias,
)
from pipeline.models.neural.recurrence import pack
from pipeline.models.neural.task import TrainingPairs, TrainingTask, required
from pipeline.models.neural.training import Training, seeded
from pipeline.text.vocabulary import Tokens

BLOCK_ROWS = 512
"""Maximum number of sentences, or of images, that are embedded at once."""


class GlobalModel(NetworkModel):
    """The base class of models with one vector per image and one per sentence.

    There are three scores of an image with a sentence:

    - By default, the vectors have unit length, and the score is their inner product.
    - With the setting `score: product`, the vectors are not scaled, and the score is their inner product.
    - After training with the squared loss, the vectors are not scaled, and are compared by distance.

    The second and the third score are from Socher et al. 2014, who report mean ranks. A model with one of these scores
    keeps the epoch with the least mean rank on dev. Other models keep the epoch with the greatest recall sum.

    A subclass sets `sentence_encoder`, a class or function whose arguments are the word vectors, the dimension of the
    space, the dropout, and the values that `learn` returns. The model keeps these values as `learned`.
    """

    rule: ScoreRule | None = None
    sentence_encoder: ClassVar[Any]
    in_word_space: ClassVar[bool] = False
    """Whether the joint space has the dimension of the word vectors instead of `dimensions`."""

    def __init__(self, view: ImageView, network: GlobalNetwork, learned: Settings) -> None:
        self.view = view
        self.network = network.eval()
        self.learned = learned
        self.metric = "euclidean" if network.score == "distance" else "inner_product"
        self.by_mean_rank = network.score != "cosine"

    @classmethod
    def make_network(
        cls, mean: Tensor, words: Tensor, dimensions: int, dropout: float, learned: Settings, score: Score
    ) -> GlobalNetwork:
        """Create an untrained network.

        `mean` (D,) is subtracted from images. `words` (V + 1, d) are word vectors, of which the last belongs to the
        unknown word. `learned` has the values that `learn` returned.
        """
        sentences = cls.sentence_encoder(words, dimensions, dropout, **learned)
        return JointNetwork(mean, sentences, words.shape[1] if cls.in_word_space else dimensions, dropout, score)

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        model = cls.untrained(task).to(task.device)

        def draw(rows: np.ndarray) -> tuple[Tensor, ArrangedWords]:
            return task.draw_images(rows), model.arrange(task.train.sentences.take(rows))

        # If both sides were trained at once, the squared loss would shrink all vectors to zero. Therefore W_I is
        # trained first, and then the sentence encoder (Socher et al. 2014, section 5).
        sentences = {name for name, p in model.network.named_parameters() if p.requires_grad} - {"image_map"}
        groups = ({"image_map"}, sentences) if sentences and model.network.score == "distance" else ()
        plan = task.plan(model.network, draw, model.judge(task.dev), model.reloaded)
        return Training(replace(plan, anchors=model.anchors(), groups=groups))

    @classmethod
    def untrained(cls, task: TrainingTask) -> Self:
        """Create the model that training starts from, with its initial parameters."""
        settings = task.settings
        learned = cls.learn(task)
        score = "distance" if settings.loss == "squared" else settings.score
        mean = torch.tensor(task.mean_image if score == "cosine" else np.zeros_like(task.mean_image))
        words = torch.tensor(required(task.words))
        with seeded(task.seed):
            network = cls.make_network(mean, words, settings.dimensions, settings.dropout, learned, score)
        network.sentences.words.requires_grad_(task.train_words)
        network.sentences.precision = task.precision
        return cls(task.view, network, learned)

    def judge(self, dev: TrainingPairs) -> Callable[[], float]:
        """Return a function without arguments, which scores the network on `dev`. The function uses the parameters that
        the network has at the time of the call. The score is the recall sum, or the negative mean rank if
        `by_mean_rank` is true."""
        features = dev.images(np.arange(dev.n_images))

        def score() -> float:
            images = self.embed_images(features)
            sentences = self.embed_sentences(dev.sentences)
            ranks = count_ranks(images, sentences, dev.owners, self.metric)
            return -mean_rank(ranks) if self.by_mean_rank else recall_sum(ranks)

        return score

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        """Return further arguments of `sentence_encoder`, name -> JSON value, which come from the settings or the
        training sentences. The dict is empty unless a subclass overrides this method."""
        return {}

    def arrange(self, sentences: "WordForms") -> ArrangedWords:
        """Convert `sentences`, which must be Tokens, to Packed, the form that the sentence encoder reads. A model that
        reads trees overrides this method."""
        assert isinstance(sentences, Tokens)
        return pack(sentences, self.unknown)

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    @property
    def region_encoders(self) -> tuple[str, ...]:
        """The encoders whose region features the model reads. A region is embedded as an image."""
        return self.encoders

    @property
    def dim(self) -> int:
        """The dimension c of the joint space."""
        return len(self.network.image_map)

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> np.ndarray:
        """Embed n images, whose `features` are given as encoder -> (n, dim). Return (n, c) float32. `regions` are not
        used."""
        embed = self.network.embed_images
        count = len(next(iter(features.values())))
        return self.in_blocks(lambda rows: embed(stack_on(self.view, features, self.device, rows)), count, "image")

    def embed_sentences(self, sentences: "Sentences") -> np.ndarray:
        """Embed n word sequences or trees, whose words are ids in the vocabulary with which the model was trained.

        Return (n, c) float32.
        """
        assert not isinstance(sentences, Mapping)

        def embed(rows: slice) -> Tensor:
            arranged = self.arrange(sentences.take(np.arange(rows.start, rows.stop)))
            return self.network.embed_sentences(move_tensors(arranged, self.device))

        return self.in_blocks(embed, len(sentences), "sentence")

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed each of p noun phrases as a sentence (Niu et al. 2017, section 5.2). Return (p, c) float32."""
        return self.embed_sentences(phrases)

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """Embed each of the r regions of a block as an image. Return (r, c) float32.

        The block has the features of the model's encoders side by side, in the model's order.
        """
        x = self.view.stack(self.view.split(block.features))
        return self.in_blocks(lambda rows: self.network.embed_images(upload(x[rows], self.device)), len(x), "region")

    def in_blocks(
        self, embed: Callable[[slice], Tensor], count: int, row_name: str, size: int = BLOCK_ROWS
    ) -> np.ndarray:
        """Embed `count` rows by `embed(rows)`, which gets a slice of at most `size` rows. Return (count, c) float32.

        If a GPU's memory is too small, smaller slices are used. `row_name` is the word for one row in messages. Raises
        UsageError if the memory is too small for a single row.
        """
        with torch.inference_mode(), full_float32():
            blocks = OomBatcher(size, row_name).map(lambda rows: embed(rows).cpu().numpy(), count)
        return np.concatenate([np.empty((0, self.dim), np.float32), *blocks])

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "dimensions": self.dim, "score": self.network.score, "learned": self.learned}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> Self:
        mean = torch.tensor(tensors["mean"])
        words = torch.tensor(tensors["sentences.words"])
        dimensions = read_setting(settings, "dimensions", int)
        learned = read_setting(settings, "learned", dict) if "learned" in settings else {}
        with seeded(0):
            network = cls.make_network(mean, words, dimensions, 0, learned, read_score(settings))
        return cls(ImageView.from_dict(settings), load_arrays(network, tensors), learned)


def read_score(settings: Settings) -> Score:
    """Return the stored setting `score`, the comparison of images with sentences. Raises KeyError if it is missing, and
    ValueError for an unknown name."""
    for score in get_args(Score):
        if settings["score"] == score:
            return score
    known = ", ".join(get_args(Score))
    raise ValueError(f"the stored setting score of this model is {settings['score']!r}, but must be one of {known}")


class BagOfWords(GlobalModel):
    """The model `bow`, which embeds a sentence as the mean of its word vectors.

    It is the linear encoder of Kiros et al. 2014, section 3.2. With fixed word vectors it is DeViSE as in section 3.1
    of the same paper. The joint space has the dimension of the word vectors.
    """

    sentence_encoder = MeanOfWords
    in_word_space = True


class RNN(GlobalModel):
    """The model `rnn`, which embeds a sentence as the last hidden state of a plain recurrent network (Socher et al.
    2014, section 6)."""

    sentence_encoder = PlainRecurrent

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        settings = task.own_settings(PlainTrainSettings)
        return {"activation": settings.activation, "bias": settings.bias}


class GRU(GlobalModel):
    """The model `gru`, which embeds a sentence as the last hidden state of gated recurrent units."""

    sentence_encoder = partial(Recurrent, "gru")


class LSTM(GlobalModel):
    """The model `lstm`, which embeds a sentence as the last hidden state of a long short-term memory (Kiros et al.
    2014, section 2.2)."""

    sentence_encoder = LongShortTerm

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"peepholes": True} if task.own_settings(LongShortTermTrainSettings).peepholes else {}

    @classmethod
    def untrained(cls, task: TrainingTask) -> Self:
        model = super().untrained(task)
        set_gate_bias(model.network.sentences.bias, 1, task.own_settings(LongShortTermTrainSettings).forget_bias)
        return model
