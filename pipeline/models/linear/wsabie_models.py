"""The registered models `wsabie-sgd` and `wsabie-adagrad`: Wsabie with learning rate and alpha chosen on dev."""

from typing import ClassVar

import numpy as np
from scipy import sparse

from pipeline.errors import UsageError
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.columns import as_sparse, stack_blocks
from pipeline.models.linear.feature_maps import project
from pipeline.models.linear.projection import Directions, LinearModel, unit_rows
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import GridTrial, Tuned, paired_correlations
from pipeline.models.linear.wsabie import EarlyStopping, WsabieSchedule, train

INTERVAL = 2
"""Epochs between two looks at dev."""
PATIENCE = 5
"""Looks at dev without a better one, after which training stops."""


class WsabieSGD(LinearModel):
    """Wsabie by stochastic gradient descent, with cosine similarity at retrieval (Gong et al. 2014, eq. 3 and 4).

    Paper to code: W `w`, U `u`, alpha `max_norm`, c `dimensions`. Training centres only the images; retrieval centres
    both views.
    """

    metric = "inner_product"
    adaptive: ClassVar[bool] = False

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """To unit length."""
        return unit_rows(projected)

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """The best learning rate and alpha, stopped early on dev: of all pairs or, by `search` lines, of all rates at
        the middle alpha and then all alphas at the best rate; with `task.chosen`, those, for as many epochs as were
        best then. UsageError unless training is `target`."""
        if task.training != "target":
            raise UsageError(f"Wsabie learns from target pairs only, not by training {task.training}; take ncca")
        settings, moments, dev = task.settings, task.sets.target, task.dev
        mean_x, mean_y = moments.mean_x.astype(np.float32), moments.mean_y.astype(np.float32)
        images, sentences, owners = _gather(task, mean_x)
        dev_x, dev_y = task.view.stack(dev.features), as_sparse(task.text.stack(dev.sentences))

        def embed(found: Directions) -> tuple[np.ndarray, np.ndarray]:
            return project([dev_x], mean_x, found.w), project([dev_y], mean_y, found.u)

        def score(found: Directions) -> float:
            return recall_sum(count_ranks(*map(unit_rows, embed(found)), dev.owners, cls.metric))

        rates, norms = settings.learning_rate, settings.max_norm
        tried = [(rate, norms[len(norms) // 2]) for rate in rates]
        epochs, interval = settings.epochs, INTERVAL
        if task.chosen:
            tried = [(task.chosen.transfer["learning_rate"], task.chosen.transfer["max_norm"])]
            epochs = interval = task.chosen.transfer["epochs"]  # only the last epoch is scored
        trials: list[GridTrial] = []
        best: tuple[GridTrial, Directions] | None = None

        def attempt(rate: float, norm: float) -> None:
            nonlocal best
            schedule = WsabieSchedule(epochs, rate, norm, cls.adaptive, settings.dimensions, task.seed)
            watch = EarlyStopping(score, interval, PATIENCE, epochs)
            train(images, sentences, owners, schedule, watch=watch)
            chosen = {"learning_rate": rate, "max_norm": norm, "epochs": watch.best_epoch}
            score_at_best, weights = watch.scores[watch.best_epoch], task.text.weight_of
            trials.append(GridTrial(0.0, 0.0, settings.dimensions, 0.0, score_at_best, weights, chosen))
            if best is None or trials[-1].recall_sum > best[0].recall_sum:
                best = trials[-1], watch.best

        for rate, norm in task.progress(tried):
            attempt(rate, norm)
        if not task.chosen:
            rate = best[0].transfer["learning_rate"]
            for norm in task.progress([norm for norm in norms if (rate, norm) not in tried]):
                attempt(rate, norm)
        chosen, found = best
        a, b = project([images], np.zeros_like(mean_x), found.w)[owners], project([sentences], mean_y, found.u)
        dev_a, dev_b = embed(found)
        correlations = paired_correlations(a, b), paired_correlations(dev_a[dev.owners], dev_b)
        return Tuned(cls(task.view, task.text, mean_x, mean_y, found), chosen, tuple(trials), *correlations)


class WsabieAdaGrad(WsabieSGD):
    """Wsabie with AdaGrad steps (Gong et al. 2014, section 3)."""

    adaptive = True


def _gather(task: FitTask, mean_x: np.ndarray) -> tuple[np.ndarray, sparse.csr_array, np.ndarray]:
    """All target pairs: centred images (n, D), sentences (m, d) as one sparse matrix, owners (m,)."""
    blocks = list(task.sets.target_blocks())
    starts = np.cumsum([0] + [len(block.x) for block in blocks])
    owners = [block.owners + start for block, start in zip(blocks, starts, strict=False)]
    images = np.concatenate([block.x for block in blocks]) - mean_x
    return images, as_sparse(stack_blocks([block.y for block in blocks])), np.concatenate(owners)
