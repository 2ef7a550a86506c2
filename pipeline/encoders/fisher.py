"""The text encoder `fisher`, which represents a text by the Fisher vector of its words (Klein et al. 2015)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from skimage.feature import fisher_vector
from sklearn.mixture import GaussianMixture

from pipeline.encoders.averaged import WordsEncoder, find_vectors, word_settings
from pipeline.encoders.material import PLAIN_WORDS, EncoderMaterial, Settings
from pipeline.errors import InputError
from pipeline.text.tokens import TermSettings
from pipeline.text.wordvectors import WordVectors

if TYPE_CHECKING:
    from pipeline.config.encoders import FisherEntry


class FisherEncoder(WordsEncoder):
    """Text encoder that returns the Fisher vector of the words of a text.

    The Fisher vector is the gradient of the log-likelihood of the word vectors under a Gaussian mixture with diagonal
    covariances, with respect to the weights, means and variances of the mixture. Signed square roots are applied, and
    the vector is scaled to unit length. Sources: Klein et al. (2015, section 3.1) and Perronnin et al. (2010).

    The mixture has K components with `weights` (K,), `means` (K, d) and `variances` (K, d), for the word vectors (V, d)
    of V words. If the word vectors have more dimensions than the key `principal` of the entry, `prepare` first reduces
    the word vectors to this number of principal components. The vector of a text without known words is zero.
    """

    kind = "fisher"

    def __init__(
        self, split: TermSettings, vectors: WordVectors, weights: np.ndarray, means: np.ndarray, variances: np.ndarray
    ) -> None:
        super().__init__(split, vectors)
        shape = (*weights.shape, self.vectors.shape[1])
        positive = (variances > 0).all() and (weights > 0).all()
        finite = all(np.isfinite(part).all() for part in (weights, means, variances))
        if means.shape != shape or variances.shape != shape or not positive or not finite:
            raise ValueError(
                f"the mixture must have means and variances of the shape {shape} for these word vectors, all finite,"
                f" and positive weights and variances. The means have the shape {means.shape}, the variances"
                f" {variances.shape}"
            )
        self.mixture = GaussianMixture(shape[0], covariance_type="diag")
        self.mixture.weights_ = weights
        self.mixture.means_ = means
        self.mixture.covariances_ = variances
        self.mixture.precisions_cholesky_ = 1 / np.sqrt(variances)
        self.dim = shape[0] * (2 * shape[1] + 1)

    @classmethod
    def prepare(cls, entry: "FisherEntry", material: EncoderMaterial) -> "FisherEncoder":
        """Fit the mixture to the vectors of all words of the training captions, or of a random sample of these words.

        The key `sample` of the entry is the largest number of words in the sample. A word counts as often as it occurs
        in the captions. Raises InputError if the number of different words is not greater than the number of
        components, or if the file of word vectors cannot be read.
        """
        assert material.texts is not None
        texts = material.texts
        known_vectors = find_vectors(entry, texts)
        words = WordsEncoder(PLAIN_WORDS, known_vectors)
        rows = np.fromiter((row for text in texts.texts() for row in words.rows(text)), np.int32)
        order = np.arange(len(rows), dtype=np.min_scalar_type(len(rows)))
        np.random.default_rng(material.seed).shuffle(order)
        rows = rows[np.sort(order[: entry.sample])]
        if len(np.unique(rows)) <= entry.components:
            raise InputError(
                f"text encoder {entry.name}: the training captions have {len(np.unique(rows))} different words with a"
                f" vector, which are too few for {entry.components} components. Lower the key `components`."
            )
        matrix = known_vectors.matrix
        if entry.principal and entry.principal < matrix.shape[1]:
            matrix = _reduce(matrix, matrix[rows], entry.principal)
        sample = matrix[rows].astype(np.float64)
        options = {"covariance_type": "diag", "random_state": material.seed, "reg_covar": 1e-6}
        mixture = GaussianMixture(entry.components, **options)
        mixture.fit(sample)
        weights, means, variances = map(np.asarray, (mixture.weights_, mixture.means_, mixture.covariances_))
        return cls(word_settings(texts), WordVectors(known_vectors.words, matrix), weights, means, variances)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for number, text in enumerate(texts):
            if rows := self.rows(text):
                vectors[number] = fisher_vector(self.vectors[rows].astype(np.float64), self.mixture, improved=True)
        return vectors

    def tensors(self) -> dict[str, np.ndarray]:
        mixture = self.mixture
        parts = {"weights": mixture.weights_, "means": mixture.means_, "variances": mixture.covariances_}
        return {**super().tensors(), **parts}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "FisherEncoder":
        return cls(*cls.read_known(settings, tensors), *(tensors[name] for name in ("weights", "means", "variances")))


def _reduce(vectors: np.ndarray, seen: np.ndarray, dimensions: int) -> np.ndarray:
    """Project `vectors` (V, d) on the first principal components of the vectors `seen` (n, d): (V, dimensions)
    float32."""
    mean = seen.mean(axis=0, dtype=np.float64)
    values, directions = np.linalg.eigh(np.cov(seen.astype(np.float64), rowvar=False))
    return ((vectors - mean) @ directions[:, ::-1][:, :dimensions]).astype(np.float32)
