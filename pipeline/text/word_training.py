"""Word vectors learned on a corpus: word2vec's skip-gram with negative sampling, by gensim."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from pipeline.errors import InputError, UsageError


def train_vectors(
    sentences: Iterable[np.ndarray], terms: Sequence[str], dim: int, window: int, epochs: int, seed: int
) -> np.ndarray:
    """(V + 1, dim) float32: the vectors of the V `terms`, and last, of every unknown word, their mean.

    `sentences` are the ids of words, V for an unknown word, which is no neighbour of any. One thread learns, so that
    the same seed gives the same vectors. A term that is in no sentence gets the mean, too. Raises UsageError where
    gensim is not installed, and InputError where no sentence has two known words.
    """
    try:
        from gensim.models import Word2Vec
    except ImportError as error:
        raise UsageError(
            "word_vectors.source corpus needs gensim: pip install 'jointspace[words]', or choose another source"
        ) from error
    corpus = list(_known(sentences, len(terms)))
    if not corpus:
        raise InputError("no sentence has two words of the vocabulary; lower tokens.min_count, or draw the vectors")
    model = Word2Vec(
        corpus, vector_size=dim, window=window, min_count=1, sg=1, workers=1, epochs=epochs, seed=seed + 1, sample=1e-4
    )  # gensim takes no seed of 0
    rows = np.array([int(word) for word in model.wv.index_to_key])
    table = np.tile(model.wv.vectors.mean(axis=0), (len(terms) + 1, 1))
    table[rows] = model.wv.vectors
    return table.astype(np.float32)


def _known(sentences: Iterable[np.ndarray], unknown: int) -> Iterator[list[str]]:
    """Sentences without their unknown words, as gensim takes them; those of one word teach nothing."""
    for ids in sentences:
        known = [str(i) for i in ids.tolist() if i != unknown]
        if len(known) > 1:
            yield known
