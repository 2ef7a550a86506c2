"""The hierarchical multimodal LSTM: sentences with their noun phrases, images with their regions (Niu et al. 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.device import place, upload
from pipeline.errors import UsageError
from pipeline.models.neural.branches import DenseObjective, PhrasePairs, TwoBranches
from pipeline.models.neural.hlstm import HierarchicalLSTM
from pipeline.models.neural.networks import Score
from pipeline.models.neural.region_views import RegionBlock, RegionView
from pipeline.models.neural.task import RegionSource, TrainingTask
from pipeline.models.neural.tree_levels import Levels
from pipeline.models.neural.word_models import BLOCK, GlobalModel
from pipeline.ragged import Ragged, runs
from pipeline.text.trees import Trees

REGIONS = 1 << 16
"""Regions embedded at once."""


@dataclass(frozen=True)
class Correspondences(Ragged):
    """The region of each noun phrase (Niu et al. 2017, section 3.3), for m sentences, sentence after sentence: `chosen`
    (p,) int64, the region's number in its image, and `confidence` (p,) float32, their similarity. Sentence i has
    offsets[i] to offsets[i + 1]."""

    chosen: Tensor
    confidence: Tensor
    offsets: np.ndarray


def noun_phrases(trees: Trees, noun_phrase: int) -> np.ndarray:
    """The nodes of `trees` with the label `noun_phrase` that are not the whole sentence, tree after tree."""
    return np.flatnonzero((trees.labels == noun_phrase) & (trees.parents >= 0) & (trees.words < 0))


def match(phrases: Tensor, images: np.ndarray, regions: Tensor, offsets: np.ndarray) -> tuple[Tensor, Tensor]:
    """The most similar region (p,) of each phrase's image, as its number there, and the similarity (p,).

    phrases (p, K) and regions (r, K) are unit vectors, images (p,) the image of each phrase; the regions of image i are
    offsets[i] to offsets[i + 1]. Region 0 (the whole image) is matched only if there is no other region.
    """
    lengths = np.diff(offsets)
    number = runs(np.zeros(len(lengths), np.int64), lengths)
    image = np.repeat(np.arange(len(lengths)), lengths)
    legal = (number > 0) | (lengths[image] == 1)
    allowed = upload((images[:, None] == image) & legal, phrases.device)
    confidence, best = (phrases @ regions.T).masked_fill(~allowed, -torch.inf).max(dim=1)
    return upload(number, best.device)[best], confidence


class HMLSTM(GlobalModel):
    """A sentence is the root of its phrase tree; training pulls noun phrases towards regions of the image."""

    sentence_view = "phrase-trees"

    @classmethod
    def make_network(
        cls, mean: Tensor, words: Tensor, dimensions: int, dropout: float, learned: Mapping[str, Any], score: Score
    ) -> TwoBranches:
        """`learned`: the label `noun_phrase`, and whether regions have `geometry`."""
        sentences = HierarchicalLSTM(words, dimensions, dropout, learned["noun_phrase"])
        return TwoBranches(mean, sentences, dimensions, dropout, learned.get("geometry", False))

    @classmethod
    def learn(cls, task: TrainingTask) -> dict[str, Any]:
        return {"noun_phrase": task.noun_phrase, "geometry": task.region_view.geometry}

    @classmethod
    def trainer(cls, task: TrainingTask) -> "HierarchicalTrainer":
        """The untrained model with its training loop. UsageError without regions of the same encoders, or with a loss
        that has no contrasts in the batch."""
        if task.region_view is None or not set(task.view.encoders) <= set(task.region_view.encoders):
            raise UsageError("hmlstm maps both images and regions; extract regions of all encoders of the model")
        if task.settings.loss == "squared" or task.settings.negatives == "sampled":
            raise UsageError("hmlstm contrasts within the batch; set its loss to info-nce or ranking, negatives to all")
        return HierarchicalTrainer(cls.untrained(task).to(task.device), task)

    @classmethod
    def untrained(cls, task: TrainingTask) -> "HMLSTM":
        model = super().untrained(task)
        with torch.no_grad():
            model.network.sentences.bias.unflatten(0, (4, -1))[3] = task.settings.forget_bias
        return model

    def arrange(self, sentences: Trees) -> Levels:
        return self.network.sentences.arrange(sentences)

    def embed_regions(self, block: RegionBlock, view: RegionView | None = None) -> np.ndarray:
        """(r, c) float32 of the regions of a block, whose features stand side by side as in `view` (by default the
        model's own encoders in its order)."""
        view = view or RegionView(self.view, self.learned.get("geometry", False))
        x = view.stack(block, through=self.view)
        embed = self.network.embed_regions
        return self.in_blocks(lambda rows: embed(upload(x[rows], self.device)), len(x), "region", REGIONS)

    def embed_phrases(self, sentences: Trees) -> np.ndarray:
        """(p, c) float32: the noun phrases of `sentences`, in the order of `noun_phrases`."""

        def embed(rows: slice) -> Tensor:
            trees = sentences.take(np.arange(rows.start, rows.stop))
            levels = self.arrange(trees)
            arranged = place((levels, phrase_rows(levels, trees, self.network.sentences)), self.device)
            return self.network.embed_nodes(*arranged, roots=0)

        return self.in_blocks(embed, len(sentences), "sentence")

    def embed_snippets(self, snippets: Trees) -> np.ndarray:
        """(q, c) float32 of words that regions are searched for: the root of each tree, as a phrase and no sentence."""

        def embed(rows: slice) -> Tensor:
            levels = self.arrange(snippets.take(np.arange(rows.start, rows.stop)))
            return self.network.embed_nodes(*place((levels, levels.roots), self.device), roots=0)

        return self.in_blocks(embed, len(snippets), "snippet")

    def no_correspondences(self, sentences: Trees) -> Correspondences:
        """The initial ones: no region yet (-1), with no confidence."""
        nodes = noun_phrases(sentences, self.network.sentences.noun_phrase)
        offsets = np.searchsorted(nodes, sentences.offsets)
        return Correspondences(torch.full((len(nodes),), -1), torch.zeros(len(nodes)), offsets)

    def correspond(
        self, sentences: Trees, owners: np.ndarray, regions: RegionSource, view: RegionView
    ) -> Correspondences:
        """The best region of each noun phrase of `sentences` (m,) in their images `owners` (m,)."""
        found = self.no_correspondences(sentences)
        with torch.inference_mode():
            for start in range(0, len(sentences), BLOCK):
                rows = np.arange(start, min(start + BLOCK, len(sentences)))
                images, own = np.unique(owners[rows], return_inverse=True)
                block = regions.packed(images)
                vectors = upload(self.embed_regions(block, view), self.device)
                phrases = upload(self.embed_phrases(sentences.take(rows)), self.device)
                places = slice(found.offsets[rows[0]], found.offsets[rows[-1] + 1])
                found.chosen[places], found.confidence[places] = match(
                    phrases, np.repeat(own, found.lengths[rows]), vectors, block.offsets
                )
        return found


def phrase_rows(levels: Levels, trees: Trees, encoder: HierarchicalLSTM) -> Tensor:
    """(p,) the rows of the noun phrases of `trees` in `levels`, in the order of `noun_phrases`."""
    row = torch.empty_like(levels.nodes)
    row[levels.nodes] = torch.arange(len(row))
    empty = np.cumsum(trees.lengths == 0)  # `levels` has a node for each empty tree
    found = noun_phrases(trees, encoder.noun_phrase)
    return row[torch.from_numpy(found + np.repeat(empty, trees.lengths)[found])]


def _or_any(chosen: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(p,) the regions `chosen`; where there is none yet (-1), any of the `counts` (p,) regions of the phrase's image
    but the whole, so that the parts' batch normalisation has the statistics of regions from the first epoch."""
    drawn = (torch.rand(len(chosen)).numpy() * (counts - 1)).astype(np.int64) + 1
    return np.where(chosen < 0, np.minimum(drawn, counts - 1), chosen)


class HierarchicalTrainer:
    """The alternating training of figure 3: first sentences alone, then correspondences and embedding in turn."""

    def __init__(self, model: HMLSTM, task: TrainingTask) -> None:
        self.model, self.task, self.finish = model, task, model.reloaded
        self.found = model.no_correspondences(task.train.sentences)
        norms = {name: b for name, b in model.network.named_buffers() if name.startswith(("image_norm", "text_norm"))}
        settings = task.settings
        objective = DenseObjective(task.objective, settings.phrase_share, settings.phrase_contrasts)
        self.training = task.training(
            model.network, self._draw, model.judge(task.dev), objective,
            extra_state={**norms, "chosen": self.found.chosen, "confidence": self.found.confidence},
            before_epoch=self._correspond,
        )  # fmt: skip

    def _draw(self, rows: np.ndarray) -> tuple[Tensor, Levels, PhrasePairs]:
        task, found = self.task, self.found
        trees, owners = task.train.sentences.take(rows), task.train.owners[rows]
        levels = self.model.arrange(trees)
        images, own = np.unique(owners, return_inverse=True)
        block = task.train.regions.packed(images)
        places, counts = found.places(rows), found.lengths[rows]
        image = np.repeat(own, counts)
        chosen = block.offsets[image] + _or_any(found.chosen[places].numpy(), np.diff(block.offsets)[image])
        pairs = PhrasePairs(
            phrase_rows(levels, trees, self.model.network.sentences),
            torch.from_numpy(task.region_view.stack(block, chosen, task.view)),
            found.confidence[places].clamp(min=0),
            torch.from_numpy(np.repeat(owners, counts)),
            torch.from_numpy(chosen),
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
