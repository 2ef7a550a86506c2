"""The registered multi-vector models: dvsa, deptree and defrag (Karpathy and Fei-Fei 2015), and `fragments`, an
ncca-recurrent that also compares regions with words."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compute.device import OomBatcher, place
from pipeline.compute.multivectors import MultiVectors, ScoreRule
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.device import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragments import (
    AlignedNetwork,
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
from pipeline.models.neural.task import (
    RegionBlock,
    RegionSource,
    RegionView,
    TrainingPairs,
    TrainingTask,
    mean_and_spread,
)
from pipeline.models.neural.training import Training, seeded
from pipeline.models.neural.word_towers import InitialTowers, RecurrentTowers
from pipeline.text.sequences import Tokens
from pipeline.text.trees import Trees

BLOCK = 256
"""Images, or sentences, embedded at once."""


class FragmentModel(NetworkModel):
    """An image becomes one vector a region, a sentence one vector a word or a relation; `rule` turns them into one
    score."""

    multi_vector = True
    metric: ClassVar[str] = "inner_product"
    encoders: tuple[str, ...] = ()
    """Encoders whose features of whole images are read beside the regions'."""

    def __init__(self, region_view: RegionView, network: FragmentNetwork) -> None:
        self.region_view, self.network = region_view, network.eval()

    @property
    def region_encoders(self) -> tuple[str, ...]:
        return self.region_view.encoders

    @property
    def rule(self) -> ScoreRule:
        return self.network.rule

    def embed_images(self, features: Mapping[str, np.ndarray], regions: RegionSource) -> MultiVectors:
        """The images of `regions`, in float32 arrays; `features`, encoder -> (n, dim), are of `encoders`."""

        def embed(rows: np.ndarray) -> MultiVectors:
            whole = self.stack({name: block[rows] for name, block in features.items()})
            parts = (stack_regions(self.region_view, regions, rows), whole)
            return self.network.embed_images(*place(parts, self.device))

        return _in_blocks(embed, len(regions))

    def arrange(self, sentences: Any) -> Any:
        """The form of some sentences that the network takes."""
        return pack(sentences, self.unknown)

    def embed_sentences(self, sentences: Tokens | Trees) -> MultiVectors:
        """One vector a fragment, in float32 arrays; a sentence without words has the unknown word's vector."""

        def embed(rows: np.ndarray) -> MultiVectors:
            return self.network.embed_sentences(place(self.arrange(sentences.take(rows)), self.device))

        return _in_blocks(embed, len(sentences))

    def embed_phrases(self, phrases: Tokens) -> np.ndarray:
        """(p, c) float32 of noun phrases: by the rules `words` and `mean-words` the score of a phrase with one region
        alone is the product of the region's vector with the sum, or the mean, of the words' (Niu et al. 2017, section
        5.2: every pair on its own)."""
        words = self.embed_sentences(phrases)
        sums = np.zeros((len(phrases), words.vectors.shape[1]), np.float32)
        np.add.at(sums, words.owners, words.vectors)
        return sums / words.lengths[:, None] if self.rule.sum == "mean-words" else sums

    def embed_regions(self, block: RegionBlock) -> np.ndarray:
        """(r, c) float32 of regions whose features are of the model's encoders, in its order."""
        x = torch.from_numpy(self.region_view.stack(block))
        with torch.inference_mode():
            regions = MultiVectors(x, block.offsets, boxes=block.boxes)
            return self.network.embed_images(*place((regions, None), self.device)).arrays().vectors

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor | None:
        """(n, D) the view of whole images; None for a model without one."""
        return None

    def objective(self, task: TrainingTask) -> Callable[[Any, Tensor], Tensor]:
        """What training minimises."""
        return task.objective

    def start_training(self, task: TrainingTask) -> Training:
        """The training loop of this model, on the task's device."""
        model, train = self.to(task.device), task.train
        clip = task.settings.element_clip
        for parameter in model.network.parameters() if clip else ():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient.clamp(-clip, clip))

        def draw(rows: np.ndarray) -> tuple[MultiVectors, Tensor | None, Any]:
            whole = task.draw_images(rows) if model.encoders else None
            fragments = model.arrange(train.sentences.take(rows))
            return stack_regions(model.region_view, train.regions, train.owners[rows]), whole, fragments

        return task.training(
            model.network,
            draw,
            model.objective(task),
            judge=model.judge(task.dev),
            anchors=model.anchors(),
            finish=model.reloaded,
        )

    def judge(self, dev: TrainingPairs) -> Callable[[], float]:
        """A function that gives the recall sum on `dev` of the parameters at the time."""
        features = {name: dev.features[name][np.arange(len(dev.regions))] for name in self.encoders}

        def score() -> float:
            sides = self.embed_images(features, dev.regions), self.embed_sentences(dev.sentences)
            scores = multivector_scores(*(side.on(self.device) for side in sides), self.rule)
            return recall_sum(rank_scores(scores.cpu().numpy(), dev.owners))

        return score


