"""Snippets of sentences and the regions that are aligned with them (Karpathy and Fei-Fei 2015, section 3.1.4).

The module pairs regions with snippets for training. It also has the generator `ranked-snippets`, which gives each
region a snippet of a training sentence.
"""

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
from pipeline.text.vocabulary import Tokens, Vocabulary, encode_tokens

TOLERANCE = 1.0
"""Largest difference in pixels of the original image between a coordinate of a snippet's box and the same coordinate of
its region. If no region of the image is so close, `region_pairs` raises InputError."""
SNIPPET_BLOCK = 1 << 16
"""Maximum number of rows of the gallery of snippets that RankedSnippets compares with regions at once."""


class Snippet(NamedTuple):
    """Consecutive words of a sentence, and the region of an image with which an alignment model aligned these words.
    The `box` of the region is (x1, y1, x2, y2) in pixels of the original image. `score` is the score of this alignment,
    where higher is better."""

    sentence_id: int
    image_id: int
    words: Sequence[str]
    box: tuple[float, float, float, float]
    score: float


class SnippetRegions(NamedTuple):
    """The regions of n images by one encoder, with one row per region in `boxes` (total, 4), in pixels of the original
    image, and in `features` (total, dim). `image_id` (n,) ascends. The regions of the image `image_id[i]` are the rows
    offsets[i] to offsets[i + 1] - 1, for `offsets` (n + 1,). The first of these rows is the whole image."""

    image_id: np.ndarray
    offsets: np.ndarray
    boxes: np.ndarray
    features: np.ndarray

    def take(self, rows: np.ndarray, whole: bool) -> np.ndarray:
        """Return the features (k, dim) of the regions with the row numbers `rows` (k,). If `whole` is true, the columns
        of each region are followed by the features of its whole image, so the result is (k, 2 dim)."""
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
    """Pair the snippets of the splits train and dev with the features of their regions, to train a generator of
    captions for regions.

    `regions` is encoder -> regions of all images of the snippets, and splits[id] is the split of the image with this
    id. If `whole` is true, the features of each region are followed by the features of its whole image. Snippets
    without words are left out. Returns the pairs under "train" and "dev": one row of features per snippet, and the
    words as ids of `vocabulary`. The `names` of the pairs are positions in `snippets`. Raises InputError if a snippet
    of any split has no matching region, or if train or dev has no snippets.
    """
    tokens = encode_tokens([" ".join(snippet.words) for snippet in snippets], vocabulary)
    image_id = np.array([snippet.image_id for snippet in snippets], np.int64)
    boxes = np.array([snippet.box for snippet in snippets])
    region_rows = {name: find_regions(stored, image_id, boxes) for name, stored in regions.items()}
    for name, found in region_rows.items():
        for missing in np.flatnonzero(found < 0)[:1]:
            raise InputError(
                f"The snippet {missing} (a part of the caption {snippets[missing].sentence_id}) has a box that is not"
                f" a region of the image {image_id[missing]} for the encoder {name}, because the regions have changed"
                " since the snippets were made. Run `jointspace stage align --run RUN` again, and then this stage."
            )
    pairs = {}
    for split in ("train", "dev"):
        rows = np.flatnonzero((splits[image_id] == split) & (tokens.lengths > 0))
        if not len(rows):
            raise InputError(
                f"The split {split} has no snippets of captions. Add captioned photos to this split, or align the"
                " captions of the split with their photos by `jointspace stage align --run RUN`."
            )
        features = {name: stored.take(region_rows[name][rows], whole) for name, stored in regions.items()}
        pairs[split] = TrainingPairs(features, tokens.take(rows), np.arange(len(rows)), rows)
    return pairs


