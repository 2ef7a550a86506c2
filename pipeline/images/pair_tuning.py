"""Training the last layers of a network on images with sentences, as VSE++ does (Faghri et al. 2018, section 4.1)."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

from pipeline.device import drawn_from
from pipeline.errors import InputError
from pipeline.images.decode import ImageLimits
from pipeline.images.descent import DescentSchedule, NetworkTraining
from pipeline.images.networks import NetworkEncoder
from pipeline.images.preprocess import Photograph, Preprocessing, open_photograph
from pipeline.workers import Failure

ASPECTS = (3 / 4, 4 / 3)
"""Least and greatest width over height of a crop, times the image's own."""


class Pair(NamedTuple):
    """A photograph, with the number of its image, and a sentence as word ids (k,)."""

    photograph: Photograph
    image: int
    words: np.ndarray


class PairBatch(NamedTuple):
    """`pixels` (n, side, side, 3) uint8; the word ids of n sentences, one after another, and where each begins
    (n,); the number of each one's image (n,)."""

    pixels: np.ndarray
    words: np.ndarray
    starts: np.ndarray
    images: np.ndarray


@dataclass(frozen=True)
class CropSampler:
    """`sampler((number, pair))`: the pair with a random crop of its photograph, mirrored half of the time, by the seed
    and the number alone. Can be pickled. A crop has at least the share `least` of the photograph's area."""

    read: Callable[..., bytes]
    limits: ImageLimits
    preprocessing: Preprocessing
    least: float
    seed: int

    def __call__(self, item: tuple[int, Pair]) -> tuple[np.ndarray, Pair]:
        """(side, side, 3) uint8. Raises InputError if the photograph cannot be read."""
        number, pair = item
        rng = np.random.default_rng([self.seed, number])
        side = self.preprocessing.side
        image = open_photograph(self.read, self.limits, pair.photograph, side)
        box = random_crop(image.size, self.least, rng)
        resampling = Image.Resampling[self.preprocessing.interpolation.upper()]
        pixels = np.asarray(image.resize((side, side), resampling, box))
        return (pixels[:, ::-1] if rng.random() < 0.5 else pixels), pair


def random_crop(size: tuple[int, int], least: float, rng: np.random.Generator) -> tuple[float, float, float, float]:
    """A box in an image of `size` with about the share `least` of its area or more, and about its shape."""
    area, aspect = rng.uniform(least, 1), math.exp(rng.uniform(*map(math.log, ASPECTS)))
    shares = (min(1.0, math.sqrt(area * aspect)), min(1.0, math.sqrt(area / aspect)))
    width, height = (share * length for share, length in zip(shares, size, strict=True))
    left, top = rng.uniform(0, size[0] - width), rng.uniform(0, size[1] - height)
    return left, top, left + width, top + height


def batch_pairs(samples: Iterable[tuple[np.ndarray, Pair] | Failure], size: int) -> Iterator[PairBatch]:
    """Every `size` samples together. Raises InputError where a photograph could not be read."""
    samples = iter(samples)
    while block := list(islice(samples, size)):
        if failed := [one for one in block if isinstance(one, Failure)]:
            raise InputError(f"{failed[0].reason}; it could be used before: run ingest again")
        pairs = [pair for _, pair in block]
        starts = np.cumsum([0, *(len(pair.words) for pair in pairs[:-1])])
        words, images = np.concatenate([pair.words for pair in pairs]), np.array([pair.image for pair in pairs])
        yield PairBatch(np.stack([pixels for pixels, _ in block]), words, starts, images)


