"""The generators `lbl`, `mlbl`, `mnlm` and `sc-nlm`: log-bilinear language models (Kiros et al. 2014).

A generator makes many candidate sentences for an image with a neural network. It then ranks the candidates by two
scores, a translation model and a language model (feature functions in supplement 5.2).
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
from pipeline.text.tokens import english_stop_words
from pipeline.text.vocabulary import Tokens, Vocabulary, encode_tokens

SIZE_SETTINGS = ("context", "dimensions", "factors", "ahead", "dropout", "gate_bias")
"""The keys of a generator's settings that become fields of LogBilinearSizes with the same names."""
NEIGHBOURS = 5
"""Number of nearest words, and also number of nearest training sentences, for the second conditioning vector of an
image. This vector is the mean of the embeddings of the nearest words and sentences (N in supplement 5.2)."""
TEMPERATURE = 0.7
"""Temperature at which the words of candidates are sampled if the generator does not use parts of speech."""
MIN_STRUCTURE_WORDS = 4
"""Minimum number of words of a training sentence whose sequence of parts of speech is used for candidates (supplement
5.2)."""
MAX_WORDS = 12
"""Maximum number of words of a training sentence whose sequence of parts of speech is used for candidates (supplement
5.2). A candidate that is sampled without parts of speech is cut after this number of words."""
REPEAT_PENALTY = 0.8
"""Factor by which the positive cosine of a candidate is multiplied each time that the candidate repeats a word. Stop
words do not count. A negative cosine is lowered by the same amount as a positive cosine of the same absolute value."""
LANGUAGE_WEIGHT = 0.2
"""Weight of the mean log probability of a candidate's words and END, by the trigram model, in the score of the
candidate. The cosine has the weight 1."""


@dataclass(frozen=True)
class LanguageText:
    """m sentences in the form that a language model reads. `tokens` are the ids of the words, and `names` (m,) are the
    numbers of the sentences for error messages. `u` (m, c) are the conditioning vectors, which are the embeddings of
    the sentences in the joint space unless the caller replaces them. `tags` are the parts of speech of the words, as
    positions in TAGS, or None if the model does not use them."""

    tokens: Tokens
    names: np.ndarray
    u: np.ndarray
    tags: Tokens | None

    @classmethod
    def encode(
        cls, texts: Sequence[str], vocabulary: Vocabulary, space: JointSpace, tagger: Tagger | None
    ) -> "LanguageText":
        """Encode the `texts` that have words as word ids, embed these texts in `space`, and tag their words if `tagger`
        is not None. Texts without words are left out, and `names` are the positions of the other texts in `texts`."""
        tokens = encode_tokens(texts, vocabulary)
        names = np.flatnonzero(tokens.lengths)
        tokens = tokens.take(names)
        tags = tagger.tag(tokens, vocabulary.terms) if tagger else None
        return cls(tokens, names, space.sentences([texts[row] for row in map(int, names)]), tags)


class LanguageModel:
    """The base class of generators with a log-bilinear network. `structures` are the sequences of parts of speech of
    the training sentences, from which candidates are made, or None if the network does not use them. A subclass sets
    `network_type`."""

    network_type: ClassVar[type[LogBilinear]]

    def __init__(self, encoders: tuple[str, ...], network: LogBilinear, structures: Tokens | None) -> None:
        self.encoders = encoders
        self.structures = structures
        self.network = network.eval()

    @classmethod
    def learn(cls, material: Material) -> Learned:
        """Train the network on the training and extra sentences. Each sentence is conditioned on its own embedding in
        the joint space, and images are not used. Return the generator of the epoch with the lowest perplexity on dev,
        and the log of the training."""
        settings = material.settings
        vocabulary = material.vocabulary
        tagger = material.tagger if cls.network_type.structured else None
        texts = {"train": [*material.texts["train"], *material.extra], "dev": material.texts["dev"]}
        space = required(material.space)
        train_text, dev_text = (
            LanguageText.encode(texts[split], vocabulary, space, tagger) for split in ("train", "dev")
        )
        chosen = {name: getattr(settings, name) for name in SIZE_SETTINGS}
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
        """Compute the perplexity of the sentences `text` given the conditioning vectors `text.u`, over all words and
        sentence ends (END). Lower is better. All unknown words count as a single word, the unknown word."""
        return perplexity_of(self.network, lambda rows: self._batch(text, rows), text.tokens)

    def perplexities(self, held_out: HeldOut) -> dict[str, float]:
        """Compute the perplexity of held-out sentences, once for each of two conditioning vectors. `given_sentence` is
        the perplexity given the embedding of the sentence itself, as in training. `given_image` is the perplexity given
        the embedding of the image of the sentence."""
        space = required(held_out.space)
        pairs = held_out.pairs
        tagger = held_out.tagger if self.network.structured else None
        text = LanguageText.encode(held_out.texts, held_out.vocabulary, space, tagger)
        images = space.images(pairs.images(np.arange(pairs.n_images)))[pairs.owners[text.names]]
        return {"given_sentence": self.perplexity(text), "given_image": self.perplexity(replace(text, u=images))}

    def log_probabilities(self, features: Mapping[str, np.ndarray], given: HeldOut) -> np.ndarray:
        """Return the natural log probability (n, m) float32 of each of the m held-out sentences `given`, END included,
        given each of n images, whose `features` are encoder -> (n, dim). The conditioning vectors are the embeddings of
        the images. In training, the conditioning vectors were embeddings of sentences."""
        sentences = given.pairs.sentences
        network = self.network
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

    def generate_captions(
        self, features: Mapping[str, np.ndarray], sources: Sources, count: int
    ) -> list[list[Description]]:
        """Generate `sources.candidates` candidates for each of n images, whose `features` are given as encoder -> (n,
        dim), and return for each image at most `count` different candidates, best first.

        `sources` also has the joint space, which embeds the images, and the language model `trigram`, which helps to
        rank the candidates. The function `score` in this module computes the scores.
        """
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
    """The generator `lbl`. Its network ignores the conditioning vector, so only the ranking of the candidates uses the
    image."""

    network_type = LogBilinear


