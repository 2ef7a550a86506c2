"""The generator `nearest`, which captions each image with a sentence of the split train instead of a new sentence.

With `by: features` and `distance: euclidean`, it is the retrieval baseline of Karpathy and Fei-Fei 2015, section 4.2.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pipeline.compute.precision import scale_to_unit_length, to_float32
from pipeline.generate.generator import Description, Learned, Material, Sources
from pipeline.index.exact import search_exact
from pipeline.models.joint_model import Settings, read_setting
from pipeline.models.linear.views import ImageView
from pipeline.models.neural.task import mean_and_spread, required

GALLERY_BLOCK = 1 << 16
"""Maximum number of training images that are embedded at once. It is also the maximum number of rows of the gallery
that are compared with images at once."""


class Nearest:
    """The generator `nearest`, which returns the first sentence of the nearest training image, or the nearest training
    sentence.

    The setting `by` chooses the rows of `gallery` (k, d) float16:

    - `features`: the stacked features of training images, minus their mean `mean` over the training images. If
      `distance` is `cosine`, the rows have unit length. If `distance` is `euclidean`, the features are not normalised.
    - `joint-image`: the embeddings of training images in a joint space, with unit length.
    - `joint-sentence`: the embeddings of training sentences in a joint space, with unit length.

    `rows` (k,) has the number of a training sentence for each row of the gallery. For a training image, this is the
    first sentence of the image. `view` stacks and normalises features.
    """

    def __init__(
        self, by: str, distance: str, view: ImageView, mean: np.ndarray, gallery: np.ndarray, rows: np.ndarray
    ) -> None:
        self.by = by
        self.unit = distance == "cosine" or by != "features"
        self.view = view
        self.mean = mean
        self.gallery = gallery
        self.rows = rows

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Build the gallery from the training images, or from the training sentences for `by: joint-sentence`. Nothing
        is trained. The log has the number of training sentences and the number of rows of the gallery."""
        by = material.settings.by
        pairs = material.train
        view = material.view
        if by == "features" and material.settings.distance == "euclidean":
            view = replace(view, steps=())
        rows = np.unique(pairs.owners, return_index=True)[1]
        mean = mean_and_spread(pairs.stacked(view))[0]
        model = cls(by, material.settings.distance, view, mean, np.empty((0, 0), np.float16), rows)
        if by == "joint-sentence":
            model.rows = np.arange(len(pairs.owners))
            vectors = [required(material.space).sentences(material.texts["train"])]
        else:
            embed = model.standardise if by == "features" else required(material.space).images
            starts = range(0, pairs.n_images, GALLERY_BLOCK)
            vectors = [embed(pairs.images(np.arange(s, min(s + GALLERY_BLOCK, pairs.n_images)))) for s in starts]
        model.gallery = np.concatenate([block.astype(np.float16) for block in vectors])
        return Learned(model, {"criterion": by, "sentences": len(pairs.owners), "chosen": {"rows": len(model.rows)}})

    def to(self, device: torch.device) -> "Nearest":
        """Return this generator unchanged. It has no network, so it computes nothing on `device`."""
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    def generate_captions(
        self, features: Mapping[str, np.ndarray], sources: Sources, count: int
    ) -> list[list[Description]]:
        """Describe n images, whose `features` are given as encoder -> (n, dim), by training sentences.

        For each image, return the words of the sentences of the `count` nearest rows of the gallery, best first. If the
        gallery has fewer rows, all rows are used. Different rows may have sentences with the same words. The scores are
        cosines, or negative squared distances for `distance: euclidean`. `sources` has the training sentences as
        `corpus`, and the joint space as `space`, which is not used for `by: features`.
        """
        queries = self.standardise(features) if self.by == "features" else required(sources.space).images(features)
        starts = range(0, len(self.rows), GALLERY_BLOCK)
        blocks = (to_float32(self.gallery[start : start + GALLERY_BLOCK]) for start in starts)
        nearest = search_exact(queries, blocks, count, "inner_product" if self.unit else "euclidean")
        described = []
        for rows, scores in map(nearest.of_query, range(len(queries))):
            texts = [tuple(sources.corpus.analyze(sources.corpus.texts[row])) for row in map(int, self.rows[rows])]
            described.append(list(map(Description, texts, scores.tolist())))
        return described

    def standardise(self, features: Mapping[str, np.ndarray]) -> np.ndarray:
        """Stack and normalise `features`, encoder -> (n, dim), by the view, and subtract the mean of the training
        images. Return (n, D), with rows of unit length if they are compared by cosine."""
        x = self.view.stack(features) - self.mean
        return scale_to_unit_length(x) if self.unit else x

    def settings(self) -> dict[str, Any]:
        return {**vars(self.view), "by": self.by, "distance": "cosine" if self.unit else "euclidean"}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean": self.mean, "gallery": self.gallery, "rows": self.rows}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "Nearest":
        by = read_setting(settings, "by", str)
        distance = read_setting(settings, "distance", str)
        view = ImageView.from_dict(settings)
        return cls(by, distance, view, tensors["mean"], tensors["gallery"], tensors["rows"])