def stack_regions(view: RegionView, regions: RegionSource, rows: np.ndarray) -> MultiVectors:
    """The regions of the images `rows`, each encoder's features normalised on their own."""
    block = regions.packed(rows)
    return MultiVectors(torch.from_numpy(view.stack(block)), block.offsets, boxes=block.boxes)


def _in_blocks(embed: Callable[[np.ndarray], MultiVectors], count: int) -> MultiVectors:
    """`embed(rows)` of all `count` rows, BLOCK at a time."""
    with torch.inference_mode():
        blocks = OomBatcher(BLOCK, "row").map(lambda rows: embed(np.arange(rows.start, rows.stop)).arrays(), count)
        return MultiVectors.concatenate(blocks or [embed(np.arange(0)).arrays()])


def measure_regions(view: RegionView, regions: RegionSource) -> tuple[np.ndarray, float]:
    """The mean (D,) of all regions, and the root mean square length after subtracting it."""
    rows = (np.arange(start, min(start + BLOCK, len(regions))) for start in range(0, len(regions), BLOCK))
    return mean_and_spread(view.stack(regions.packed(some)) for some in rows)


class AlignedModel(FragmentModel):
    """Regions by Karpathy and Fei-Fei 2015, eq. 1, and sentences by a `sentence_encoder`; its argument and attribute
    `own` is what `learn` finds, beside word vectors, the dimensions and dropout."""

    network_type: ClassVar[type[FragmentNetwork]] = FragmentNetwork
    sentence_encoder: ClassVar[type]
    own: ClassVar[str]

    @classmethod
    def learn(cls, task: TrainingTask) -> Any:
        raise NotImplementedError

    @classmethod
    def build(
        cls, view: RegionView, mean: np.ndarray, scale: float, words: np.ndarray, shape: Mapping[str, Any], seed: int
    ) -> Self:
        """Untrained, on the training regions' `mean` (D,) and word vectors (V + 1, d), the unknown word's last; `shape`
        are `dimensions`, `dropout`, `sum` and `own`."""
        sizes = shape["dimensions"], shape["dropout"]
        with seeded(seed):
            regions = RegionMap(torch.tensor(mean), torch.tensor(scale), *sizes)
            sentences = cls.sentence_encoder(torch.tensor(words), *sizes, shape[cls.own])
            return cls(view, cls.network_type(regions, sentences, ScoreRule(shape["sum"], 0)))

    @classmethod
    def trainer(cls, task: TrainingTask) -> Training:
        """The training loop of an untrained model."""
        mean, length = measure_regions(task.region_view, task.train.regions)
        shape = {**task.settings.model_dump(), cls.own: cls.learn(task)}
        model = cls.build(task.region_view, mean, 1 / length, task.words, shape, task.seed)
        model.network.sentences.words.requires_grad_(task.train_words)
        model.network.set_precision(task.precision)
        return model.start_training(task)

    def arrange(self, sentences: Any) -> Any:
        return self.network.sentences.arrange(sentences)

    def settings(self) -> dict[str, Any]:
        shape = {"dimensions": len(self.network.regions.weight), self.own: getattr(self.network.sentences, self.own)}
        return {**self.region_view.settings(), **shape, "sum": self.rule.sum}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Self:
        """The model that `settings` and `tensors` came from."""
        mean, words = tensors["regions.mean"], tensors["sentences.words"]
        model = cls.build(RegionView.from_dict(settings), mean, 1.0, words, {**settings, "dropout": 0}, seed=0)
        load_arrays(model.network, tensors)
        return model


class DVSA(AlignedModel):
    """A bidirectional recurrent network over words, each word scored by its best region: Karpathy and Fei-Fei 2015, eq.
    1 to 6, 8 and 9.

    Eq. 8 is the rule `words`, eq. 9 the objective `ranking` with `all` negatives of a batch and margin 1. The defaults
    are `mean-words`, which does not favour long sentences, and `info-nce`: both learn far more in equal time.
    """

    sentence_encoder, own = RectifiedBRNN, "hidden"

    @classmethod
    def learn(cls, task: TrainingTask) -> int:
        return task.settings.hidden


