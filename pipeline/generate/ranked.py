"""`ranked-snippets`: describes a region by a snippet of a training sentence (the ranking baseline of Karpathy and
Fei-Fei 2015, Table 3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pipeline.config.registry.models import model_spec
from pipeline.generate.describing import Description, Sources
from pipeline.generate.material import Learned, Material
from pipeline.models.neural.fragment_models import AlignedModel
from pipeline.multivectors import MultiVectors
from pipeline.precision import to_float32
from pipeline.ragged import offsets_of
from pipeline.text.sequences import Tokens

BLOCK = 1 << 16
"""Snippets compared at once."""


@dataclass(frozen=True)
class RankedRegions:
    """n images of one region each, as a model embeds them: `features` (n, dim), of several encoders side by side;
    `boxes`, `scores` and `offsets` as a RegionBlock has them."""

    features: np.ndarray

    def __len__(self) -> int:
        return len(self.features)

    def packed(self, rows: np.ndarray) -> "RankedRegions":
        return RankedRegions(self.features[rows])

    @property
    def boxes(self) -> np.ndarray:
        return np.tile(np.array([[0, 0, 1, 1]], np.float32), (len(self), 1))

    @property
    def scores(self) -> np.ndarray:
        return np.ones(len(self), np.float32)

    @property
    def offsets(self) -> np.ndarray:
        return np.arange(len(self) + 1)


def sum_words(words: MultiVectors, lengths: Sequence[int]) -> np.ndarray:
    """(k, c) float32: the sum of the word vectors of each of k snippets, which are all words of the sentences `words`,
    in order; `lengths` (k,) are theirs, at least 1."""
    return np.add.reduceat(to_float32(words.vectors), offsets_of(lengths)[:-1], axis=0)


class RankedSnippets:
    """Describes a region by the snippet whose words have the greatest sum of products with it, by the alignment model:
    eq. 8 of Karpathy and Fei-Fei 2015 for an image of this region alone.

    `gallery` (k, c) float16: the sums of the word vectors of k different snippets, `snippets` their words.
    """

    in_space = False

    def __init__(self, name: str, model: AlignedModel, gallery: np.ndarray, snippets: Tokens) -> None:
        """`name` is the registered `model`'s."""
        self.name, self.model, self.gallery, self.snippets = name, model, gallery, snippets

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Of snippets with the same words, the mean of their sums; those without a known word are left out."""
        ranker, words, known = material.ranker, material.train.sentences, len(material.vocabulary.terms)
        with_known_word = np.array([row for row, ids in enumerate(words) if (ids < known).any()], np.int64)
        words, names = words.take(with_known_word), material.train.names[with_known_word]
        texts = [tuple(ids.tolist()) for ids in words]
        rows = {text: row for row, text in reversed(list(enumerate(texts)))}
        place = {text: number for number, text in enumerate(rows)}
        of = np.array([place[text] for text in texts])
        gallery = np.zeros((len(rows), ranker.vectors.shape[1]), np.float32)
        np.add.at(gallery, of, ranker.vectors[names])
        gallery /= np.bincount(of)[:, None]
        model = cls(ranker.name, ranker.model, gallery.astype(np.float16), words.take(np.array(list(rows.values()))))
        return Learned(model, {"criterion": "alignment", "sentences": len(texts), "chosen": {"rows": len(rows)}})

    def to(self, device: torch.device) -> "RankedSnippets":
        """Moves the alignment model to `device`; returns itself."""
        self.model.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.model.region_encoders

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """The `count` best snippets for every region, best first; scores are sums of products."""
        stacked = np.hstack([features[name] for name in self.encoders])
        queries = self.model.embed_images({}, RankedRegions(stacked)).vectors
        scores = np.concatenate(
            [queries @ to_float32(self.gallery[at : at + BLOCK]).T for at in range(0, len(self.gallery), BLOCK)], axis=1
        )
        best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
        terms = sources.corpus.vocabulary.terms
        words = [tuple(terms[i] for i in ids if i < len(terms)) for ids in self.snippets]
        return [
            [Description(words[row], float(own[row])) for row in rows] for rows, own in zip(best, scores, strict=True)
        ]

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "model": self.name}

    def tensors(self) -> dict[str, np.ndarray]:
        own = {"gallery": self.gallery, "ids": self.snippets.ids, "offsets": self.snippets.offsets}
        return {**{f"model.{name}": value for name, value in self.model.tensors().items()}, **own}

    @classmethod
    def from_parts(cls, settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> "RankedSnippets":
        parts = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        name = settings["model"]
        model = model_spec(name).load().from_parts(settings, parts)
        return cls(name, model, tensors["gallery"], Tokens(tensors["ids"], tensors["offsets"]))
