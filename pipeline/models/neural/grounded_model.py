"""The registered model `fragments`: an ncca-recurrent that also looks at regions word by word."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import UsageError
from pipeline.models.linear.device_views import stack_on
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.fragment_models import FragmentModel, FragmentTrainer, measure_regions
from pipeline.models.neural.grounded import GroundedNetwork
from pipeline.models.neural.recurrent_refinement import RecurrentCCA
from pipeline.models.neural.region_views import RegionView
from pipeline.models.neural.task import TrainingTask
from pipeline.multivectors import ScoreRule


class GroundedFragments(FragmentModel):
    """Ours: see GroundedNetwork. Begins as an ncca-recurrent, and weight decay pulls it back to there."""

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
    def begin(cls, task: TrainingTask) -> FragmentTrainer:
        """At `task.start`, a RecurrentCCA. UsageError where there is none, or one of another view."""
        start, regions, settings = task.start, task.region_view, task.settings
        if not isinstance(start, RecurrentCCA) or start.view != task.view:
            raise UsageError("fragments starts from an ncca-recurrent with the same image view; train that again")
        if task.train.regions is None or set(regions.encoders) - set(task.view.encoders):
            raise UsageError("fragments needs regions of encoders that it has itself; correct regions.encoders")
        rule = ScoreRule(settings.sum, settings.global_weight)
        network = GroundedNetwork(start.network.state_dict(), *_begin_regions(task), settings.dropout, rule)
        network.set_precision(task.precision)
        return FragmentTrainer(cls(task.view, regions, network).to(task.device), task)

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
        towers = {name: tensor for name, tensor in state.items() if name not in ("region", "region_mean", "to_word")}
        rule = ScoreRule.from_dict(settings)
        network = GroundedNetwork(towers, state["region"], state["region_mean"], dropout=0, rule=rule)
        network.load_state_dict(state)
        views = {key.removeprefix("region_"): value for key, value in settings.items() if key.startswith("region_")}
        return cls(ImageView.from_dict(settings), RegionView.from_dict(views), network)


def _begin_regions(task: TrainingTask) -> tuple[Tensor, Tensor]:
    """The start's map of the regions' encoders (D_r, c) with nothing of their geometry, and the mean of the training
    regions (D_r,)."""
    columns = np.concatenate([task.view.columns([name]) for name in task.region_view.encoders])
    mean, _ = measure_regions(task.region_view, task.train.regions)
    whole = task.start.network.whole.detach()[columns]
    return torch.cat([whole, whole.new_zeros(len(mean) - len(whole), whole.shape[1])]), torch.from_numpy(mean)
