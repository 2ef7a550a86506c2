"""The registered model `fragments`: an ncca-recurrent that also compares regions with words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.errors import UsageError
from pipeline.metrics.multivector_scores import multivector_scores
from pipeline.models.linear.device_views import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragment_models import FragmentModel, measure_regions
from pipeline.models.neural.fragments import by_sentence
from pipeline.models.neural.networks import load_arrays
from pipeline.models.neural.packing import Packed
from pipeline.models.neural.region_views import RegionView
from pipeline.models.neural.task import Trainer, TrainingTask
from pipeline.models.neural.word_towers import InitialTowers, RecurrentCCA, RecurrentTowers
from pipeline.multivectors import MultiVectors, ScoreRule

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
    def trainer(cls, task: TrainingTask) -> Trainer:
        """The model of `task.start`, a RecurrentCCA, with its training loop. UsageError if there is no start, or one of
        another view."""
        start, regions, settings = task.start, task.region_view, task.settings
        if not isinstance(start, RecurrentCCA) or start.view != task.view:
            raise UsageError("fragments starts from an ncca-recurrent with the same image view; train that again")
        if task.train.regions is None or set(regions.encoders) - set(task.view.encoders):
            raise UsageError("fragments needs regions of its own encoders; correct regions.encoders")
        rule = ScoreRule(settings.sum, settings.global_weight)
        network = GroundedNetwork(start.network.state_dict(), *_initial_regions(task), settings.dropout, rule)
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
    columns = np.concatenate([task.view.columns([name]) for name in task.region_view.encoders])
    mean, _ = measure_regions(task.region_view, task.train.regions)
    whole = task.start.network.whole.detach()[columns]
    return torch.cat([whole, whole.new_zeros(len(mean) - len(whole), whole.shape[1])]), torch.from_numpy(mean)
