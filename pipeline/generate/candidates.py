"""Many candidate sentences for an image, ranked by two feature functions (Kiros et al. 2014, supplement 5.2)."""

import numpy as np
import torch
from torch import Tensor

from pipeline.device import upload
from pipeline.generate.beam import BeamSearch, beam_search, sample
from pipeline.generate.describing import Description, Sources
from pipeline.generate.logbilinear import LogBilinear, WindowDecoder
from pipeline.settings.generators import CandidatesSettings
from pipeline.text.sequences import Tokens, encode_tokens
from pipeline.text.tokens import english_stop_words


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
    count, nearest = sources.candidates.neighbours, []
    for gallery in (sources.space.words, sources.sentence_vectors):
        scores = images @ gallery.T
        nearest.append(gallery[np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]])
    mean = np.concatenate(nearest, axis=1).mean(axis=1)
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return np.stack([images, mean], axis=1)


def propose(
    network: LogBilinear, structures: Tokens | None, u: Tensor, settings: CandidatesSettings, random: torch.Generator
) -> list[tuple[int, ...]]:
    """Different sentences, as word ids, for one image: half from each of the conditioning vectors `u` (2, c).

    With `structures`, one is sampled and the most probable words are chosen one by one (MAP); without, words are
    sampled.
    """
    drawn = u[torch.arange(settings.count, device=u.device) % len(u)]
    if structures is None:
        hypotheses = sample(WindowDecoder(network, drawn, None), settings.longest, settings.temperature, random)
    else:
        lengths = structures.lengths
        legal = np.flatnonzero((lengths >= settings.shortest) & (lengths <= settings.longest))
        chosen = torch.randint(len(legal), (settings.count,), generator=random, device=random.device)
        rows = legal[chosen.cpu().numpy()]
        decoder = WindowDecoder(network, drawn, structures.take(rows))
        hypotheses = [best[0] for best in beam_search(decoder, BeamSearch(1, 0.0, settings.longest + 1))]
    return list(dict.fromkeys(hypothesis.words for hypothesis in hypotheses))


def score(texts: list[str], image: np.ndarray, sources: Sources) -> np.ndarray:
    """(k,) scores of candidates for `image` (c,): penalised cosine plus weighted log P per word."""
    settings, vocabulary = sources.candidates, sources.corpus.vocabulary
    translation = sources.space.sentences(texts) @ image
    stop = frozenset(english_stop_words())
    content = [[word for word in text.split(" ") if word not in stop] for text in texts]
    repeated = np.array([len(words) - len(set(words)) for words in content])
    tokens = encode_tokens(texts, vocabulary)
    language = sources.trigram.log_probability(tokens) / (tokens.lengths + 1)
    return penalise(translation, repeated, settings.repeat_penalty) + settings.language_weight * language


def penalise(cosines: np.ndarray, repeated: np.ndarray, penalty: float) -> np.ndarray:
    """(k,) `cosines` reduced for `repeated` words: each multiplies a positive one by `penalty` (Kiros et al. 2014); a
    negative one, which the factor would raise, loses the same amount."""
    return cosines - (1 - penalty**repeated) * np.abs(cosines)