class Towers(nn.Module):
    """W f(x) for an image's features, and U times the mean vector of a sentence's words, both of unit length."""

    def __init__(self, dim: int, words: int, dimensions: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.words = nn.EmbeddingBag(words, dimensions, mode="mean")
        self.norm = nn.LayerNorm(dim)
        self.images, self.sentences = nn.Linear(dim, dimensions), nn.Linear(dimensions, dimensions)
        for weight in (self.words.weight, self.images.weight, self.sentences.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5, generator=generator)
        for linear in (self.images, self.sentences):
            nn.init.zeros_(linear.bias)

    def embed_images(self, features: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.images(self.norm(features)))

    def embed_sentences(self, words: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.sentences(self.words(words, starts)))


class PairTuning(NetworkTraining):
    """Minimises a contrastive loss of n images and their sentences in one batch, by Adam with decoupled decay.

    With s (n, n) the cosines, `info-nce` is the mean of -log softmax(s / temperature) at the pairs, over rows and over
    columns; `hardest` the mean of [margin - s_ii + max s_ij]+ over rows and over columns (Faghri et al. 2018, eq. 6).
    Sentences of the same image are no contrasts. The share `unfreeze` of the network's layers learns, the last ones.
    More than `at_once` images are passed in portions; where batch norms are frozen, the gradient is that of the whole
    batch.
    """

    section = "tune"

    def __init__(
        self, encoder: NetworkEncoder, words: int, dimensions: int, schedule: DescentSchedule, device: torch.device,
        dtype: torch.dtype, seed: int, loss: str, temperature: float, margin: float, unfreeze: float, at_once: int,
        weight_decay: float, frozen_norms: bool,
    ) -> None:  # fmt: skip
        head = Towers(encoder.dim, words, dimensions, seed)
        super().__init__(encoder, head, schedule, device, dtype, seed, frozen_norms)
        parameters = list(self.network[0].parameters())
        for parameter in parameters[: len(parameters) - math.ceil(unfreeze * len(parameters))]:
            parameter.requires_grad_(False)
        self.loss, self.temperature, self.margin, self.at_once = loss, temperature, margin, at_once
        self.optimiser = torch.optim.AdamW(self.groups(), weight_decay=weight_decay)

    def _descend(self, batch: PairBatch) -> torch.Tensor:
        portions = [
            (number, slice(start, start + self.at_once))
            for number, start in enumerate(range(0, len(batch.pixels), self.at_once))
        ]
        if len(portions) == 1:
            vectors = self._embed(batch, *portions[0])
            loss = self._contrast(vectors, batch)
            loss.backward()
            return loss
        with torch.no_grad():
            found = [self._embed(batch, *portion) for portion in portions]
        vectors = torch.cat(found).requires_grad_()
        loss = self._contrast(vectors, batch)
        loss.backward()
        for (number, rows), gradient in zip(portions, vectors.grad.split(self.at_once), strict=True):
            self._embed(batch, number, rows).backward(gradient)
        return loss

    def _embed(self, batch: PairBatch, number: int, rows: slice) -> torch.Tensor:
        """Of one portion, by the same random numbers whenever it is asked for."""
        with drawn_from((self.seed << 32) + (self.iteration << 8) + number, self.device):
            return self.head.embed_images(self.features(batch.pixels[rows]))

    def _contrast(self, images: torch.Tensor, batch: PairBatch) -> torch.Tensor:
        words, starts, owners = (
            torch.from_numpy(part).to(self.device) for part in (batch.words, batch.starts, batch.images)
        )
        scores = images @ self.head.embed_sentences(words, starts).T
        pairs = torch.arange(len(scores), device=self.device)
        same = (owners[:, None] == owners) & ~torch.eye(len(scores), dtype=torch.bool, device=self.device)
        scores = scores.masked_fill(same, -torch.inf)
        if self.loss == "info-nce":
            logits = scores / self.temperature
            return (functional.cross_entropy(logits, pairs) + functional.cross_entropy(logits.T, pairs)) / 2
        right = scores.diagonal()
        others = scores.masked_fill(pairs[:, None] == pairs, -torch.inf)
        hinges = [(self.margin - right + others.amax(dim=way)).clamp(min=0).mean() for way in (0, 1)]
        return (hinges[0] + hinges[1]) / 2

    def judged_vectors(
        self, blocks: Iterable[np.ndarray], words: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(n, c) of images, from blocks of pixels, and (m, c) of sentences, as they are now."""
        self.network.eval()
        with torch.inference_mode():
            images = [self.head.embed_images(self.features(block)).float().cpu() for block in blocks]
            parts = (torch.from_numpy(part).to(self.device) for part in (words, starts))
            return torch.cat(images).numpy(), self.head.embed_sentences(*parts).float().cpu().numpy()
