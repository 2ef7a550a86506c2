"""Snippets of sentences and the regions aligned with them (Karpathy and Fei-Fei 2015): training pairs of both, and
`ranked-snippets`, which describes a region by a snippet of a training sentence."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from pipeline.compute.multivectors import MultiVectors
from pipeline.compute.precision import to_float32
from pipeline.compute.ragged import offsets_of
from pipeline.config.registry import model_spec
from pipeline.errors import InputError
from pipeline.generate.generator import Description, Learned, Material, Sources
from pipeline.index.exact import search_exact
from pipeline.models.joint_model import Settings, read_setting
from pipeline.models.neural.fragment_models import AlignedModel
from pipeline.models.neural.task import TrainingPairs, required
from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.vocabulary import Vocabulary

TOLERANCE = 1.0
"""Pixels by which a snippet's box may differ from its region, at each side."""
BLOCK = 1 << 16
"""Snippets compared at once."""


class Snippet(NamedTuple):
    """Some `words` of a sentence, and the `box` (x1, y1, x2, y2 in original pixels) that shows them."""

    sentence_id: int
    image_id: int
    words: Sequence[str]
    box: tuple[float, float, float, float]
    score: float


class SnippetRegions(NamedTuple):
    """The regions of some images: those of image i are rows offsets[i] to offsets[i + 1], the whole image first."""

    image_id: np.ndarray
    offsets: np.ndarray
    boxes: np.ndarray
    features: np.ndarray

    def take(self, rows: np.ndarray, whole: bool) -> np.ndarray:
        """Return the features (k, dim) of regions `rows` (k,); with `whole`, also of their images, (k, 2 dim)."""
        if not whole:
            return self.features[rows]
        first = self.offsets[np.searchsorted(self.offsets, rows, "right") - 1]
        return np.hstack([self.features[rows], self.features[first]])


def region_pairs(
    snippets: Sequence[Snippet],
    regions: Mapping[str, SnippetRegions],
    splits: np.ndarray,
    vocabulary: Vocabulary,
    whole: bool,
) -> dict[str, TrainingPairs]:
    """The snippets of `train` and of `dev`, each with the features of its box, from encoder -> `regions`; `whole`
    as in SnippetRegions.

    `splits` (n_images,) is every image's. Raises InputError naming, by number, a snippet without a region, and for a
    split without snippets.
    """
    tokens = encode_tokens([" ".join(snippet.words) for snippet in snippets], vocabulary)
    image_id = np.array([snippet.image_id for snippet in snippets], np.int64)
    boxes = np.array([snippet.box for snippet in snippets])
    places = {name: find_regions(stored, image_id, boxes) for name, stored in regions.items()}
    for numbers in places.values():
        for missing in np.flatnonzero(numbers < 0)[:1]:
            raise InputError(
                f"snippet {missing} (sentence {snippets[missing].sentence_id}) has a box that is no region of image"
                f" {image_id[missing]}; align with the regions that you give"
            )
    pairs = {}
    for split in ("train", "dev"):
        rows = np.flatnonzero((splits[image_id] == split) & (tokens.lengths > 0))
        if not len(rows):
            raise InputError(f"no snippet is of the {split} split; align the sentences of train and dev")
        features = {name: stored.take(places[name][rows], whole) for name, stored in regions.items()}
        pairs[split] = TrainingPairs(features, tokens.take(rows), np.arange(len(rows)), rows)
    return pairs


def find_regions(regions: SnippetRegions, image_id: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(k,): the rows of the regions that match the `boxes` (k, 4) in the images `image_id` (k,), or -1."""
    places, found = np.searchsorted(regions.image_id, image_id), []
    for place, box in zip(places.tolist(), np.asarray(boxes), strict=True):
        first, last = regions.offsets[place], regions.offsets[place + 1]
        distance = np.abs(regions.boxes[first:last] - box).max(axis=1)
        found.append(first + distance.argmin() if distance.min(initial=np.inf) <= TOLERANCE else -1)
    return np.array(found, np.int64)


class Regions(NamedTuple):
    """n images of one region each, as a model embeds them: a RegionBlock."""

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray) -> "Regions":
        """Regions with the `features` (n, dim), each the whole of its image."""
        n = len(features)
        return cls(features, np.tile(np.array([[0, 0, 1, 1]], np.float32), (n, 1)), np.ones(n), np.arange(n + 1))


def sum_words(words: MultiVectors, lengths: Sequence[int]) -> np.ndarray:
    """(k, c) float32: the sum of the word vectors of each of k snippets, which are all words of the sentences `words`,
    in order; `lengths` (k,) are theirs, at least 1."""
    return np.add.reduceat(to_float32(words.array), offsets_of(lengths)[:-1], axis=0)


class RankedSnippets:
    """Describes a region by the snippet whose words have the greatest sum of products with it, by the alignment model:
    eq. 8 of Karpathy and Fei-Fei 2015 for an image of this region alone (the ranking baseline of their Table 3).

    `gallery` (k, c) float16: the sums of the word vectors of k different snippets, `snippets` their words.
    """

    def __init__(self, name: str, model: AlignedModel, gallery: np.ndarray, snippets: Tokens) -> None:
        """`name` is the registered `model`'s."""
        self.name = name
        self.model = model
        self.gallery = gallery
        self.snippets = snippets

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Of snippets with the same words, the mean of their sums; those without a known word are left out."""
        ranker, tokens = required(material.ranker), material.train.sentences
        unknown = len(material.vocabulary.terms)
        rows = np.array([row for row, ids in enumerate(tokens) if (ids < unknown).any()], np.int64)
        texts = [tuple(ids.tolist()) for ids in tokens.take(rows)]
        number = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        numbers = np.array([number[text] for text in texts])
        gallery = np.zeros((len(number), ranker.vectors.shape[1]), np.float32)
        np.add.at(gallery, numbers, ranker.vectors[material.train.names[rows]])
        gallery /= np.bincount(numbers)[:, None]
        snippets = tokens.take(rows[np.unique(numbers, return_index=True)[1]])
        model = cls(ranker.name, ranker.model, gallery.astype(np.float16), snippets)
        return Learned(model, {"criterion": "alignment", "sentences": len(texts), "chosen": {"rows": len(number)}})

    def to(self, device: torch.device) -> "RankedSnippets":
        self.model.to(device)
        return self

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.model.region_encoders

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """The `count` best snippets for every region, best first; scores are sums of products."""
        queries = self.model.embed_regions(Regions.of(np.hstack([features[name] for name in self.encoders])))
        blocks = (to_float32(self.gallery[start : start + BLOCK]) for start in range(0, len(self.gallery), BLOCK))
        nearest = search_exact(queries, blocks, count, "inner_product")
        terms = sources.corpus.vocabulary.terms
        words = [tuple(terms[i] for i in ids if i < len(terms)) for ids in self.snippets]
        described = []
        for rows, scores in map(nearest.of, range(len(queries))):
            described.append(list(map(Description, [words[row] for row in rows], scores.tolist())))
        return described

    def settings(self) -> dict[str, Any]:
        return {**self.model.settings(), "model": self.name}

    def tensors(self) -> dict[str, np.ndarray]:
        own = {"gallery": self.gallery, "ids": self.snippets.ids, "offsets": self.snippets.offsets}
        return {**{f"model.{name}": value for name, value in self.model.tensors().items()}, **own}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "RankedSnippets":
        parts = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        name = read_setting(settings, "model", str)
        model = model_spec(name).load().from_parts(settings, parts)
        return cls(name, model, tensors["gallery"], Tokens(tensors["ids"], tensors["offsets"]))
