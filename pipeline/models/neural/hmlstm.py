"""The hierarchical multimodal LSTM: sentences with their noun phrases, images with their regions (Niu et al. 2017)."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.device import OomBatcher, place, upload
from pipeline.errors import UsageError
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import recall_sum
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.branches import DenseObjective, PhrasePairs, TwoBranches
from pipeline.models.neural.correspondence import Correspondences, match, noun_phrases, unknown_correspondences
from pipeline.models.neural.hlstm import HierarchicalLSTM
from pipeline.models.neural.region_views import RegionBlock, RegionView
from pipeline.models.neural.task import RegionSource, TrainingTask
from pipeline.models.neural.training import Training, seeded
from pipeline.models.neural.tree_levels import Levels
from pipeline.models.neural.word_models import BLOCK, GlobalModel
from pipeline.text.trees import Trees

REGIONS = 1 << 16
"""Regions that are embedded at once."""


class HMLSTM(GlobalModel):
    """A sentence is the root of its phrase tree; in training, noun phrases are drawn to regions of the image."""

    sentence_view = "phrase-trees"

    @classmethod
    def build(
        cls, view: ImageView, mean: np.ndarray, words: np.ndarray, dimensions: int, dropout: float, seed: int,
        learned: Mapping[str, Any], unit: bool,
    ) -> "HMLSTM":  # fmt: skip
        """Untrained; `learned` holds `noun_phrase`, the label of noun phrases, and whether regions bring their
        `geometry`."""
        with seeded(seed):
            sentences = HierarchicalLSTM(torch.tensor(words), dimensions, dropout, learned["noun_phrase"])
            geometry = learned.get("geometry", False)
            return cls(view, TwoBranches(torch.tensor(mean), sentences, dimensions, dropout, geometry), learned)

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"noun_phrase": task.noun_phrase, "geometry": task.region_view.geometry}

    @classmethod
    def begin(cls, task: TrainingTask) -> "HierarchicalTrainer":
        """UsageError without regions of the same encoders, or with a loss that has no contrasts in the batch."""
        if task.region_view is None or not set(task.view.encoders) <= set(task.region_view.encoders):
            raise UsageError("hmlstm maps images and regions alike; extract regions of all encoders that the row has")
        if task.settings.loss == "squared" or task.settings.negatives == "sampled":
            raise UsageError("hmlstm contrasts within the batch; set its loss to info-nce or ranking, negatives to all")
        return HierarchicalTrainer(cls.untrained(task).to(task.device), task)

    def arrange(self, sentences: Trees) -> Levels:
        return self.network.sentences.arrange(sentences)

    def embed_regions(self, block: RegionBlock, view: RegionView | None = None) -> np.ndarray:
        """(r, c) float32 of the regions of a block, whose features stand side by side as in `view`; None where they
        are of the model's own encoders, in its order."""
        view = view or RegionView(self.view, self.learned.get("geometry", False))
        x = view.stack(block, through=self.view)
        with torch.inference_mode():
            blocks = OomBatcher(REGIONS, "region").map(
                lambda rows: self.network.embed_regions(upload(x[rows], self.device)).cpu().numpy(), len(x)
            )
        return np.concatenate([np.empty((0, self.dim), np.float32), *blocks])

    def embed_phrases(self, sentences: Trees) -> np.ndarray:
        """(p, c) float32: the noun phrases of `sentences` as `noun_phrases` lists them."""

        def embed(rows: slice) -> np.ndarray:
            trees = sentences.take(np.arange(rows.start, rows.stop))
            levels = self.arrange(trees)
            arranged = place((levels, phrase_rows(levels, trees, self.network.sentences)), self.device)
            return self.network.embed_nodes(*arranged, roots=0).cpu().numpy()

        with torch.inference_mode():
            blocks = OomBatcher(BLOCK, "sentence").map(embed, len(sentences))
        return np.concatenate([np.empty((0, self.dim), np.float32), *blocks])

    def correspond(
        self, sentences: Trees, owners: np.ndarray, regions: RegionSource, view: RegionView
    ) -> Correspondences:
        """The best region of each noun phrase of `sentences` (m,) in their images `owners` (m,)."""
        blank = unknown_correspondences(sentences, self.network.sentences.noun_phrase)
        with torch.inference_mode():
            for start in range(0, len(sentences), BLOCK):
                rows = np.arange(start, min(start + BLOCK, len(sentences)))
                images, own = np.unique(owners[rows], return_inverse=True)
                block = regions.packed(images)
                vectors = self.embed_regions(block, view)
                phrases = upload(self.embed_phrases(sentences.take(rows)), self.device)
                of = np.repeat(own, blank.lengths[rows])
                places = slice(blank.offsets[rows[0]], blank.offsets[rows[-1] + 1])
                blank.chosen[places], blank.confidence[places] = match(
                    phrases, of, upload(vectors, self.device), block.offsets
                )
        return blank