class DepTree(AlignedModel):
    """The relations of a dependency tree in place of words in their context ("DepTree edges"): RelationNetwork, and Eq.
    1, 8 and 9 of Karpathy and Fei-Fei 2015."""

    sentence_view = "dependency-trees"
    sentence_encoder, own = RelationNetwork, "matrix_of"

    @classmethod
    def learn(cls, task: TrainingTask) -> list[int]:
        return learn_relations(task.train.sentences, task.settings.least_share)


class Defrag(DepTree):
    """The same network with the score of eq. 7 and the multiple-instance objective beside eq. 9: the DeFrag of Karpathy
    and Fei-Fei's Table 1, after Karpathy et al. 2014."""

    network_type = AlignedNetwork

    def objective(self, task: TrainingTask) -> Callable[[Any, Tensor], Tensor]:
        return MultipleInstance(task.objective, task.settings.instance_weight)


OWN = ("region", "region_mean", "to_word")
"""The tensors that RecurrentTowers does not have."""


class GroundedNetwork(RecurrentTowers):
    """S = weight * g(x) . g(y) + mean over words t of max over regions i of v_i . s_t.

    g, e_t and h_t are those of RecurrentTowers; v_i = unit((x_i - mean_r) W_r) is of a region, s_t = unit(e_t + Q h_t)
    of a word. `region` (D_r, c) is the initial W_r, `region_mean` (D_r,) is mean_r; Q is initially zero, and all else
    is the `state` of trained RecurrentTowers. Unlike here, in Karpathy and Fei-Fei 2015, eq. 8, the whole image is one
    of the regions inside the maximum, vectors have any length, and words are summed.
    """

    def __init__(
        self, state: Mapping[str, Tensor], region: Tensor, region_mean: Tensor, dropout: float, rule: ScoreRule
    ) -> None:
        towers = InitialTowers(*(state[name].clone() for name in InitialTowers._fields))
        super().__init__(towers, state["states.u_first"].shape[1], dropout)
        self.load_state_dict(state)
        self.region, self.rule = nn.Parameter(region), rule
        self.register_buffer("region_mean", region_mean)
        self.to_word = nn.Parameter(torch.zeros_like(self.to_whole))

    def embed_images(self, regions: MultiVectors, whole: Tensor) -> MultiVectors:
        """From the stacked features of regions and of whole images."""
        vectors = self.project(regions.vectors - self.region_mean, self.region)
        return replace(regions, vectors=vectors, globals=super().embed_images(whole))

    def embed_sentences(self, packed: Packed) -> MultiVectors:
        words, states, whole = self.read(packed)
        each = by_sentence(functional.normalize(words + states @ self.to_word, dim=1), packed)
        return replace(each, globals=whole)

    def forward(self, regions: MultiVectors, whole: Tensor, packed: Packed) -> Tensor:
        """(n, n) scores."""
        return multivector_scores(self.embed_images(regions, whole), self.embed_sentences(packed), self.rule)


class GroundedFragments(FragmentModel):
    """Our own: see GroundedNetwork. Starts as an ncca-recurrent; weight decay pulls it back there."""

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
        """The training loop of the model that `task.start`, a RecurrentCCA with the same image view, begins."""
        regions, settings = task.region_view, task.settings
        rule = ScoreRule(settings.sum, settings.global_weight)
        network = GroundedNetwork(task.start.network.state_dict(), *_initial_regions(task), settings.dropout, rule)
        network.set_precision(task.precision)
        return cls(task.view, regions, network).start_training(task)

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor:
        return stack_on(self.view, features, self.device)

    def anchors(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}

    def settings(self) -> dict[str, Any]:
        regions = {f"region_{name}": value for name, value in self.region_view.settings().items()}
        return {**vars(self.view), **regions, **self.rule._asdict()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "GroundedFragments":
        """The model that `settings` and `tensors` came from."""
        state = {name: torch.tensor(array) for name, array in tensors.items()}
        towers = {name: tensor for name, tensor in state.items() if name not in OWN}
        rule = ScoreRule.from_dict(settings)
        network = GroundedNetwork(towers, state["region"], state["region_mean"], dropout=0, rule=rule)
        views = {key.removeprefix("region_"): value for key, value in settings.items() if key.startswith("region_")}
        return cls(ImageView.from_dict(settings), RegionView.from_dict(views), load_arrays(network, tensors))


def _initial_regions(task: TrainingTask) -> tuple[Tensor, Tensor]:
    """The start's map of the regions' encoders (D_r, c), zero for their geometry, and the mean of the training regions
    (D_r,)."""
    columns = task.view.columns(task.region_view.features)
    mean, _ = measure_regions(task.region_view, task.train.regions)
    whole = task.start.network.whole.detach()[columns]
    return torch.cat([whole, whole.new_zeros(len(mean) - len(whole), whole.shape[1])]), torch.from_numpy(mean)
