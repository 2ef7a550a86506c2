"""The base class of all linear models, which project each view, and WordStart, from which neural models of words take
their initial weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from pipeline.compute.multivectors import ScoreRule
from pipeline.compute.precision import scale_to_unit_length
from pipeline.models.joint_model import (
    Features,
    RegionSource,
    Sentences,
    Settings,
    read_number,
    read_setting,
    require_vectors,
)
from pipeline.models.linear.feature_maps import FeatureMaps, mapped_columns, project
from pipeline.models.linear.views import ImageView, Rows, TextView, one_matrix, shape_of, side_by_side

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.text_encoder import TextEncoder
    from pipeline.models.linear.device import Projections
    from pipeline.models.linear.moments import Moments

EIGENVALUES = {"correlation": 0.0, "gong": 1.0}
"""Form of the CCA problem -> the number that is added to a canonical correlation rho to get the eigenvalue lambda.

`correlation` solves Cxy u = rho Cxx w and Cyx w = rho Cyy u, so that lambda = rho. `gong` solves the form in the
published code of Gong et al. (MultiviewCCA), C v = lambda B v, where C has all four blocks of the covariance and B only
the diagonal blocks. There lambda = 1 + rho.
"""
EMBEDDED_ROWS = 4096
"""Maximum number of images, or of sentences, that a linear model maps and projects at once on a CPU. A block of this
size takes 116 MB for 7,096 mapped columns. With larger blocks, the allocation of memory takes much of the time."""


@dataclass(frozen=True)
class Directions:
    """The directions of two views: `w` (D, c) for images and `u` (d, c) for sentences, with the best columns first.

    `values` (c,) has a number for each direction. In the result of a CCA solver, the values are the canonical
    correlations. In a fitted CCA model, they are the eigenvalues, which are the correlations plus a number in
    EIGENVALUES. The values are variances for ridge regression, covariances for Procrustes, and ones for Wsabie and
    ASIF, whose columns have no order.
    """

    w: np.ndarray
    u: np.ndarray
    values: np.ndarray

    def first(self, count: int) -> "Directions":
        """Return the first `count` directions with their values, or all directions if there are fewer."""
        return Directions(self.w[:, :count], self.u[:, :count], self.values[:count])


class Solver(Protocol):
    """The closed-form solution of a linear model on one set of moments. `solve` computes the solution for any pair of
    ridges, and may be called many times."""

    def __init__(self, moments: "Moments") -> None: ...

    def solve(self, image_ridge: float, text_ridge: float, dimensions: int) -> Directions:
        """Compute the `dimensions` best directions, or fewer if the data have a lower rank.

        Each ridge is relative to the mean variance of its view. Some solvers ignore one or both of the ridges. Raises
        InputError if the problem cannot be solved with these ridges, for example because a covariance is singular.
        """
        ...


class LinearModel:
    """A linear projection of each view.

    An image x becomes finish((x - mean_x) W), and a sentence y becomes finish((y - mean_y) U), where W is
    `directions.w` (D, c), and U is `directions.u` (d, c). `view` and `text` normalise the stored vectors to x and y. If
    the model has `maps`, x and y are the mapped views.

    A subclass sets its `metric` and, if it is fitted to moments, its `solver`. A subclass also says whether the solver
    uses the text ridge (`uses_text_ridge`), whether `finish` uses the power of the eigenvalues
    (`uses_eigenvalue_power`), and whether settings are chosen on dev by the mean rank instead of by the recall sum
    (`by_mean_rank`).
    """

    solver: ClassVar[type[Solver]]
    metric: str = "euclidean"
    multi_vector: bool = False
    rule: ScoreRule | None = None
    region_encoders: tuple[str, ...] = ()
    uses_text_ridge: ClassVar[bool] = True
    uses_eigenvalue_power: ClassVar[bool] = False
    by_mean_rank: bool = False
    sentence_view: str = "vectors"

    def __init__(
        self,
        view: ImageView,
        text: TextView,
        mean_x: np.ndarray,
        mean_y: np.ndarray,
        directions: Directions,
        eigenvalue_power: float = 0,
        maps: FeatureMaps | None = None,
    ) -> None:
        self.view = view
        self.text = text
        self.mean_x = mean_x.astype(np.float32)
        self.mean_y = mean_y.astype(np.float32)
        self.directions = Directions(*(part.astype(np.float32, copy=False) for part in vars(directions).values()))
        self.eigenvalue_power = eigenvalue_power
        self.maps = maps or FeatureMaps()
        self._projections: Projections | None = None

    def to(self, device: "torch.device") -> Self:
        """Make this model embed on `device` with PyTorch from now on, and return the model itself, not a copy.

        If a feature map needs NumPy, the model is not changed and still embeds on the CPU.
        """
        if self.maps.can_use_gpu():
            from pipeline.models.linear.device import ProjectedSide, Projections

            image = ProjectedSide(self.mean_x, self.directions.w, self.maps.image)
            text = ProjectedSide(self.mean_y, self.directions.u, self.maps.text)
            self._projections = Projections(self.view, image, text, device)
        return self

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Turn the projections `projected` (n, c) into embeddings (n, c). This base class returns the projections.

        `values` (c,) are the values of the directions, and `power` is the eigenvalue power.
        """
        return projected

    @property
    def encoders(self) -> tuple[str, ...]:
        return self.view.encoders

    @property
    def text_encoders(self) -> tuple[str, ...]:
        return self.text.encoders

    def embed_images(self, features: Features, regions: "RegionSource | None" = None) -> np.ndarray:
        """Embed the n images of `features`, encoder -> array (n, dimensions of the encoder). Return (n, c) float32.
        `regions` are not read. Raises IntegrityError if an encoder of the model is missing or its features have another
        shape."""
        if self._projections:
            return self._finish(self._projections.images(features))

        def embed(rows: slice) -> np.ndarray:
            stacked = self.view.stack({name: block[rows] for name, block in features.items()})
            return project(mapped_columns(stacked, self.maps.image), self.mean_x, self.directions.w)

        return self._finish(_in_blocks(embed, self.view.count_rows(features)))

    def embed_sentences(self, sentences: "Sentences") -> np.ndarray:
        """Embed n `sentences`, text encoder -> sparse or dense vectors (n, dimensions of the encoder). Return (n, c)
        float32. Raises IntegrityError if a text encoder of the model is missing or its vectors have another shape, and
        TypeError if `sentences` is not such a mapping."""
        y = self.text.stack(require_vectors(sentences))
        if self._projections:
            return self._finish(self._projections.sentences(y))

        def embed(rows: slice) -> np.ndarray:
            return project(mapped_columns(y[rows], self.maps.text), self.mean_y, self.directions.u)

        return self._finish(_in_blocks(embed, shape_of(y)[0]))

    def _finish(self, projected: np.ndarray) -> np.ndarray:
        return self.finish(projected, self.directions.values, self.eigenvalue_power)

    def settings(self) -> dict[str, Any]:
        views = {**vars(self.view), "text": self.text.to_dict()}
        return {**views, "eigenvalue_power": self.eigenvalue_power, "maps": self.maps.settings()}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"mean_x": self.mean_x, "mean_y": self.mean_y, **vars(self.directions), **self.maps.tensors()}

    @classmethod
    def from_parts(cls, settings: Settings, tensors: Mapping[str, np.ndarray]) -> "LinearModel":
        view = ImageView.from_dict(settings)
        text = TextView.from_dict(read_setting(settings, "text", dict))
        power = read_number(settings, "eigenvalue_power")
        directions = Directions(tensors["w"], tensors["u"], tensors["values"])
        maps = FeatureMaps.from_parts(read_setting(settings, "maps", dict), tensors)
        return cls(view, text, tensors["mean_x"], tensors["mean_y"], directions, power, maps)


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Return a copy of `rows` (n, c) whose rows have unit length. Rows of zeros stay zero."""
    return scale_to_unit_length(rows.copy())


def _in_blocks(embed: Callable[[slice], np.ndarray], count: int) -> np.ndarray:
    """Call `embed` on slices that together cover `count` rows, and return its results (k, c) as one array (count, c).
    If `count` is 0, `embed` is called on an empty slice."""
    return np.concatenate(
        [embed(slice(start, start + EMBEDDED_ROWS)) for start in range(0, max(count, 1), EMBEDDED_ROWS)]
    )


def column_signs(matrix: np.ndarray) -> np.ndarray:
    """Return for each column of `matrix` (D, c) the sign of the entry with the greatest absolute value, as (c,). A sign
    is 1 or -1, or 0 for a column of zeros. Solvers multiply directions by these signs, so that the directions do not
    depend on the machine."""
    return np.sign(matrix[np.abs(matrix).argmax(axis=0), np.arange(matrix.shape[1])])


class UnitProjections:
    """A second base class, besides LinearModel, of models whose embeddings are projections of unit length, compared by
    cosine."""

    metric: str = "inner_product"

    @staticmethod
    def finish(projected: np.ndarray, values: np.ndarray, power: float) -> np.ndarray:
        """Return a copy of `projected` (n, c) with rows of unit length. `values` and `power` are not used."""
        return unit_rows(projected)


@dataclass(frozen=True)
class WordStart:
    """A fitted `ncca` and the words of its text view, from which a neural model takes its initial weights.

    `terms` (V + 1, d) has one row for each of the V words of the token vocabulary: the vector that the word adds to the
    vector of a sentence before any normalisation. The columns of each text encoder are multiplied by a factor, which
    the method `encode_words` explains. The last row is zero and belongs to the unknown word.
    """

    model: LinearModel
    terms: Rows

    @classmethod
    def encode_words(
        cls, model: LinearModel, encoders: "Mapping[str, TextEncoder]", words: Sequence[str], texts: Sequence[str]
    ) -> "WordStart":
        """Encode the `words` by the text encoders of `model`, a fitted `ncca`, and return the WordStart. `encoders`
        maps the names of these text encoders to the encoders.

        `words` are the V words of the token vocabulary, followed by an empty text for the unknown word. `texts` are
        training sentences.

        A block is the columns of one text encoder in a vector. In the vector of a sentence, each block is normalised
        separately. The sum of the vectors of the words of a sentence is not normalised, so its blocks have other
        proportions. Therefore each block of the word vectors, except the first block, is multiplied by a factor. The
        factors are measured on `texts`. With them, the root mean square length of the sums of words, divided by the
        root mean square length of the sentences, is the same in all blocks.
        """
        blocks = []
        factors = []
        for name in model.text.encoders:
            view = model.text.select([name])
            encoder = encoders[name]
            length = _length(view.stack({name: encoder.encode(texts)}))
            length_of_sums = _length(view.unnormalised.stack({name: encoder.encode_words(texts)}))
            factors.append(length / max(length_of_sums, float(np.finfo(np.float32).tiny)))
            blocks.append(one_matrix(view.unnormalised.stack({name: encoder.encode_words(words)})))
        scales = np.array(factors, np.float32) / np.float32(factors[0] or 1)
        return cls(model, side_by_side([block * scale for block, scale in zip(blocks, scales, strict=True)]))


def _length(rows: Rows) -> float:
    """Compute the root mean square length of `rows` (n, d), dense or sparse, or 0 if there are no rows."""
    matrix = one_matrix(rows)
    return float(np.sqrt((matrix * matrix).sum() / max(1, shape_of(matrix)[0])))
