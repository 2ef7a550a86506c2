"""The registered multi-vector models: `dvsa`, `deptree` and `defrag` (Karpathy and Fei-Fei 2015), and `fragments`.

`fragments` is an `ncca-recurrent` that also compares regions with words.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import OomBatcher, move_tensors
from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.config.models import (
    FragmentTrainSettings,
    InstanceTrainSettings,
    RelationFragmentTrainSettings,
    WordFragmentTrainSettings,
)
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.joint_model import (
    Features,
    RegionBlock,
    RegionSource,
    Sentences,
    Settings,
    WordForms,
    read_number,
    read_setting,
)
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragments import (
    AlignedNetwork,
    ArrangedFragments,
    FragmentNetwork,
    RectifiedBRNN,
    RegionMap,
    RelationNetwork,
    by_sentence,
    learn_relations,
)
from pipeline.models.neural.losses import MultipleInstance
from pipeline.models.neural.networks import NetworkModel, load_arrays
from pipeline.models.neural.recurrence import Packed, pack
from pipeline.models.neural.task import RegionView, TrainingPairs, TrainingTask, mean_and_spread, required
from pipeline.models.neural.training import LossFunction, Training, clip_elements, seeded
from pipeline.models.neural.word_towers import InitialTowers, RecurrentCCA, Towers
from pipeline.text.vocabulary import Tokens

BLOCK_ROWS = 256
"""Maximum number of images, or of sentences, that are read and embedded at once."""


class FragmentModel(NetworkModel):
    """The base class of models with one vector per region of an image and one per word, or relation, of a sentence.

    An image and a sentence are scored by `rule`. `region_view` describes the region features that the network reads.
    """

    multi_vector = True
    metric: str = "inner_product"

    def __init__(self, region_view: RegionView, network: "FragmentNetwork | GroundedNetwork") -> None:
        self.region_view = region_view
        self.network = network.eval()

    @property
    def encoders(self) -> tuple[str, ...]:
        """The encoders whose features of whole images the model reads in addition to the features of regions. The tuple
        is empty unless a subclass overrides this property."""
        return ()

    @property
    def region_encoders(self) -> tuple[str, ...]:
        return self.region_view.encoders

    @property
    def rule(self) -> ScoreRule:
        return self.network.rule

    def embed_images(self, features: Features, regions: RegionSource | None = None) -> MultiVectors:
        """Embed n images from their `regions`, which must not be None, and from the `features` of the model's
        `encoders` if it has any.

        Returns MultiVectors of float32 arrays with one vector per region, and with one global vector per image if the
        network has global vectors.
        """
        assert regions is not None

        def embed(rows: np.ndarray) -> MultiVectors:
            whole = self.stack({name: block[rows] for name, block in features.items()})
            parts = (stack_regions(self.region_view, regions, rows), whole)
            return self.network.embed_images(*move_tensors(parts, self.device))

        return _in_blocks(embed, len(regions))

    def arrange(self, sentences: "WordForms") -> ArrangedFragments:
        """Convert `sentences`, which must be Tokens, to Packed, the form that the network reads. A model that reads
        trees overrides this method."""
        assert isinstance(sentences, Tokens)
        return pack(sentences, self.unknown)

    def embed_sentences(self, sentences: "Sentences") -> MultiVectors:
        """Embed n sentences as MultiVectors of float32 arrays with one vector per word or relation, and with one global
        vector per sentence if the network has global vectors.

        An empty sentence counts as a sentence of one unknown word.
        """
        assert not isinstance(sentences, Mapping)

        def embed(rows: np.ndarray) -> MultiVectors:
            return self.network.embed_sentences(move_tensors(self.arrange(sentences.take(rows)), self.device))

        return _in_blocks(embed, len(sentences))

    def embed_phrases(self, phrases: "WordForms") -> np.ndarray:
        """Embed p noun phrases, and return (p, c) float32 (Niu et al. 2017, section 5.2).

        The vector of a phrase is the sum of the words' vectors, or their mean if the rule takes a mean. With the rules
        `words` and `mean-words`, the inner product of this vector and the vector of a region is the score of the phrase
        with the region. The stage `embed-phrases` does not admit other rules or models with global vectors.
        """
        words = self.embed_sentences(phrases)
        sums = np.zeros((len(phrases), words.array.shape[1]), np.float32)
        np.add.at(sums, words.owners, words.array)
        return sums / words.lengths[:, None] if self.rule.sum.startswith("mean") else sums

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """Embed the r regions of a block, and return (r, c) float32.

        The block has the features of the model's region encoders side by side, in the model's order. The network must
        not have global vectors.
        """
        x = torch.from_numpy(self.region_view.stack(block))
        with torch.inference_mode():
            regions = MultiVectors(x, block.offsets, boxes=block.boxes)
            return self.network.embed_images(*move_tensors((regions, None), self.device)).arrays().vectors

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor | None:
        """Return None, because the model does not read features of whole images. A model that reads the features
        overrides this method, and stacks them to (n, D)."""
        return None

    def objective(self, task: TrainingTask) -> LossFunction:
        """Return the loss that training minimises, which is the objective of `task` unless a subclass adds to it."""
        return task.objective

    def start_training(self, task: TrainingTask) -> Training:
        """Move the model to the device of `task`, and return its training, which has not begun."""
        model = self.to(task.device)
        train = task.train
        regions = required(train.regions)
        if clip := task.own_settings(FragmentTrainSettings).element_clip:
            clip_elements(model.network, clip)

        def draw(rows: np.ndarray) -> tuple[MultiVectors, Tensor | None, ArrangedFragments]:
            whole = task.draw_images(rows) if model.encoders else None
            fragments = model.arrange(train.sentences.take(rows))
            return stack_regions(model.region_view, regions, train.owners[rows]), whole, fragments

        plan = task.plan(model.network, draw, model.judge(task.dev), model.reloaded, model.objective(task))
        return Training(replace(plan, anchors=model.anchors()))

    def judge(self, dev: TrainingPairs) -> Callable[[], float]:
        """Return a function without arguments, which computes the sum of recall@1, @5 and @10 of both directions on
        `dev` in percent. The function uses the parameters that the network has at the time of the call."""
        regions = required(dev.regions)
        features = {name: dev.features[name][np.arange(len(regions))] for name in self.encoders}

        def score() -> float:
            images = self.embed_images(features, regions)
            sentences = self.embed_sentences(dev.sentences)
            scores = multivector_scores(images.on(self.device), sentences.on(self.device), self.rule)
            return recall_sum(rank_scores(scores.cpu().numpy(), dev.owners))

        return score


def stack_regions(view: RegionView, regions: RegionSource, rows: np.ndarray) -> MultiVectors:
    """Read the regions of the images with the row numbers `rows` (k,). The result has one vector per region, the
    features of the region stacked by `view`, and the boxes of the regions."""
    block = regions.packed(rows)
    return MultiVectors(torch.from_numpy(view.stack(block)), block.offsets, boxes=block.boxes)


def _in_blocks(embed: Callable[[np.ndarray], MultiVectors], count: int) -> MultiVectors:
    """Embed `count` rows by `embed(row numbers)`, at most BLOCK_ROWS at once, and join the results as arrays."""
    with torch.inference_mode():
        blocks = OomBatcher(BLOCK_ROWS, "row").map(lambda rows: embed(np.arange(rows.start, rows.stop)).arrays(), count)
        return MultiVectors.concatenate(blocks or [embed(np.arange(0)).arrays()])


def measure_regions(view: RegionView, regions: RegionSource) -> tuple[np.ndarray, float]:
    """Compute the mean (D,) of the features of all regions, stacked by `view`, and the root mean square length of these
    features minus the mean. There must be at least one region."""
    rows = (np.arange(start, min(start + BLOCK_ROWS, len(regions))) for start in range(0, len(regions), BLOCK_ROWS))
    return mean_and_spread(view.stack(regions.packed(some)) for some in rows)


class AlignedModel(FragmentModel):
    """The base class of models that map regions by Karpathy and Fei-Fei 2015, eq. 1, and sentences by an encoder.

    A subclass sets `sentence_encoder`, the class of the encoder. The arguments of this class are word vectors,
    dimensions, dropout, and a fourth argument, which differs between the encoders. The class variable `own` is the name
    of the fourth argument, and the method `learn` returns the value of this argument.
    """

    network_type: ClassVar[type[FragmentNetwork]] = FragmentNetwork
    sentence_encoder: ClassVar[type]
    own: ClassVar[str]

    @classmethod
    def learn(cls, task: TrainingTask) -> int | list[int]:
        """Return the value of the fourth argument of the sentence encoder, whose name is `cls.own`, from the settings
        or the training sentences of `task`. Every subclass overrides this method."""
        raise NotImplementedError

    @classmethod
    def build(
        cls, view: RegionView, mean: np.ndarray, scale: float, words: np.ndarray, shape: Settings, seed: int
    ) -> Self:
        """Create an untrained model.

        `mean` (D,) is the mean of the training regions, and `scale` the factor of RegionMap. `words` (V + 1, d) are
        word vectors, of which the last belongs to the unknown word. `shape` has `dimensions`, `dropout`, the `sum` of
        ScoreRule, and the value of the argument whose name is `cls.own`. `seed` decides the initial parameters.
        """
        dimensions = read_setting(shape, "dimensions", int)
        dropout = read_number(shape, "dropout")
        with seeded(seed):
            regions = RegionMap(torch.tensor(mean), torch.tensor(scale), dimensions, dropout)
            sentences = cls.sentence_encoder(torch.tensor(words), dimensions, dropout, shape[cls.own])
            return cls(view, cls.network_type(regions, sentences, ScoreRule(read_setting(shape, "sum", str), 0)))

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        view = required(task.region_view)
        mean, length = measure_regions(view, required(task.train.regions))
        shape = {**task.settings.model_dump(), cls.own: cls.learn(task)}
        model = cls.build(view, mean, 1 / length, required(task.words), shape, task.seed)
        model.network.sentences.words.requires_grad_(task.train_words)
        model.network.set_precision(task.precision)
        return model.start_training(task)

    def arrange(self, sentences: "WordForms") -> ArrangedFragments:
        return self.network.sentences.arrange(sentences)

    def settings(self) -> dict[str, Any]:
        shape = {"dimensions": len(self.network.regions.weight), self.own: getattr(self.network.sentences, self.own)}
        return {**self.region_view.settings(), **shape, "sum": self.rule.sum}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> Self:
        mean = tensors["regions.mean"]
        words = tensors["sentences.words"]
        model = cls.build(RegionView.from_dict(settings), mean, 1.0, words, {**settings, "dropout": 0}, seed=0)
        load_arrays(model.network, tensors)
        return model


class DVSA(AlignedModel):
    """The model `dvsa` of Karpathy and Fei-Fei 2015. A bidirectional RNN computes a vector for each word, and each word
    is scored with its best region.

    The model implements eq. 1 to 6, 8 and 9. Eq. 8 is the rule `words`. Eq. 9 is the loss `ranking` with all negatives
    of a batch and a margin of 1. The defaults are the rule `mean-words`, which does not favour long sentences, and the
    loss `info-nce`. With these defaults, the model learns far more in the same time.
    """

    sentence_encoder = RectifiedBRNN
    own = "hidden"

    @classmethod
    def learn(cls, task: TrainingTask) -> int:
        return task.own_settings(WordFragmentTrainSettings).hidden


class DepTree(AlignedModel):
    """A model whose fragments are the relations of dependency trees instead of words in context.

    It is "DepTree edges" of Karpathy and Fei-Fei 2015: a RelationNetwork with eq. 1, 8 and 9.
    """

    sentence_view = "dependency-trees"
    sentence_encoder = RelationNetwork
    own = "matrix_of"

    @classmethod
    def learn(cls, task: TrainingTask) -> list[int]:
        return learn_relations(task.train.sentences, task.own_settings(RelationFragmentTrainSettings).least_share)


class Defrag(DepTree):
    """The network of DepTree with the score of eq. 7, and the multiple-instance objective in addition to eq. 9.

    It is DeFrag of Karpathy and Fei-Fei 2015, Table 1, which is the model of Karpathy et al. 2014.
    """

    network_type = AlignedNetwork

    def objective(self, task: TrainingTask) -> LossFunction:
        return MultipleInstance(task.objective, task.own_settings(InstanceTrainSettings).instance_weight)


GROUNDED_TENSORS = ("region", "region_mean", "to_word")
"""Names of the tensors of GroundedNetwork that Towers lacks."""


class GroundedNetwork(Towers):
    """The network with the score S = weight * g(x) . g(y) + mean over words t of max over regions i of v_i . s_t.

    g, e_t and h_t are as in Towers. v_i = unit((x_i - mean_r) W_r) is the vector of the region with the stacked
    features x_i, and s_t = unit(e_t + Q h_t) is the vector of a word. `region` (D_r, c) is the initial W_r,
    `region_mean` (D_r,) is mean_r, and Q is initially zero. The other parameters begin as the `state` of trained
    RecurrentTowers. `rule` has the weight as `global_weight`. The formula is for the `sum` mean-words of `rule`, and
    the other values of `sum` combine the products v_i . s_t as ScoreRule describes. In contrast, eq. 8 of Karpathy and
    Fei-Fei 2015 sums over words, counts the whole image as one of the regions, and has vectors of any length.
    """

    region_mean: Tensor

    def __init__(
        self, state: Mapping[str, Tensor], region: Tensor, region_mean: Tensor, dropout: float, rule: ScoreRule
    ) -> None:
        towers = InitialTowers(*(state[name].clone() for name in InitialTowers._fields))
        super().__init__(towers, state["states.u_first"].shape[1], dropout)
        self.load_state_dict(state)
        self.region = nn.Parameter(region)
        self.rule = rule
        self.register_buffer("region_mean", region_mean)
        self.to_word = nn.Parameter(torch.zeros_like(self.to_whole))

    def embed_images(self, regions: MultiVectors, whole: Tensor) -> MultiVectors:
        """Embed n images, given the stacked features of their regions and of the `whole` images (n, D), with one vector
        per region and one global vector per image."""
        vectors = self.project(regions.tensor - self.region_mean, self.region)
        return replace(regions, vectors=vectors, globals=self.project_images(whole))

    def embed_sentences(self, packed: Packed) -> MultiVectors:
        """Embed n packed sentences, with one vector per word and one global vector per sentence."""
        words, states, whole = self.read(packed)
        each = by_sentence(functional.normalize(words + states @ self.to_word, dim=1), packed)
        return replace(each, globals=whole)

    def forward(self, regions: MultiVectors, whole: Tensor, packed: Packed) -> Tensor:
        """Score the n images of a batch (rows) with its n sentences (columns), and return (n, n), with the pairs on the
        diagonal."""
        return multivector_scores(self.embed_images(regions, whole), self.embed_sentences(packed), self.rule)


class GroundedFragments(FragmentModel):
    """A model of this project with the network GroundedNetwork.

    It starts as a trained `ncca-recurrent`, and weight decay pulls its parameters towards this start.
    """

    def __init__(self, view: ImageView, region_view: RegionView, network: GroundedNetwork) -> None:
        super().__init__(region_view, network)
        self.view = view

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    @property
    def unknown(self) -> int:
        return len(self.network.words) - 1

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """Return the training of the model that starts as `task.start`, a RecurrentCCA with the same image view."""
        settings = task.own_settings(FragmentTrainSettings)
        assert isinstance(task.start, RecurrentCCA)
        state = task.start.network.state_dict()
        rule = ScoreRule(settings.sum, settings.global_weight)
        network = GroundedNetwork(state, *_initial_regions(task, state["whole"]), settings.dropout, rule)
        network.set_precision(task.precision)
        return cls(task.view, required(task.region_view), network).start_training(task)

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor:
        return stack_on(self.view, features, self.device)

    def anchors(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}

    def settings(self) -> dict[str, Any]:
        regions = {f"region_{name}": value for name, value in self.region_view.settings().items()}
        return {**vars(self.view), **regions, **self.rule._asdict()}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "GroundedFragments":
        state = {name: torch.tensor(array) for name, array in tensors.items()}
        towers = {name: tensor for name, tensor in state.items() if name not in GROUNDED_TENSORS}
        rule = ScoreRule.from_dict({key: settings[key] for key in ScoreRule._fields})
        network = GroundedNetwork(towers, state["region"], state["region_mean"], dropout=0, rule=rule)
        views = {key.removeprefix("region_"): value for key, value in settings.items() if key.startswith("region_")}
        return cls(ImageView.from_dict(settings), RegionView.from_dict(views), load_arrays(network, tensors))


def _initial_regions(task: TrainingTask, whole: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the initial map of regions (D_r, c), and the mean of the training regions (D_r,).

    `whole` (D, c) is the image map of the model from which the training starts. The map of regions has the rows of
    `whole` that belong to the region encoders, followed by zeros for the geometry of regions.
    """
    view = required(task.region_view)
    mean, _ = measure_regions(view, required(task.train.regions))
    initial = whole[task.view.columns(view.features)]
    padding = initial.new_zeros(len(mean) - len(initial), initial.shape[1])
    return torch.cat([initial, padding]), torch.from_numpy(mean)
