"""`lbl`, `mlbl`, `mnlm` and `sc-nlm`: log-bilinear language models (Kiros et al. 2014).

They describe an image by many candidate sentences, ranked by two feature functions (supplement 5.2).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pipeline.compute.device import move_tensors, upload
from pipeline.generate.beam import BeamSearch, beam_search, sample
from pipeline.generate.generator import (
    TAGS,
    Description,
    HeldOut,
    JointSpace,
    Learned,
    Material,
    Sources,
    Tagger,
)
from pipeline.generate.logbilinear import (
    Additive,
    LogBilinear,
    LogBilinearSizes,
    Multiplicative,
    StructureContent,
    WindowDecoder,
)
from pipeline.generate.training import log_frequencies, log_probabilities, perplexity_of, train, windows
from pipeline.index.exact import search_exact
from pipeline.models.joint_model import Settings, read_list
from pipeline.models.neural.networks import arrays_of
from pipeline.models.neural.task import required
from pipeline.models.neural.training import seeded
from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.tokens import english_stop_words
from pipeline.text.vocabulary import Vocabulary

CHOSEN = ("context", "dimensions", "factors", "ahead", "dropout", "gate_bias")
"""The settings that are sizes of the network."""
NEIGHBOURS = 5
"""Words, and sentences, nearest to an image, whose mean is the other vector that candidates are made from."""
TEMPERATURE = 0.7
"""At which words are drawn where no parts of speech guide them."""
SHORTEST, LONGEST = 4, 12
"""Words of the training sentences whose structures are drawn; the latter of candidates, too."""
REPEAT_PENALTY = 0.8
"""Factor on a positive cosine for every repetition of a word that is no stop word."""
LANGUAGE_WEIGHT = 0.2
"""Of the trigram's log probability a word."""


@dataclass(frozen=True)
class LanguageText:
    """m training sentences: `tokens`, `names` (m,) for error messages, their vectors `u` (m, c) in the joint space, and
    `tags`, the part of speech of every word, if a model needs it."""

    tokens: Tokens
    names: np.ndarray
    u: np.ndarray
    tags: Tokens | None

    @classmethod
    def of(
        cls, texts: Sequence[str], vocabulary: Vocabulary, space: JointSpace, tagger: Tagger | None
    ) -> "LanguageText":
        """Encode the `texts` that have words; with a `tagger`, also their tags. Names are positions in `texts`."""
        tokens = encode_tokens(texts, vocabulary)
        names = np.flatnonzero(tokens.lengths)
        tokens = tokens.take(names)
        tags = tagger.tag(tokens, vocabulary.terms) if tagger else None
        return cls(tokens, names, space.sentences([texts[row] for row in map(int, names)]), tags)


class LanguageModel:
    """A log-bilinear network and the structures (sequences of parts of speech) of its training sentences."""

    network_type: ClassVar[type[LogBilinear]]

    def __init__(self, encoders: tuple[str, ...], network: LogBilinear, structures: Tokens | None) -> None:
        self.encoders, self.structures = encoders, structures
        self.network = network.eval()

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """The model trained on the training and extra sentences, embedded in the joint space."""
        settings, vocabulary = material.settings, material.vocabulary
        tagger = material.tagger if cls.network_type.structured else None
        texts = {"train": [*material.texts["train"], *material.extra], "dev": material.texts["dev"]}
        space = required(material.space)
        train_text, dev_text = (LanguageText.of(texts[split], vocabulary, space, tagger) for split in ("train", "dev"))
        chosen = {name: getattr(settings, name) for name in CHOSEN}
        sizes = LogBilinearSizes(condition=train_text.u.shape[1], tags=len(TAGS), **chosen)
        frequencies = log_frequencies(train_text.tokens, len(vocabulary.terms) + 2)
        with seeded(material.seed):
            network = cls.network_type(sizes, torch.tensor(frequencies))
        model = cls(material.view.encoders, network, train_text.tags).to(material.device)
        log = train(
            network,
            lambda rows: model._batch(train_text, rows),
            train_text.names,
            lambda: model.perplexity(dev_text),
            material,
        )
        return Learned(model, log)

    def to(self, device: torch.device) -> "LanguageModel":
        self.network.to(device)
        return self

    def _batch(self, text: LanguageText, rows: np.ndarray) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        tags = required(text.tags).take(rows) if self.network.structured else None
        sizes = self.network.sizes
        boundary = len(self.network.bias) - 1
        found = windows(text.tokens.take(rows), boundary, sizes.context, tags, sizes.tags, sizes.ahead)
        return found.context, found.targets, torch.from_numpy(text.u[rows])[found.sentences], found.tags

    def perplexity(self, text: LanguageText) -> float:
        """The perplexity of `text` given its vectors, over words and ENDs; unknown words count as one word."""
        return perplexity_of(self.network, lambda rows: self._batch(text, rows), text.tokens)

    def perplexities(self, held_out: HeldOut) -> dict[str, float]:
        """The perplexity of held-out sentences, given their own vectors (as in training) and given their images'."""
        space, pairs = required(held_out.space), held_out.pairs
        tagger = held_out.tagger if self.network.structured else None
        text = LanguageText.of(held_out.texts, held_out.vocabulary, space, tagger)
        images = space.images(pairs.images(np.arange(pairs.n_images)))[pairs.owners[text.names]]
        return {"given_sentence": self.perplexity(text), "given_image": self.perplexity(replace(text, u=images))}

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """(n, m) float32: as MultimodalRNN's; an image's vector in the joint space takes the place of a sentence's."""
        sentences, network = given.pairs.sentences, self.network
        device = network.bias.device
        images = upload(required(given.space).images(features), device)
        tags = required(given.tagger).tag(sentences, given.vocabulary.terms) if network.structured else None
        unused = np.zeros((len(sentences), images.shape[1]))
        text = LanguageText(sentences, np.arange(len(sentences)), unused, tags)

        def open_block(rows: np.ndarray) -> tuple[Tensor, Callable[[int], Tensor]]:
            context, targets, _, kinds = move_tensors(self._batch(text, rows), device)
            owners = upload(np.repeat(np.arange(len(rows)), sentences.lengths[rows] + 1), device)
            return owners, lambda image: network.losses(context, targets, images[image].expand(len(targets), -1), kinds)

        return log_probabilities(sentences, len(images), open_block)

    def describe(self, features: Mapping[str, np.ndarray], sources: Sources, count: int) -> list[list[Description]]:
        """The best of many candidates for every image; for scores see `score`."""
        images = required(sources.space).images(features)
        return rank_candidates(self.network, self.structures, images, sources, count)

    def settings(self) -> dict[str, Any]:
        return {"encoders": list(self.encoders), **asdict(self.network.sizes)}

    def tensors(self) -> dict[str, np.ndarray]:
        tensors = arrays_of(self.network)
        if self.structures is not None:
            tensors["structures/ids"] = self.structures.ids.astype(np.uint8)
            tensors["structures/offsets"] = self.structures.offsets
        return tensors

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "LanguageModel":
        stored: dict[str, Any] = {field.name: settings[field.name] for field in fields(LogBilinearSizes)}
        sizes = LogBilinearSizes(**stored)
        parts = {name: torch.tensor(array) for name, array in tensors.items() if not name.startswith("structures/")}
        network = cls.network_type(sizes, parts["bias"])
        network.load_state_dict(parts)
        structures = None
        if network.structured:
            structures = Tokens(tensors["structures/ids"].astype(np.int32), tensors["structures/offsets"])
        return cls(tuple(read_list(settings, "encoders")), network, structures)


