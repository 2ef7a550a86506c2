"""Descriptions as in Kiros et al. 2014, supplement 5.2: many candidates for an image, ranked by two feature
functions."""

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
    """The `count` best candidates, best first, of every image (n, c) of the joint space; none twice for one image."""
    conditions, device = conditioning(images, sources), network.bias.device
    random = sources.generator(device)
    described = []
    for image, u in zip(images, conditions, strict=True):
        found = propose(network, structures, upload(u, device), sources.candidates, random)
        terms = sources.corpus.vocabulary.terms
        texts = [" ".join(terms[i] for i in ids) for ids in found]
        scores = score(texts, image, sources)
        best = np.argsort(-scores, kind="stable")[:count]
        described.append([Description(tuple(texts[i].split(" ")), float(scores[i])) for i in best])
    return described


def conditioning(images: np.ndarray, sources: Sources) -> np.ndarray:
    """(n, 2, c) unit vectors: of each image its embedding, and the mean of its nearest words and training sentences."""
    space, count = sources.space, sources.candidates.neighbours
    bags = [nearest_rows(images, gallery, count) for gallery in (space.words, sources.sentence_vectors)]
    mean = np.concatenate(bags, axis=1).mean(axis=1)
    mean /= np.maximum(np.linalg.norm(mean, axis=1, keepdims=True), 1e-12)
    return np.stack([images, mean], axis=1)


def nearest_rows(queries: np.ndarray, gallery: np.ndarray, count: int) -> np.ndarray:
    """(n, count, c): the rows of `gallery` (m, c) with the greatest inner products with `queries` (n, c)."""
    scores = queries @ gallery.T
    best = np.argpartition(-scores, min(count, scores.shape[1]) - 1, axis=1)[:, :count]
    return gallery[best]


def propose(
    network: LogBilinear, structures: Tokens | None, u: Tensor, settings: CandidatesSettings, random: torch.Generator
) -> list[tuple[int, ...]]:
    """Different sentences, as word numbers, for one image with the conditioning vectors `u` (2, c), half from each.

    Given a structure drawn from training, the words are the most probable ones one after another (MAP); without
    structures they are drawn.
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
    """(k,) of candidates for the image (c,): see pipeline.generate.describing.Candidates."""
    settings, vocabulary = sources.candidates, sources.corpus.vocabulary
    translation = sources.space.sentences(texts) @ image
    stop = frozenset(english_stop_words())
    content = [[word for word in text.split(" ") if word not in stop] for text in texts]
    repeated = np.array([len(words) - len(set(words)) for words in content])
    tokens = encode_tokens(texts, vocabulary)
    language = sources.trigram.log_probability(tokens) / (tokens.lengths + 1)
    return penalise(translation, repeated, settings.repeat_penalty) + settings.language_weight * language


def penalise(cosines: np.ndarray, repeated: np.ndarray, penalty: float) -> np.ndarray:
    """(k,) the `cosines` less what so many `repeated` words cost: a positive one becomes `penalty` times itself for
    each, as in Kiros et al. 2014, and a negative one loses as much; the factor alone would raise it."""
    return cosines - (1 - penalty**repeated) * np.abs(cosines)