def find_regions(regions: SnippetRegions, image_id: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Find the region that matches each of the `boxes` (k, 4), where box i is in the image with the id `image_id[i]`.
    All these images must be in `regions`. Returns the row of the nearest region of this image for each box, (k,), or -1
    if a coordinate of the nearest region differs by more than TOLERANCE, or if the image has no regions."""
    images = np.searchsorted(regions.image_id, image_id)
    found = []
    for image, box in zip(images.tolist(), np.asarray(boxes), strict=True):
        first, last = regions.offsets[image : image + 2]
        distance = np.abs(regions.boxes[first:last] - box).max(axis=1)
        found.append(first + distance.argmin() if distance.min(initial=np.inf) <= TOLERANCE else -1)
    return np.array(found, np.int64)


class Regions(NamedTuple):
    """n images with one region each, in the form in which an alignment model embeds regions (a RegionBlock).

    `features` (n, dim) has one row per region. `boxes` (n, 4) and `scores` (n,) are placeholders, because the alignment
    models of `ranked-snippets` do not read them. `offsets` (n + 1,) has the numbers from 0 to n, because the regions of
    image i are the rows offsets[i] to offsets[i + 1] - 1.
    """

    features: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_features(cls, features: np.ndarray) -> "Regions":
        """Create n regions with the `features` (n, dim), with the same box and score for all of them."""
        n = len(features)
        return cls(features, np.tile(np.array([[0, 0, 1, 1]], np.float32), (n, 1)), np.ones(n), np.arange(n + 1))


def sum_words(words: MultiVectors, lengths: Sequence[int]) -> np.ndarray:
    """Add up the word vectors of each of k snippets, and return the sums (k, c) float32.

    `words` has the word vectors of all words of some sentences. The snippets divide these sentences: each word belongs
    to exactly one snippet, and the snippets are in the order of the words. `lengths` (k,) are the numbers of words of
    the snippets, each at least 1.
    """
    return np.add.reduceat(to_float32(words.array), offsets_of(lengths)[:-1], axis=0)


class RankedSnippets:
    """The generator `ranked-snippets`, which gives each region the training snippets with the highest scores by an
    alignment model.

    The score is the sum of the inner products of the region with the words of the snippet: equation 8 of Karpathy and
    Fei-Fei 2015 for an image with this region only. This is the ranking baseline of Table 3.

    `gallery` (k, c) float16 has the sum of the word vectors of each of k different training snippets, or the mean of
    these sums if a snippet occurs several times. `snippets` has the word ids of these snippets. `model` is the
    alignment model.
    """

    def __init__(self, name: str, model: AlignedModel, gallery: np.ndarray, snippets: Tokens) -> None:
        """Create the generator from its parts. `name` is the name under which the class of `model` is registered."""
        self.name = name
        self.model = model
        self.gallery = gallery
        self.snippets = snippets

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Build the gallery from the training snippets that have at least one word of the vocabulary. Snippets with the
        same words become one row, which is the mean of the sums of their word vectors. Nothing is trained. The log has
        the number of snippets as `sentences`, and the number of rows."""
        ranker = required(material.ranker)
        tokens = material.train.sentences
        unknown = len(material.vocabulary.terms)
        rows = np.array([row for row, ids in enumerate(tokens) if (ids < unknown).any()], np.int64)
        texts = [tuple(ids.tolist()) for ids in tokens.take(rows)]
        number = {text: row for row, text in enumerate(dict.fromkeys(texts))}
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

    def generate_captions(
        self, features: Mapping[str, np.ndarray], sources: Sources, count: int
    ) -> list[list[Description]]:
        """Return at most `count` snippets, best first, for each of n regions, whose `features` are given as encoder ->
        (n, dim). Words of a snippet that are not in the vocabulary are left out. The score is the sum of the inner
        products of the region with the words of the snippet."""
        queries = self.model.embed_regions(Regions.from_features(np.hstack([features[name] for name in self.encoders])))
        starts = range(0, len(self.gallery), SNIPPET_BLOCK)
        blocks = (to_float32(self.gallery[start : start + SNIPPET_BLOCK]) for start in starts)
        nearest = search_exact(queries, blocks, count, "inner_product")
        terms = sources.corpus.vocabulary.terms
        words = [tuple(terms[i] for i in ids if i < len(terms)) for ids in self.snippets]
        described = []
        for rows, scores in map(nearest.of_query, range(len(queries))):
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
