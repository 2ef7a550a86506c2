"""The registered model `fragments`: a refined ncca that also looks at regions word by word."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from pipeline.errors import UsageError
from pipeline.linear.views import ImageView
from pipeline.neural.fragment_models import Begun, FragmentModel, measure_regions
from pipeline.neural.fragment_scores import ScoreRule
from pipeline.neural.grounded import GroundedNetwork, Towers
from pipeline.neural.refinement import SENTENCE_LENGTH
from pipeline.neural.region_views import RegionView
from pipeline.neural.task import Task
from pipeline.neural.training import seeded
from pipeline.text.sequences import Tokens

SAMPLE = 4096
"""Images, or sentences, that lengths are measured on."""


@dataclass(frozen=True)
class WordStart:
    """A fitted ncca with the terms that it knows every word by: `terms` (V + 1, d) tf-idf of each word of the token
    vocabulary alone, not of unit length; a row of zeros for the unknown word."""

    model: Any
    terms: sparse.csr_array


class GroundedFragments(FragmentModel):
    """Ours: see GroundedNetwork. Begins as a fitted ncca, and weight decay pulls it back to there."""

    starts_from_words = True

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
        start, regions = task.start, task.region_view
        if start is None or start.model.view != task.view:
            raise UsageError(
                "fragments starts from an ncca row with the same encoders and training target; give its folder as"
                " --start"
            )
        if task.train.regions is None or set(regions.encoders) - set(task.view.encoders):
            raise UsageError(
                "fragments needs regions of encoders that its row has; see regions.encoders, and --regions"
            )
        settings = task.settings
        with seeded(task.seed):
            rule = ScoreRule(settings.sum, settings.global_weight)
            network = GroundedNetwork(_begin_towers(task), settings.hidden, settings.dropout, rule)
        network.precision = network.states.precision = task.precision
        return Begun(cls(task.view, regions, network), task)

    def stack(self, features: Mapping[str, np.ndarray]) -> Tensor:
        return torch.from_numpy(self.view.stack(features))

    def anchors(self) -> dict[str, Tensor]:
        network = self.network
        return {name: getattr(network, name).detach().clone() for name in ("whole", "region", "words", "bias")}

    def settings(self) -> dict[str, Any]:
        regions = {f"region_{name}": value for name, value in self.region_view.settings().items()}
        hidden = self.network.states.u_first.shape[1]
        return {**vars(self.view), **regions, "hidden": hidden, **self.rule._asdict()}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "GroundedFragments":
        """The model that `settings` and `tensors` came from."""
        towers = Towers(*(torch.tensor(tensors[name]) for name in Towers._fields))
        network = GroundedNetwork(towers, settings["hidden"], dropout=0, rule=ScoreRule.from_dict(settings))
        network.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
        regions = {key.removeprefix("region_"): value for key, value in settings.items() if key.startswith("region_")}
        return cls(ImageView.from_dict(settings), RegionView.from_dict(regions), network)


def _begin_towers(task: Task) -> Towers:
    """The start's two sides, each scaled by one number as in `ncca-refined`; regions have their encoders' columns, and
    their geometry tells nothing yet."""
    start, train = task.start.model, task.train
    power = start.directions.values**start.eigenvalue_power
    w, u = start.directions.w * power, task.start.terms @ (start.directions.u * power)
    columns = np.concatenate([start.view.columns([name]) for name in task.region_view.encoders])
    region_mean, _ = measure_regions(task.region_view, train.regions)
    of_regions = np.vstack([w[columns], np.zeros((len(region_mean) - len(columns), w.shape[1]), w.dtype)])
    images = np.arange(train.n_images)[:: max(1, train.n_images // SAMPLE)]
    x = (task.view.stack(train.images(images)) - start.mean_x) @ w
    sums = _sum_words(u, train.sentences.take(np.arange(len(train.sentences))[:: max(1, len(train.owners) // SAMPLE)]))
    bias = sums.mean(axis=0)
    shrink = SENTENCE_LENGTH / _rms(sums - bias)
    parts = (w / _rms(x), start.mean_x, of_regions, region_mean, u * shrink, bias * shrink)
    return Towers(*(torch.from_numpy(np.ascontiguousarray(part, np.float32)) for part in parts))


def _sum_words(u: np.ndarray, sentences: Tokens) -> np.ndarray:
    """(n, c) the sum of the vectors of each sentence's words."""
    sums = np.zeros((len(sentences), u.shape[1]), np.float32)
    np.add.at(sums, np.repeat(np.arange(len(sentences)), sentences.lengths), u[sentences.ids])
    return sums


def _rms(x: np.ndarray) -> float:
    """Root mean square length of the rows."""
    return float(np.sqrt(max(np.square(x).sum(axis=1).mean(), np.finfo(np.float32).tiny)))
