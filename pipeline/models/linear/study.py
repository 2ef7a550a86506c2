"""Studies, which fill the tables of Gong et al. 2014: measurements of models that are trained on target and auxiliary
sets of chosen sizes, in several draws of these sets."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import process_time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pipeline.config.models import FitSettings, TransferSettings
from pipeline.config.registry import model_spec
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import CUTOFFS, select_sentences
from pipeline.models.linear.sets import FoldedMoments, PairSource, Restriction, make_sets
from pipeline.models.linear.training import FitTask, fit_best
from pipeline.models.linear.tuning import Choices, Tuned
from pipeline.models.linear.views import NumberedPairBlock, PairBlock, weightings

if TYPE_CHECKING:
    import torch


PROTOCOL = "first-sentence"
"""The protocol by which studies are measured: the gallery has the first sentence of each test image, as in Gong et al.
2014."""
SHOWN_IMAGES = 12
"""Maximum number of test images whose nearest sentences are kept in the result of a study as examples."""
SHOWN_SENTENCES = 5
"""Number of nearest sentences that are kept for each of the SHOWN_IMAGES example images."""


@dataclass(frozen=True)
class StudyCell:
    """The settings of one number in a table. The registered `model` is fitted by the training method `training` to
    `target_folds` folds of target pairs.

    The auxiliary set has `auxiliary_folds` folds of pairs with weak texts, or all available folds if `auxiliary_folds`
    is None. `documents` names the entry of the section `documents` of the configuration that decides the weak texts.
    `encoders` are the image encoders. The text view has the vectors of all text encoders. Of sparse vectors, such as
    tf-idf, the text view has only the first `terms` columns, or all columns if `terms` is None.

    `fit` and `transfer` replace keys of the sections with these names in the configuration, and `settings` replaces
    keys of the model's own section. The cell is measured in at most `draws` draws, each with other folds.
    """

    model: str
    training: str
    encoders: tuple[str, ...]
    documents: str
    target_folds: int
    auxiliary_folds: int | None = None
    terms: int | None = None
    draws: int = 1
    fit: Mapping[str, Any] = field(default_factory=dict)
    transfer: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The JSON text of all fields of the cell except `draws`. Cells with equal keys share their measurements."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "draws"}, sort_keys=True)


@dataclass(frozen=True)
class Folds:
    """The folds of one draw: the numbers, from 0, of the folds in the target set and in the auxiliary set."""

    target: tuple[int, ...]
    auxiliary: tuple[int, ...]


def draw_folds(cell: StudyCell, draw: int, count: int, overlap: bool) -> Folds:
    """Return the folds of the draw with the number `draw`, from 0, if there are `count` folds.

    The folds are taken in the order draw, draw + 1, ..., and fold 0 follows the last fold. The target set has the first
    `cell.target_folds` folds in this order. The auxiliary set has the last `cell.auxiliary_folds` folds in this order,
    or all folds if this number is None. If `overlap` is true, because target and auxiliary images are of the same
    splits, the auxiliary set has only folds that are not in the target set, and may be smaller. The auxiliary set is
    the same for all target sets that leave enough folds.
    """
    circle = [(draw + i) % count for i in range(count)]
    remaining = circle[cell.target_folds :] if overlap else circle
    first = 0 if cell.auxiliary_folds is None else max(0, len(remaining) - cell.auxiliary_folds)
    return Folds(tuple(circle[: cell.target_folds]), tuple(remaining[first:]))


def count_draws(cell: StudyCell, count: int) -> int:
    """Return the number of draws in which a cell is measured if there are `count` folds.

    The number is 1 if every draw would have the same pairs, because the cell uses all target folds, and either all
    auxiliary folds or none. Otherwise the number is `cell.draws`, but at most `count`.
    """
    whole_target = cell.target_folds % count == 0
    return 1 if whole_target and (cell.training == "target" or cell.auxiliary_folds is None) else min(cell.draws, count)


class StudyPairs(PairSource, Protocol):
    """The stored pairs of a study. `fold_images` is the mean number of images in a fold, and `digest` is a digest of
    all files of the pairs."""

    @property
    def fold_images(self) -> int: ...
    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class Study:
    """The data and settings that all cells of a study share.

    `target` has the target pairs, and `auxiliary(name)` returns the pairs with the weak texts of the section
    `documents.<name>` of the configuration. `overlap` is true if target and auxiliary images come from the same splits,
    so that the folds must be divided between them. Settings are chosen on `dev`, and models are measured on `test`.
    `grid` and `transfer` have the values to try, unless a cell replaces them. `own(model)` returns the model's own
    section of the configuration, or None if it has no section. `text_weights` has the weights to try for each text
    encoder. `memories` caches the CCA of the auxiliary pairs for all tasks with the same views, auxiliary pairs and
    grid. A second pass over the data, which only feature maps need, runs on `device`, or on the CPU if `device` is
    None.
    """

    target: FoldedMoments[StudyPairs]
    auxiliary: Callable[[str], FoldedMoments[StudyPairs]]
    overlap: bool
    dev: PairBlock
    test: NumberedPairBlock
    grid: FitSettings
    transfer: TransferSettings
    own: Callable[[str], Any]
    seed: int
    text_weights: Mapping[str, Sequence[float]]
    device: "torch.device | None" = None
    memories: dict[tuple, dict] = field(default_factory=dict)

    def fit(self, cell: StudyCell, draw: int) -> Tuned:
        """Fit the cell's model to the folds of the draw with the number `draw`, once for each combination of text
        weights. The settings are chosen from the values in `grid` and `transfer`, or from the values of the cell.
        Return the model that is best on dev, and all trials."""
        folds = draw_folds(cell, draw, self.target.source.n_folds, self.overlap)
        weak = self.auxiliary(cell.documents) if cell.training != "target" else None
        settings = self.own(cell.model)

        def task(weights: Mapping[str, float]) -> FitTask:
            restriction = Restriction(cell.encoders, weights, cell.terms)
            grid = self.grid.changed(cell.fit)
            key = (cell.documents, folds.auxiliary, cell.encoders, cell.terms, grid.model_dump_json(), *weights.items())
            return FitTask(
                cell.training,
                self.target.view.select(cell.encoders),
                restriction.text(self.target.text),
                make_sets(self.target, folds.target, weak, folds.auxiliary, restriction),
                restriction.pairs(self.dev),
                grid,
                self.transfer.changed(cell.transfer),
                settings and settings.changed(cell.settings),
                self.seed,
                memory=self.memories.setdefault(key, {}),
                device=self.device,
            )

        tried = {name: self.text_weights[name] for name in self.target.text.encoders}
        return fit_best(model_spec(cell.model).load(), map(task, weightings(tried)))

    def measure(self, cell: StudyCell, draw: int) -> dict[str, Any]:
        """Measure the cell in the draw with the number `draw`. Return a mapping of JSON values.

        The result has the fields of the cell, the number `draw`, the names of the `folds` of training images, the CPU
        `seconds` of the fit, the `trials` on dev and the `chosen` trial. A fold of the target set and a fold of the
        auxiliary set have equal names if they have the same images.

        Each test image searches for its first sentence among the first sentences of all test images.
        `image_to_sentence` has the recalls in percent, and `ranks` has the rank of the sentence for each image, from 1.
        `answers` has the ids of at most SHOWN_IMAGES images, with the ids of the nearest sentences of each image.
        """
        started = process_time()
        tuned = self.fit(cell, draw)
        seconds = round(process_time() - started, 2)
        test = self.test
        chosen = Restriction(cell.encoders, tuned.chosen.text_weights, cell.terms)
        rows = select_sentences(test.owners, PROTOCOL)
        images = tuned.model.embed_images(test.features)
        y = chosen.cut(test.sentences)
        sentences = tuned.model.embed_sentences({name: block[rows] for name, block in y.items()})
        found = count_ranks(images, sentences, test.owners[rows], tuned.model.metric).image_to_sentence
        folds = draw_folds(cell, draw, self.target.source.n_folds, self.overlap)
        weak = folds.auxiliary if cell.training != "target" else ()
        weak_name = "target" if self.overlap else "auxiliary"
        return {
            **asdict(cell),
            "folds": [f"target {fold}" for fold in folds.target] + [f"{weak_name} {fold}" for fold in weak],
            "draw": draw,
            "seconds": seconds,
            "chosen": asdict(tuned.chosen),
            "trials": [asdict(trial) for trial in tuned.trials],
            "image_to_sentence": {f"recall@{k}": float(100 * np.mean(found <= k)) for k in CUTOFFS},
            "ranks": found.tolist(),
            "answers": _answers(test, rows, images, sentences, tuned.model.metric),
        }


def _answers(
    test: NumberedPairBlock, rows: np.ndarray, images: np.ndarray, sentences: np.ndarray, metric: str
) -> dict[str, list[int]]:
    """Return the nearest sentences of at most SHOWN_IMAGES test images: image id (as text) -> the ids of the
    SHOWN_SENTENCES nearest sentences, nearest first. The images are evenly spaced in `test`.

    `images` (n, c) and `sentences` (k, c) are embeddings, and `rows` (k,) are the rows of these sentences in `test`.
    `metric` is `inner_product` or `euclidean`.
    """
    shown = np.linspace(0, len(images) - 1, min(SHOWN_IMAGES, len(images))).astype(int)
    scores = images[shown] @ sentences.T
    if metric == "euclidean":
        scores -= (sentences**2).sum(axis=1) / 2
    best = test.sentence_id[rows][np.argsort(-scores, axis=1, kind="stable")[:, :SHOWN_SENTENCES]]
    return dict(zip(map(str, test.image_id[shown].tolist()), best.tolist(), strict=True))


def nearest_images(queries: np.ndarray, blocks: Iterable[tuple[np.ndarray, np.ndarray]], count: int) -> np.ndarray:
    """Return the ids (q, count) of the images nearest to each of `queries` (q, D) by Euclidean distance, nearest first.

    If there are fewer than `count` images, the result has a column for each image. `blocks` yields the images as pairs
    of ids (b,) and rows of the image view (b, D). One block is in memory at a time.
    """
    ids = np.zeros((len(queries), 0), np.int64)
    distances = np.zeros((len(queries), 0))
    for image_id, x in blocks:
        # The term |q|^2 of the squared distance is left out, because this term is the same for all images.
        apart = (x.astype(float) ** 2).sum(axis=1) - 2.0 * (queries @ x.T)
        ids = np.hstack([ids, np.broadcast_to(image_id, apart.shape)])
        distances = np.hstack([distances, apart])
        kept = np.argsort(distances, axis=1, kind="stable")[:, :count]
        ids, distances = (np.take_along_axis(part, kept, axis=1) for part in (ids, distances))
    return ids


PINNED = ("learning_rate", "max_norm")
"""Settings of models that are trained by gradient descent. A study chooses them on dev when it first measures the
model, and keeps the chosen values in all other cells and draws of the model."""


def pinned(cell: StudyCell, transfer: Choices) -> StudyCell:
    """Return a copy of `cell` in which each of the settings PINNED has only the value that it has in `transfer`, so
    that the setting is not chosen again. Settings that `transfer` lacks stay unchanged.

    `transfer` has the values that were chosen when the cell's model was first measured.
    """
    kept = {name: (transfer[name],) for name in PINNED if name in transfer}
    return replace(cell, settings={**cell.settings, **kept})
