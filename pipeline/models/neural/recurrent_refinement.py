"""The registered model `ncca-recurrent`: a refined ncca whose sentence tower also reads the words in their order."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import TrainingTask
from pipeline.models.neural.training import seeded
from pipeline.models.neural.word_models import GlobalModel
from pipeline.models.neural.word_towers import InitialTowers, RecurrentTowers, begin_towers


class RecurrentCCA(GlobalModel):
    """Ours: see RecurrentTowers. Begins as a fitted ncca, and weight decay pulls it back to there."""

    def __init__(self, view: ImageView, network: RecurrentTowers) -> None:
        self.view, self.network = view, network.eval()
        self.metric = "inner_product"

    @classmethod
    def untrained(cls, task: TrainingTask) -> "RecurrentCCA":
        """At the start that `task.start`, a WordStart, gives. UsageError where that is of another view."""
        towers, settings = begin_towers(task, "ncca-recurrent"), task.settings
        with seeded(task.seed):
            network = RecurrentTowers(towers, settings.hidden, settings.dropout)
        network.set_precision(task.precision)
        return cls(task.view, network)

    @property
    def dim(self) -> int:
        return self.network.words.shape[1]

    @property
    def unknown(self) -> int:
        return len(self.network.words) - 1

    def anchors(self) -> dict[str, Tensor]:
        return {name: getattr(self.network, name).detach().clone() for name in ("whole", "words", "bias")}

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "hidden": self.network.hidden}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "RecurrentCCA":
        """The model that `settings` and `tensors` came from."""
        towers = InitialTowers(*(torch.tensor(tensors[name]) for name in InitialTowers._fields))
        network = RecurrentTowers(towers, settings["hidden"], dropout=0)
        network.load_state_dict({name: torch.tensor(array) for name, array in tensors.items()})
        return cls(ImageView.from_dict(settings), network)
