"""The registered model `asif`, which represents an image or a sentence by its similarities with training pairs."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from pipeline.metrics.ranks import rank_scores
from pipeline.metrics.retrieval import mean_rank, recall_sum
from pipeline.models.joint_model import Settings, read_number
from pipeline.models.linear.feature_maps import mapped_columns, project
from pipeline.models.linear.projection import Directions, LinearModel, unit_rows
from pipeline.models.linear.training import FitTask
from pipeline.models.linear.tuning import Choices, GridTrial, Tuned, paired_correlations
from pipeline.models.linear.views import one_matrix, stack_blocks


class ASIF(LinearModel):
    """Relative representations of images and sentences (ASIF, Norelli et al. 2023, section 2).

    The anchors are n training pairs of an image and a sentence. An image is represented by its cosines with the images
    of the anchors, and a sentence by its cosines with the sentences of the anchors. The k greatest cosines of each
    image or sentence are kept, raised to the power p, and scaled to unit length. All other cosines and all negative
    cosines become 0. Pair i gives column i of both representations, so that an image and a sentence are close if they
    resemble the same pairs.

    The columns of `directions.w` (D, n) are the images of the anchors, and the columns of `directions.u` (d, n) are the
    sentences of the anchors, all scaled to unit length. k is `nonzero`, and p is `eigenvalue_power`. The paper does not
    centre the vectors. Here, the score on dev decides whether the mean of the training pairs is subtracted from all
    vectors.
    """

    metric = "inner_product"
    nonzero = 0

    @classmethod
    def fit(cls, task: FitTask) -> Tuned:
        """Draw the anchors at random from the target pairs, and choose k, p and the centring on dev. Return the best
        model, and all trials. If `task.chosen` is not None, a model is fitted with the values of the trial
        `task.chosen`, and nothing is chosen."""
        x, y = _draw_anchors(task)
        dev_x = mapped_columns(task.view.stack(task.dev.features), None)
        dev_y = mapped_columns(task.text.stack(task.dev.sentences), None)
        trials = []
        best = None
        for centred in (False, True) if task.chosen is None else (bool(task.chosen.transfer["centred"]),):
            mean_x = task.sets.target.mean_x.astype(np.float32) * centred
            mean_y = task.sets.target.mean_y.astype(np.float32) * centred
            directions = Directions(unit_rows(x - mean_x).T, unit_rows(y - mean_y).T, np.ones(len(x), np.float32))
            images = project(dev_x, mean_x, directions.w)
            sentences = project(dev_y, mean_y, directions.u)
            for choices, power in task.progress(list(_combinations(task, centred, len(x)))):
                nonzero = int(choices["nonzero"])
                scores = (relate(images, nonzero, power) @ relate(sentences, nonzero, power).T).toarray()
                ranks = rank_scores(scores, task.dev.owners)
                trial = GridTrial(
                    0.0, 0.0, len(x), power, recall_sum(ranks), task.text.weight_of, choices, mean_rank=mean_rank(ranks)
                )
                trials.append(trial)
                if best is None or trial.merit() > best[0].merit():
                    model = cls(task.view, task.text, mean_x, mean_y, directions, power)
                    model.nonzero = nonzero
                    correlations = paired_correlations(images[task.dev.owners], sentences)
                    best = trial, model, correlations
        assert best is not None
        return Tuned(best[1], best[0], tuple(trials), np.ones(1), best[2])

    def _finish(self, projected: np.ndarray) -> np.ndarray:
        return relate(projected, self.nonzero, self.eigenvalue_power).toarray()

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "nonzero": self.nonzero}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> LinearModel:
        model = super().from_parts(settings, tensors)
        assert isinstance(model, cls)
        model.nonzero = int(read_number(settings, "nonzero"))
        if model.nonzero < 1:
            raise ValueError(
                f"The stored setting nonzero is {model.nonzero}, but must be at least 1. Fit the model again."
            )
        return model


def relate(cosines: np.ndarray, nonzero: int, power: float) -> csr_array:
    """Return the relative representations (n, a) of n items as a sparse matrix.

    Row i of `cosines` (n, a) is proportional to the cosines of item i with the a anchors. The `nonzero` greatest
    numbers of each row are raised to `power`, and the row is scaled to unit length. All other numbers and all negative
    numbers become 0, so a row without a positive number becomes a row of zeros.
    """
    nonzero = min(nonzero, cosines.shape[1])
    kept = np.argpartition(cosines, -nonzero, axis=1)[:, -nonzero:]
    values = np.maximum(np.take_along_axis(cosines, kept, axis=1), 0)
    values /= np.maximum(values.max(axis=1, keepdims=True, initial=0), np.finfo(np.float32).tiny)
    values = unit_rows(values**power)
    return csr_array((values.ravel(), kept.ravel(), np.arange(0, kept.size + 1, nonzero)), shape=cosines.shape)


def _combinations(task: FitTask, centred: bool, anchors: int) -> Iterator[tuple[Choices, float]]:
    """Yield for each trial its choices and its power p. The choices map `nonzero` to k, which is at most the number of
    `anchors`. They map `centred` to 1 if the argument `centred` is true, and otherwise to 0. If `task.chosen` is not
    None, only the choices and the power of this trial are yielded."""
    if task.chosen:
        yield task.chosen.transfer, task.chosen.eigenvalue_power
        return
    numbers = sorted({min(number, anchors) for number in task.settings.nonzero})
    for nonzero, power in itertools.product(numbers, task.settings.power):
        yield {"nonzero": nonzero, "centred": float(centred)}, power


def _draw_anchors(task: FitTask) -> tuple[np.ndarray, np.ndarray]:
    """Draw `task.settings.anchors` target pairs at random, or all pairs if there are fewer. Return the images (n, D)
    and the sentences (n, d) of the n pairs as dense arrays, normalised by the views."""
    count = int(task.sets.target.n)
    drawn = np.sort(np.random.default_rng(task.seed).permutation(count)[: task.settings.anchors])
    images = []
    sentences = []
    start = 0
    for block in task.sets.target_blocks():
        first, last = np.searchsorted(drawn, [start, start + len(block.owners)])
        rows = drawn[first:last] - start
        images.append(block.x[block.owners[rows]])
        sentences.append(block.y[rows])
        start += len(block.owners)
    y = one_matrix(stack_blocks(sentences))
    return np.concatenate(images), y if isinstance(y, np.ndarray) else y.toarray()