def phrase_rows(levels: Levels, trees: Trees, encoder: HierarchicalLSTM) -> Tensor:
    """(p,) the rows of the noun phrases of `trees`, as `noun_phrases` lists them."""
    row = torch.empty_like(levels.nodes)
    row[levels.nodes] = torch.arange(len(row))
    empty = np.cumsum(trees.lengths == 0)  # each has been given a node
    found = noun_phrases(trees, encoder.noun_phrase)
    before = np.repeat(empty, trees.lengths)[found]
    return row[torch.from_numpy(found + before)]


class HierarchicalTrainer:
    """The alternating training of figure 3: sentences alone first, then correspondences and embedding in turn."""

    def __init__(self, model: HMLSTM, task: TrainingTask) -> None:
        train, dev, settings = task.train, task.dev, task.settings
        dev_features = dev.images(np.arange(dev.n_images))
        self.model, self.task = model, task
        self.found = unknown_correspondences(train.sentences, model.network.sentences.noun_phrase)

        def judge() -> float:
            images, sentences = model.embed_images(dev_features), model.embed_sentences(dev.sentences)
            return recall_sum(count_ranks(images, sentences, dev.owners, model.metric))

        norms = {name: b for name, b in model.network.named_buffers() if name.startswith(("image_norm", "text_norm"))}
        self.training = Training(
            model.network, self._draw, train.owners, train.names,
            DenseObjective(task.objective, settings.phrase_share), task.schedule, judge,
            carried={**norms, "chosen": self.found.chosen, "confidence": self.found.confidence},
            before_epoch=self._correspond,
        )  # fmt: skip

    def _draw(self, rows: np.ndarray) -> tuple[Tensor, Levels, PhrasePairs]:
        task, found = self.task, self.found
        trees, owners = task.train.sentences.take(rows), task.train.owners[rows]
        levels = self.model.arrange(trees)
        images, own = np.unique(owners, return_inverse=True)
        block = task.train.regions.packed(images)
        places = found.places(rows)
        counts = found.lengths[rows]
        chosen = block.offsets[np.repeat(own, counts)] + found.chosen[places].numpy()
        features = task.region_view.stack(block, chosen, task.view)
        pairs = PhrasePairs(
            phrase_rows(levels, trees, self.model.network.sentences),
            torch.from_numpy(features),
            found.confidence[places].clamp(min=0),
            torch.from_numpy(np.repeat(owners, counts)),
        )
        return task.draw_images(rows), levels, pairs

    def _correspond(self, epoch: int) -> None:
        settings, train = self.task.settings, self.task.train
        since = epoch - settings.simplified_epochs
        if since < 0 or since % settings.correspondence_epochs:
            return
        self.model.network.eval()
        now = self.model.correspond(train.sentences, train.owners, train.regions, self.task.region_view)
        self.found.chosen.copy_(now.chosen)
        self.found.confidence.copy_(now.confidence)

    def finish(self) -> HMLSTM:
        """The model as it is read again: in float32, without dropout."""
        return HMLSTM.from_parts(self.model.settings(), self.model.tensors())
