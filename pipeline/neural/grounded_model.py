"""The registered model `fragments`: a refined ncca that also looks at regions word by word."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.errors import UsageError
from pipeline.linear.device_views import stack_on
from pipeline.linear.views import ImageView
from pipeline.neural.fragment_models import Begun, FragmentModel, measure_regions
from pipeline.neural.fragment_scores import ScoreRule
from pipeline.neural.grounded import GroundedNetwork
from pipeline.neural.region_views import RegionView
from pipeline.neural.task import Task
from pipeline.neural.training import seeded
from pipeline.neural.word_towers import Towers, begin_towers


class GroundedFragments(FragmentModel):
    """Ours: see GroundedNetwork. Begins as a fitted ncca, and weight decay pulls it back to there."""

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
    def begin(cls, task: Task) -> Begun:
        """At the start that `task.start`, a WordStart, gives. UsageError where that is of another view."""
        towers, regions, settings = begin_towers(task, "fragments"), task.region_view, task.settings
        if task.train.regions is None or set(regions.encoders) - set(task.view.encoders):
            raise UsageError(
                "fragments needs regions of encoders that its row has; see regions.encoders, and --regions"
            )
        with seeded(task.seed):
            rule = ScoreRule(settings.sum, settings.global_weight)
            network = GroundedNetwork(towers, *_begin_regions(task), settings.hidden, settings.dropout, rule)
        network.set_precision(task.precision)
        return Begun(cls(task.view, regions, network).to(task.device), task)

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor:
        return stack_on(self.view, features, self.device)

    def anchors(self) -> dict[str, Tensor]:
        network = self.network
        return {name: getattr(network, name).detach().clone() for name in ("whole", "region", "words", "bias")}

    def settings(self) -> dict[str, Any]:
        regions = {f"region_{name}": value for name, value in self.region_view.settings().items()}
        return {**vars(self.view), **regions, "hidden": self.network.hidden, **self.rule._asdict()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "GroundedFragments":
        """The model that `settings` and `tensors` came from."""
        towers = Towers(*(torch.tensor(tensors[name]) for name in Towers._fields))
        regions = (torch.tensor(tensors[name]) for name in ("region", "region_mean"))
        network = GroundedNetwork(towers, *regions, settings["hidden"], dropout=0, rule=ScoreRule.from_dict(settings))
        network.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
        views = {key.removeprefix("region_"): value for key, value in settings.items() if key.startswith("region_")}
        return cls(ImageView.from_dict(settings), RegionView.from_dict(views), network)


def _begin_regions(task: Task) -> tuple[Tensor, Tensor]:
    """The start's map of the regions' encoders (D_r, c), whose scale does not count, with nothing of their geometry;
    and the mean of the training regions (D_r,)."""
    start = task.start.model
    columns = np.concatenate([start.view.columns([name]) for name in task.region_view.encoders])
    w = (start.directions.w * start.directions.values**start.eigenvalue_power)[columns]
    mean, _ = measure_regions(task.region_view, task.train.regions)
    region = np.vstack([w, np.zeros((len(mean) - len(columns), w.shape[1]), w.dtype)]).astype(np.float32)
    return torch.from_numpy(region), torch.from_numpy(mean)
