"""A joint space fitted to vectors that are already there: those of any image encoder and of any text encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from scipy import sparse

from pipeline import config, runtime
from pipeline.errors import InputError, UsageError
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import CUTOFFS
from pipeline.models.linear.accumulation import BLOCK_ROWS, MomentsAccumulator
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.moments import Moments
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import PairArrays
from pipeline.models.linear.views import ImageView
from pipeline.specs.models import GRID
from pipeline.storage.fingerprint import fingerprint
from pipeline.storage.parameters import MODEL, digest_tensors, read_parameters, write_parameters

Rows = np.ndarray | sparse.sparray | sparse.spmatrix
FILE, NAME, VIEW = "model.safetensors", "ncca", "image"
FEWEST, HELD_OUT, MOST_HELD_OUT = 10, 10, 1000
"""Images that a fit needs; one in so many is held out, and at most so many are."""


@dataclass(frozen=True)
class Pairs:
    """Images (n, D) float32, texts (m, d) sparse float32, and the image row of each text, `owners` (m,)."""

    images: np.ndarray
    texts: sparse.csr_array
    owners: np.ndarray

    def of(self, chosen: np.ndarray) -> "Pairs":
        """Those of the images `chosen` (n,) bool."""
        texts = np.flatnonzero(chosen[self.owners])
        return Pairs(self.images[chosen], self.texts[texts], (np.cumsum(chosen) - 1)[self.owners[texts]])


class FittedSpace:
    """Normalized CCA (Gong et al. 2014, eq. 2) of image and text vectors; `fit` makes one.

    `held_out` has recall@1, @5 and @10 in percent on the part that chose `choice` (ridges, dimensions, the power of the
    eigenvalues), by direction; the space itself is then fitted to all pairs.
    """

    def __init__(self, model: NormalizedCCA, choice: Mapping[str, Any], held_out: Mapping[str, Any]) -> None:
        self.model, self.choice, self.held_out = model, dict(choice), dict(held_out)

    @property
    def dim(self) -> int:
        """c, the dimensions of the joint space."""
        return len(self.model.directions.values)

    def embed_images(self, vectors: np.ndarray) -> np.ndarray:
        """(n, c) float32 of unit length, from image vectors (n, D)."""
        return self.model.embed_images({VIEW: _dense(vectors, "image_vectors", self.model.view.dim)})

    def embed_texts(self, vectors: Rows) -> np.ndarray:
        """(m, c) float32 of unit length, from text vectors (m, d), dense or sparse."""
        return self.model.embed_sentences(_sparse(vectors, "text_vectors", len(self.model.mean_y)))

    def save(self, folder: str | Path) -> None:
        """Write it into a folder, from which FittedSpace.load reads it."""
        details = {"registered": NAME, "choice": self.choice, "held_out": self.held_out}
        tensors, settings = self.model.tensors(), self.model.settings()
        digest = fingerprint("joint space", 1, {"settings": settings}, {"tensors": digest_tensors(tensors)})
        path = Path(folder) / FILE
        write_parameters(path, MODEL, tensors, settings=settings, fingerprint=digest, details=details)

    @classmethod
    def load(cls, folder: str | Path) -> "FittedSpace":
        """What `save` wrote. Raises IntegrityError where it was damaged."""
        from pipeline.specs.stored import restore

        stored = read_parameters(Path(folder) / FILE, MODEL)
        model = restore(NAME, stored.settings, stored.tensors, folder)
        return cls(model, stored.details["choice"], stored.details["held_out"])


def fit(
    image_vectors: np.ndarray,
    text_vectors: Rows,
    owners: np.ndarray | None = None,
    *,
    weak: tuple[np.ndarray, Rows] | None = None,
    normalise: tuple[str, ...] = ("l2",),
    seed: int = 0,
    **grid: Any,
) -> FittedSpace:
    """The joint space of image vectors (n, D) and text vectors (m, d), dense or scipy's sparse.

    Text j is of image `owners[j]`; without `owners`, of image j. `weak` are further pairs with noisier texts, such as
    titles or tags, in the same two spaces; how much they count is chosen too (Gong et al. 2014, section 4). `normalise`
    are steps on image vectors: `sqrt`, `l2`. One image in ten, drawn by `seed`, chooses among the values that `grid`
    names (`dimensions`, `image_ridge`, `text_ridge`, `eigenvalue_power`; default: those of config/default.yaml).

    >>> rng = np.random.default_rng(0)
    >>> meaning = rng.normal(size=(400, 8))
    >>> images = meaning @ rng.normal(size=(8, 50)) + 0.1 * rng.normal(size=(400, 50))
    >>> texts = meaning @ rng.normal(size=(8, 30)) + 0.1 * rng.normal(size=(400, 30))
    >>> space = fit(images[:300], texts[:300])
    >>> scores = space.embed_images(images[300:]) @ space.embed_texts(texts[300:]).T
    >>> bool((scores.argmax(axis=1) == np.arange(100)).mean() > 0.9)
    True

    Raises InputError for vectors that are not finite, not of one length, or too few, and UsageError for another grid.
    """
    pairs = _pairs(image_vectors, text_vectors, owners)
    if (count := len(np.unique(pairs.owners))) < FEWEST:
        raise InputError(f"{count} images with a text are too few to choose anything by; give at least {FEWEST}")
    values = config.load()
    try:
        settings = values.fit.changed({name: np.atleast_1d(value).tolist() for name, value in grid.items()})
    except ValidationError as error:
        raise UsageError(f"fit: {error.errors()[0]['msg']}; there are {', '.join(GRID)}, lists of numbers") from error
    view = ImageView((VIEW,), (pairs.images.shape[1],), tuple(normalise))
    auxiliary = None
    if weak is not None:
        auxiliary = _moments(view, _pairs(*weak, None, pairs.images.shape[1], pairs.texts.shape[1]))
    described = np.unique(pairs.owners)
    drawn = np.random.default_rng(seed).permutation(described)[: min(max(len(described) // HELD_OUT, 2), MOST_HELD_OUT)]
    held_out = np.isin(np.arange(len(pairs.images)), drawn)
    dev, train = pairs.of(held_out), _moments(view, pairs.of(~held_out))
    training = "joint" if weak is not None else "target"
    arrays = PairArrays({VIEW: dev.images}, dev.texts, dev.owners)

    def task(moments: Moments, chosen: Any = None) -> FitTask:
        sets = Sets(moments, auxiliary, tuple, tuple)
        return FitTask(training, view, sets, arrays, settings, values.transfer, None, seed, chosen=chosen)

    tuned = NormalizedCCA.fit(task(train))
    ranks = count_ranks(
        tuned.model.embed_images(arrays.features), tuned.model.embed_sentences(dev.texts), dev.owners, "inner_product"
    )
    recall = {
        name: {f"recall@{k}": 100 * float(np.mean(found <= k)) for k in CUTOFFS}
        for name, found in vars(ranks).items()
        if isinstance(found, np.ndarray)
    }
    whole = NormalizedCCA.fit(task(train + _moments(view, dev), tuned.chosen))
    return FittedSpace(whole.model, vars(tuned.chosen), {"images": len(dev.images), **recall})


def _pairs(
    images: np.ndarray, texts: Rows, owners: np.ndarray | None, dim: int | None = None, terms: int | None = None
) -> Pairs:
    x, y = _dense(images, "image_vectors", dim), _sparse(texts, "text_vectors", terms)
    owners = np.arange(y.shape[0]) if owners is None else np.asarray(owners)
    if len(owners) != y.shape[0] or owners.dtype.kind not in "iu" or not ((owners >= 0) & (owners < len(x))).all():
        raise InputError(
            f"{y.shape[0]} texts of {len(x)} images need owners: for each text the row of its image, from 0"
        )
    order = np.argsort(owners, kind="stable")
    return Pairs(x, y[order], owners[order].astype(np.int64))


def _dense(vectors: Any, name: str, dim: int | None) -> np.ndarray:
    found = np.ascontiguousarray(vectors, np.float32)
    if found.ndim != 2 or not np.isfinite(found).all() or (dim is not None and found.shape[1] != dim):
        raise InputError(f"{name} must be (n, {dim or 'D'}) finite numbers, not {found.shape}")
    return found


def _sparse(vectors: Any, name: str, dim: int | None) -> sparse.csr_array:
    if not sparse.issparse(vectors):
        return sparse.csr_array(_dense(vectors, name, dim))
    found = sparse.csr_array(vectors, dtype=np.float32)
    if not np.isfinite(found.data).all() or (dim is not None and found.shape[1] != dim):
        raise InputError(f"{name} must be (n, {dim or 'd'}) finite numbers, not {found.shape}")
    return found


def _moments(view: ImageView, pairs: Pairs) -> Moments:
    total = MomentsAccumulator(view.dim, pairs.texts.shape[1], runtime.threads())
    for start in range(0, len(pairs.images), BLOCK_ROWS):
        first, last = np.searchsorted(pairs.owners, [start, start + BLOCK_ROWS])
        x = view.stack({VIEW: pairs.images[start : start + BLOCK_ROWS]})
        total.add(x, pairs.texts[first:last], pairs.owners[first:last] - start)
    return total.result()