class AdditiveModel(LanguageModel):
    """The generator `mlbl`. Its network adds a projection of the conditioning vector to the predicted word vector (see
    Additive)."""

    network_type = Additive


class MultiplicativeModel(LanguageModel):
    """The generator `mnlm`. In its network, the conditioning vector weights the factors of the words (see
    Multiplicative)."""

    network_type = Multiplicative


class StructureContentModel(LanguageModel):
    """The generator `sc-nlm`. In its network, the conditioning vector and the parts of speech of the next words weight
    the factors of the words (see StructureContent)."""

    network_type = StructureContent


def rank_candidates(
    network: LogBilinear, structures: Tokens | None, images: np.ndarray, sources: Sources, count: int
) -> list[list[Description]]:
    """Generate `sources.candidates` candidates for each of n images, given by their embeddings `images` (n, c). Return
    for each image its `count` best different candidates, best first by `score`.

    `structures` are the sequences of parts of speech from which the candidates are made, or None. An image has fewer
    results if fewer than `count` of its candidates are different.
    """
    conditions = conditioning(images, sources)
    device = network.bias.device
    random = sources.generator(device)
    described = []
    terms = sources.corpus.vocabulary.terms
    for image, u in zip(images, conditions, strict=True):
        found = propose(network, structures, upload(u, device), sources.candidates, random)
        texts = [" ".join(terms[i] for i in ids) for ids in found]
        scores = score(texts, image, sources)
        best = np.argsort(-scores, kind="stable")[:count]
        described.append([Description(tuple(texts[i].split(" ")), float(scores[i])) for i in best])
    return described


def conditioning(images: np.ndarray, sources: Sources) -> np.ndarray:
    """Compute the two conditioning vectors of each of n images, given by their embeddings `images` (n, c). Return unit
    vectors (n, 2, c). The first vector is the embedding of the image. The second is the mean of the embeddings of the
    NEIGHBOURS nearest words and the NEIGHBOURS nearest training sentences in the joint space, scaled to unit length."""
    nearest = []
    for gallery in (required(sources.space).words, sources.sentence_vectors):
        nearest.append(gallery[search_exact(images, [gallery], min(NEIGHBOURS, len(gallery)), "inner_product").rows])
    mean = np.concatenate(nearest, axis=1).mean(axis=1)
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return np.stack([images, mean], axis=1)


def propose(
    network: LogBilinear, structures: Tokens | None, u: Tensor, count: int, random: torch.Generator
) -> list[tuple[int, ...]]:
    """Generate `count` candidates for one image, half from each of its conditioning vectors `u` (2, c). Return the
    candidates without repetitions, in the order in which they were generated.

    A candidate is a tuple of word ids. With `structures`, the function draws for each candidate a sequence of parts of
    speech with MIN_STRUCTURE_WORDS to MAX_WORDS words, and chooses the most probable word at each position. This
    approximates the MAP estimate of supplement 5.2. If `structures` is None, the function samples the words. All random
    numbers come from the generator `random`.
    """
    drawn = u[torch.arange(count, device=u.device) % len(u)]
    if structures is None:
        hypotheses = sample(WindowDecoder(network, drawn, None), MAX_WORDS, TEMPERATURE, random)
    else:
        legal = np.flatnonzero((structures.lengths >= MIN_STRUCTURE_WORDS) & (structures.lengths <= MAX_WORDS))
        chosen = torch.randint(len(legal), (count,), generator=random, device=random.device)
        rows = legal[chosen.cpu().numpy()]
        decoder = WindowDecoder(network, drawn, structures.take(rows))
        hypotheses = [best[0] for best in beam_search(decoder, BeamSearch(1, 0.0, MAX_WORDS + 1))]
    return list(dict.fromkeys(hypothesis.words for hypothesis in hypotheses))


def score(texts: list[str], image: np.ndarray, sources: Sources) -> np.ndarray:
    """Score k candidate `texts` for the embedding `image` (c,) by the translation and language models of supplement
    5.2. Return (k,), where higher is better. The score is the cosine of candidate and image in the joint space, lowered
    for repeated words (REPEAT_PENALTY), plus LANGUAGE_WEIGHT times the mean natural log probability of the candidate's
    words and END in the trigram model."""
    translation = required(sources.space).sentences(texts) @ image
    stop = frozenset(english_stop_words())
    content = [[word for word in text.split(" ") if word not in stop] for text in texts]
    repeated = np.array([len(words) - len(set(words)) for words in content])
    tokens = encode_tokens(texts, sources.corpus.vocabulary)
    language = required(sources.trigram).log_probability(tokens) / (tokens.lengths + 1)
    # The factor REPEAT_PENALTY would raise a negative cosine. Such a cosine is therefore lowered by as much as a
    # positive cosine of the same size.
    translation = translation - (1 - REPEAT_PENALTY**repeated) * np.abs(translation)
    return translation + LANGUAGE_WEIGHT * language