class LogBilinearModel(LanguageModel):
    """`lbl`: the image matters only for ranking."""

    network_type = LogBilinear


class AdditiveModel(LanguageModel):
    """`mlbl`: the vector in the joint space is added to the prediction."""

    network_type = Additive


class MultiplicativeModel(LanguageModel):
    """`mnlm`: the vector in the joint space weights the factors of words."""

    network_type = Multiplicative


class StructureContentModel(LanguageModel):
    """`sc-nlm`: so do the parts of speech of the words to come."""

    network_type = StructureContent


def rank_candidates(
    network: LogBilinear, structures: Tokens | None, images: np.ndarray, sources: Sources, count: int
) -> list[list[Description]]:
    """The `count` best different candidates, best first, for each of `images` (n, c) in the joint space."""
    conditions, device = conditioning(images, sources), network.bias.device
    random = sources.generator(device)
    described, terms = [], sources.corpus.vocabulary.terms
    for image, u in zip(images, conditions, strict=True):
        found = propose(network, structures, upload(u, device), sources.candidates, random)
        texts = [" ".join(terms[i] for i in ids) for ids in found]
        scores = score(texts, image, sources)
        best = np.argsort(-scores, kind="stable")[:count]
        described.append([Description(tuple(texts[i].split(" ")), float(scores[i])) for i in best])
    return described


def conditioning(images: np.ndarray, sources: Sources) -> np.ndarray:
    """(n, 2, c) unit vectors: each image's embedding, and the mean of its nearest words and training sentences."""
    nearest = []
    for gallery in (required(sources.space).words, sources.sentence_vectors):
        nearest.append(gallery[search_exact(images, [gallery], min(NEIGHBOURS, len(gallery)), "inner_product").rows])
    mean = np.concatenate(nearest, axis=1).mean(axis=1)
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return np.stack([images, mean], axis=1)


def propose(
    network: LogBilinear, structures: Tokens | None, u: Tensor, count: int, random: torch.Generator
) -> list[tuple[int, ...]]:
    """Return at most `count` different sentences as word ids: half from each of the conditioning vectors `u` (2, c).

    With `structures`, one is sampled and its most probable words are chosen (MAP); without, words are sampled.
    """
    drawn = u[torch.arange(count, device=u.device) % len(u)]
    if structures is None:
        hypotheses = sample(WindowDecoder(network, drawn, None), LONGEST, TEMPERATURE, random)
    else:
        legal = np.flatnonzero((structures.lengths >= SHORTEST) & (structures.lengths <= LONGEST))
        chosen = torch.randint(len(legal), (count,), generator=random, device=random.device)
        rows = legal[chosen.cpu().numpy()]
        decoder = WindowDecoder(network, drawn, structures.take(rows))
        hypotheses = [best[0] for best in beam_search(decoder, BeamSearch(1, 0.0, LONGEST + 1))]
    return list(dict.fromkeys(hypothesis.words for hypothesis in hypotheses))


def score(texts: list[str], image: np.ndarray, sources: Sources) -> np.ndarray:
    """(k,) scores of candidates for `image` (c,): penalised cosine plus weighted log P per word."""
    translation = required(sources.space).sentences(texts) @ image
    stop = frozenset(english_stop_words())
    content = [[word for word in text.split(" ") if word not in stop] for text in texts]
    repeated = np.array([len(words) - len(set(words)) for words in content])
    tokens = encode_tokens(texts, sources.corpus.vocabulary)
    language = required(sources.trigram).log_probability(tokens) / (tokens.lengths + 1)
    # A repetition lowers a negative cosine, which the factor would raise, by as much.
    translation = translation - (1 - REPEAT_PENALTY**repeated) * np.abs(translation)
    return translation + LANGUAGE_WEIGHT * language
