"""Fitting a joint space to precomputed vectors of any image encoder and any text encoder."""

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError
from scipy import sparse

from jointspace.arguments import Block, Views, row_count, to_count, to_dense_views, to_strings, to_views
from pipeline.collections.formats.vectors import nameless
from pipeline.compute import runtime
from pipeline.compute.precision import to_numpy
from pipeline.config import loading
from pipeline.config.models import FitSettings
from pipeline.config.registry import GRID
from pipeline.errors import InputError, UsageError
from pipeline.foreign.image_names import relative_name
from pipeline.metrics.ranks import count_ranks
from pipeline.metrics.retrieval import CUTOFFS
from pipeline.models.linear.accumulation import MomentsAccumulator
from pipeline.models.linear.cca import NormalizedCCA
from pipeline.models.linear.ensemble import ZeroShot
from pipeline.models.linear.moments import BLOCK_ROWS, Moments
from pipeline.models.linear.training import FitTask, Sets
from pipeline.models.linear.tuning import GridTrial, PairArrays
from pipeline.models.linear.views import STEPS, ImageView, TextView
from pipeline.storage.files import first_unplain
from pipeline.storage.index_folder import is_index
from pipeline.storage.json_files import Json
from pipeline.storage.parameters import MODEL, read_parameters, write_parameters

if TYPE_CHECKING:
    from jointspace.index import Index

FILE = "model.safetensors"
"""Name of the file in which a space is saved."""
NAME = "ncca"
"""Model type of a fitted space: the name under which its class NormalizedCCA is registered."""
IMAGE = "image"
"""Encoder name of image vectors that are given as one array, not as a mapping."""
TEXT = "text"
"""Encoder name of text vectors that are given as one array, not as a mapping."""
MIN_IMAGES = 10
"""Minimum number of different images with a text for a fit. With fewer images, `fit` raises InputError."""
HELD_OUT_INTERVAL = 10
"""Number of images with a text for each image that is held out. At least two images and at most MAX_HELD_OUT images are
held out."""
MAX_HELD_OUT = 1000
"""Maximum number of images that are held out."""

GridValues = float | str | Sequence[float] | Sequence[str] | np.ndarray
"""Values of one key of the grid: a single value or several values."""


@dataclass(frozen=True)
class Pairs:
    """n images and their m texts as vectors.

    `images` maps an encoder to its vectors (n, D) float32. `texts` maps an encoder to its vectors (m, d) float32, dense
    or sparse. `owners` (m,) has the row of the image of each text, in ascending order.
    """

    images: Mapping[str, np.ndarray]
    texts: Mapping[str, Block]
    owners: np.ndarray

    @property
    def count(self) -> int:
        """Number of images n."""
        return next(iter(self.images.values())).shape[0]

    def shared_texts(self) -> int:
        """Count the texts whose vectors are equal to the vectors of a text of another image."""
        numbers = Distinct.group_rows(self.texts).groups
        pairs = np.unique(np.stack([numbers, self.owners]), axis=1)
        images = np.bincount(pairs[0])
        return int((images[numbers] > 1).sum())

    def select_images(self, chosen: np.ndarray) -> "Pairs":
        """Return the pairs with only the images for which `chosen` (n,) bool is true, and all of their texts."""
        return self.rows(
            np.flatnonzero(chosen), (np.cumsum(chosen) - 1)[self.owners], np.flatnonzero(chosen[self.owners])
        )

    def rows(self, images: np.ndarray | slice, owners: np.ndarray, texts: np.ndarray | slice) -> "Pairs":
        """Return the pairs with only the rows `images` of the images and the rows `texts` of the texts.

        `owners` (m,) has a value for each text of this object: the row of the text's image in the returned pairs. The
        values for texts that are not in `texts` are not used.
        """
        kept = {name: block[images] for name, block in self.images.items()}
        return Pairs(kept, {name: block[texts] for name, block in self.texts.items()}, owners[texts])


class FittedSpace:
    """Normalized CCA (Gong et al. 2014, eq. 2) of image and text vectors. `fit` returns a FittedSpace.

    `choice` has the settings that were best on the held-out images, under their names in the grid of `fit`.
    `choice["transfer"]` has the settings for the pairs `weak` of `fit`, and is empty without such pairs.
    `choice["text_weights"]` has the weight of each text encoder. `choice["recall_sum"]` and `choice["mean_rank"]` are
    the results of these settings on the held-out images: the sum of the six recalls in percent, and the mean rank of
    both directions. The space itself is fitted to all pairs, including the held-out images.

    `held_out["images"]` is the number of held-out images. `held_out["image_to_sentence"]` and
    `held_out["sentence_to_image"]` have the `recall@1`, `recall@5` and `recall@10` in percent on these images. If there
    is one image encoder and one text encoder, their vectors have the same number of dimensions, and the text vectors
    are not sparse, `held_out["zero_shot"]` has the recalls of the cosine between the original vectors.
    """

    def __init__(self, model: NormalizedCCA, choice: Mapping[str, Json], held_out: Mapping[str, Json]) -> None:
        self.model = model
        self.choice = dict(choice)
        self.held_out = dict(held_out)

    @property
    def dim(self) -> int:
        """Number of dimensions c of the joint space."""
        return len(self.model.directions.values)

    def embed_images(self, vectors: Views) -> np.ndarray:
        """Embed image vectors (n, D) in the joint space, as (n, c) float32 of unit length.

        The vectors must come from the encoders of `fit`. Raises InputError if the encoders or dimensions differ, or a
        vector is not finite.
        """
        return self.model.embed_images(to_dense_views(vectors, IMAGE, _dims(self.model.view)))

    def embed_texts(self, vectors: Views) -> np.ndarray:
        """Embed text vectors (m, d) in the joint space, as (m, c) float32 of unit length.

        The vectors must come from the encoders of `fit`. Raises InputError if the encoders or dimensions differ, or a
        vector is not finite.
        """
        return self.model.embed_sentences(to_views(vectors, TEXT, _dims(self.model.text)))

    def index(
        self,
        folder: str | Path,
        image_vectors: Views,
        text_vectors: Views | None = None,
        owners: np.ndarray | None = None,
        *,
        names: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        overwrite: bool = False,
    ) -> "Index":
        """Write an index of image vectors (n, D), and optionally of text vectors (m, d), and open it.

        `jointspace.load` and the commands `jointspace search` and `jointspace serve` read such an index. The vectors
        and `owners` have the form that `fit` describes. Rows with equal image vectors are one image. `names` (n,) are
        the paths or other names of the images (default: the row numbers). `texts` (m,) are the captions that the text
        vectors belong to (default: `NAME#k` for caption k of the image NAME).

        Raises InputError if the vectors or `owners` are wrong, if the number of names or texts differs from the number
        of vectors, if a name cannot be a file name, or if two images have the same name. Raises UsageError if the
        folder contains an index and `overwrite` is false, or if `owners` or `texts` are passed without `text_vectors`.

        >>> rng = np.random.default_rng(0)
        >>> images, texts = rng.normal(size=(2, 40, 8))
        >>> index = fit(images, texts).index(folder, images, texts, names=[f"{row}.jpg" for row in range(40)])
        >>> [hit.row["path"] for hit in index.search(text_vector=texts[3], k=40)].count("3.jpg")
        1
        """
        from jointspace.index import Index
        from jointspace.writing import Items, write_index

        if is_index(Path(folder)) and not overwrite:
            raise UsageError(
                f"{folder} contains an index. Name another folder, or pass overwrite=True to replace the index."
            )
        if text_vectors is None and (owners is not None or texts is not None):
            raise UsageError("owners and texts describe text_vectors. Pass text_vectors as well.")
        x = to_dense_views(image_vectors, IMAGE, _dims(self.model.view))
        n = _count(x)
        distinct = Distinct.group_rows(x)
        names = [relative_name(name) for name in to_strings(map(str, range(n)) if names is None else names, "names", n)]
        kept = [names[row] for row in distinct.first]
        if (number := first_unplain(kept)) is not None:
            row = distinct.first[number]
            raise InputError(
                f"names[{row}] is {kept[number]!r}, which cannot be a file name. Give this image another name."
            )
        if repeated := next((name for name, count in Counter(kept).items() if count > 1), None):
            raise InputError(
                f"Two images with different vectors have the name {repeated!r} in names. Give each image its own name."
            )

        def embed_images(part: np.ndarray) -> np.ndarray:
            return self.model.embed_images({name: block[part] for name, block in x.items()})

        items = Items(kept, distinct.digests, _in_blocks(embed_images, distinct.first, x))
        if text_vectors is not None:
            y = to_views(text_vectors, TEXT, _dims(self.model.text))
            rows = to_owners(owners, n, _count(y))
            words = nameless([names[row] for row in rows]) if texts is None else to_strings(texts, "texts", len(rows))
            order = np.argsort(distinct.groups[rows], kind="stable")

            def embed_texts(part: np.ndarray) -> np.ndarray:
                return self.model.embed_sentences({name: block[part] for name, block in y.items()})

            items = replace(
                items,
                owners=distinct.groups[rows][order],
                words=[words[row] for row in order],
                texts=_in_blocks(embed_texts, order, y),
            )
        write_index(Path(folder), self.save, items)
        return Index(folder)

    def save(self, folder: str | Path) -> None:
        """Save the space in `folder` as model.safetensors and model.json. `FittedSpace.load` reads it.

        A space that was saved in the folder before is replaced. Raises JointspaceError if a file cannot be written.
        """
        details = {"registered": NAME, "choice": self.choice, "held_out": self.held_out}
        tensors = self.model.tensors()
        settings = self.model.settings()
        write_parameters(Path(folder) / FILE, MODEL, tensors, settings=settings, details=details)

    @classmethod
    def load(cls, folder: str | Path) -> "FittedSpace":
        """Load a space that `save` wrote to a folder. Raises IntegrityError if the file is missing or damaged."""
        from pipeline.config.stored import restore

        stored = read_parameters(Path(folder) / FILE, MODEL)
        model = restore(NAME, stored.settings, stored.tensors, folder)
        return cls(model, stored.details["choice"], stored.details["held_out"])


def fit(
    image_vectors: Views,
    text_vectors: Views,
    owners: np.ndarray | None = None,
    *,
    weak: tuple[Views, Views] | None = None,
    normalise: tuple[str, ...] = ("l2",),
    seed: int = 0,
    **grid: GridValues,
) -> FittedSpace:
    """Fit a joint space to image vectors (n, D) and text vectors (m, d).

    The vectors are arrays, torch tensors, SciPy sparse matrices, or a mapping of encoder names to such vectors. Text j
    belongs to the image in row `owners[j]`, by default to the image in row j. Rows with equal image vectors are one
    image. Equal texts of several images cause a warning, because no search can tell these images apart.

    `weak` is a pair (image vectors, text vectors) with one noisier text per image, such as its title or tags. The
    weight of these pairs is chosen together with the grid (Gong et al. 2014, section 4). `normalise` lists the steps
    that are applied to the image vectors of each encoder: `sqrt` and `l2`. One in ten of the images with a text, drawn
    with `seed`, is held out (at least 2 and at most 1000 images). The values in `grid` with the best recall on these
    images are chosen. The keys of the grid are `dimensions`, `image_ridge`, `text_ridge`, `eigenvalue_power` and
    `eigenvalues`. Their defaults and descriptions are in the section `fit` of config/default.yaml.

    >>> rng = np.random.default_rng(0)
    >>> meaning = rng.normal(size=(400, 8))
    >>> images = meaning @ rng.normal(size=(8, 50)) + 0.1 * rng.normal(size=(400, 50))
    >>> texts = meaning @ rng.normal(size=(8, 30)) + 0.1 * rng.normal(size=(400, 30))
    >>> space = fit(images[:300], texts[:300])
    >>> scores = space.embed_images(images[300:]) @ space.embed_texts(texts[300:]).T
    >>> bool((scores.argmax(axis=1) == np.arange(100)).mean() > 0.9)
    True

    Raises InputError if a vector is not finite, if the numbers of vectors do not fit together, if `owners` is wrong, or
    if fewer than 10 different images have a text. Raises UsageError for an unknown key or a wrong value of the grid,
    for an unknown step, and if `weak` is not a pair.
    """
    if not isinstance(normalise, tuple | list) or not all(step in STEPS for step in normalise):
        raise UsageError(
            f"fit: normalise is {normalise!r}, but must be a tuple of the steps {', '.join(STEPS)}. Pass some, all or"
            " none of these steps."
        )
    if weak is not None and not (isinstance(weak, tuple | list) and len(weak) == 2):
        raise UsageError(
            f"fit: weak has the type {type(weak).__name__} or a wrong length, but must be a pair (image vectors, text"
            " vectors). Pass a tuple of these two."
        )
    seed = to_count(seed, "seed", least=0)
    pairs = _pairs(image_vectors, text_vectors, owners)
    if repeated := pairs.shared_texts():
        warnings.warn(
            f"fit: {repeated} of {len(pairs.owners)} texts also belong to another image. No search can tell these"
            " images apart, so held_out counts them as errors.",
            stacklevel=2,
        )
    held_out = pairs.select_images(_draw_held_out(pairs, seed))
    search = GridSearch(pairs, held_out, weak, tuple(normalise), _grid_settings(grid), seed)
    tuned, chosen = search.choose()
    recalls = _recall(tuned, held_out)
    if tuned.view.dims == tuned.text.dims and tuned.text.sparse == (False,):
        recalls["zero_shot"] = _recall(ZeroShot(*tuned.view.encoders, *tuned.text.encoders), held_out)
    return FittedSpace(search.refit(chosen), asdict(chosen), {"images": held_out.count, **recalls})


def _draw_held_out(pairs: Pairs, seed: int) -> np.ndarray:
    """Draw the held-out images among the images with a text. Return whether each image is held out, as (n,) bool.

    Raises InputError if fewer than MIN_IMAGES images have a text.
    """
    described = np.unique(pairs.owners)
    if len(described) < MIN_IMAGES:
        raise InputError(
            f"Only {len(described)} different images have a text. A fit needs at least {MIN_IMAGES} such"
            " images, because some are held out. Pass more images with texts."
        )
    count = min(max(len(described) // HELD_OUT_INTERVAL, 2), MAX_HELD_OUT)
    return np.isin(np.arange(pairs.count), np.random.default_rng(seed).permutation(described)[:count])


def _grid_settings(grid: Mapping[str, GridValues]) -> FitSettings:
    """Return the default settings of a fit, in which the values of `grid` replace the defaults of the same keys.

    Raises UsageError for an unknown key or a wrong value.
    """
    try:
        return loading.load().fit.changed({name: np.atleast_1d(value).tolist() for name, value in grid.items()})
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"fit: {name}: {first['msg']}. The keys of the grid are {', '.join(GRID)}, each with a list of values."
        ) from error


class GridSearch:
    """Grid search for the settings of normalized CCA.

    The moments (sums, counts and products) of `pairs` and `held_out` are computed once, so that each combination is
    fitted without reading the vectors again. `held_out` has some of the `pairs`. `weak` are pairs with noisier texts,
    or None. `steps` normalise the image vectors. `settings` has the values to try, and `seed` is for random choices.
    """

    def __init__(
        self,
        pairs: Pairs,
        held_out: Pairs,
        weak: tuple[Views, Views] | None,
        steps: tuple[str, ...],
        settings: FitSettings,
        seed: int,
    ) -> None:
        dims = {name: block.shape[1] for name, block in pairs.images.items()}
        self._view = ImageView(tuple(dims), tuple(dims.values()), steps)
        self._text = TextView.from_vectors(pairs.texts)
        self._settings = settings
        self._seed = seed
        self._moments = _moments(self._view, self._text, pairs)
        self._held_out_moments = _moments(self._view, self._text, held_out)
        self._dev = PairArrays(held_out.images, held_out.texts, held_out.owners)
        self._weak_moments = None
        if weak is not None:
            self._weak_moments = _moments(self._view, self._text, _pairs(*weak, None, dims, _dims(self._text)))

    def choose(self) -> tuple[NormalizedCCA, GridTrial]:
        """Fit all combinations to the pairs that are not held out. Return the best model on the held-out pairs, and its
        settings."""
        return self._fit(self._moments - self._held_out_moments)

    def refit(self, chosen: GridTrial) -> NormalizedCCA:
        """Fit the `chosen` settings to all pairs, and return the model."""
        return self._fit(self._moments, chosen)[0]

    def _fit(self, moments: Moments, chosen: GridTrial | None = None) -> tuple[NormalizedCCA, GridTrial]:
        task = FitTask(
            training="target" if self._weak_moments is None else "joint",
            view=self._view,
            text=self._text,
            sets=Sets(moments, self._weak_moments, target_blocks=tuple, auxiliary_blocks=tuple),
            dev=self._dev,
            grid=self._settings,
            transfer=loading.load().transfer,
            settings=None,
            seed=self._seed,
            chosen=chosen,
        )
        tuned = NormalizedCCA.fit(task)
        assert isinstance(tuned.model, NormalizedCCA)
        return tuned.model, tuned.chosen


def _recall(model: NormalizedCCA | ZeroShot, pairs: Pairs) -> dict[str, Json]:
    """Return the recalls of the `model` in percent, as direction -> recall@1, recall@5 and recall@10.

    The directions are `image_to_sentence` and `sentence_to_image`. Each image of `pairs` searches among the texts of
    `pairs`, and each text searches among the images of `pairs`.
    """
    sides = model.embed_images(pairs.images), model.embed_sentences(pairs.texts)
    ranks = count_ranks(*sides, pairs.owners, model.metric)
    return {
        direction: {f"recall@{k}": 100 * float(np.mean(getattr(ranks, direction) <= k)) for k in CUTOFFS}
        for direction in ("image_to_sentence", "sentence_to_image")
    }


def _in_blocks(embed: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, encoders: Iterable[str]) -> np.ndarray:
    """Embed vectors block by block, and return the result (k, c) float32.

    `rows` (k,) has the row numbers of the vectors, and `embed` is called with the row numbers of one block at a time.
    Raises InputError if `rows` is empty. The message names the `encoders`.
    """
    if not len(rows):
        raise InputError(f"There are no vectors of {', '.join(encoders)}. Pass at least one vector.")
    starts = range(0, len(rows), BLOCK_ROWS)
    return np.concatenate([embed(rows[start : start + BLOCK_ROWS]) for start in starts])


def _dims(view: ImageView | TextView) -> dict[str, int | None]:
    return dict(zip(view.encoders, view.dims, strict=True))


def _pairs(
    images: Views,
    texts: Views,
    owners: np.ndarray | None,
    image_dims: Mapping[str, int | None] | None = None,
    text_dims: Mapping[str, int | None] | None = None,
) -> Pairs:
    x = to_dense_views(images, IMAGE, image_dims)
    y = to_views(texts, TEXT, text_dims)
    distinct = Distinct.group_rows(x)
    owners = distinct.groups[to_owners(owners, len(distinct.groups), _count(y))]
    # Slices avoid copies if no image is repeated and the texts are in the order of their images.
    first = distinct.first if len(distinct.first) < len(distinct.groups) else slice(None)
    order = slice(None) if (np.diff(owners) >= 0).all() else np.argsort(owners, kind="stable")
    return Pairs(x, y, owners).rows(first, owners, order)


def to_owners(owners: np.ndarray | None, n: int, m: int) -> np.ndarray:
    """Return the image row of each text, (m,). Without `owners`, text j belongs to image j.

    Raises InputError if `owners` is None and n != m, or if `owners` does not have m row numbers from 0 to n - 1.
    """
    if owners is None and n != m:
        raise InputError(
            f"There are {n} images and {m} texts. Pass owners, a list with the row of the image of each text, such as"
            " [0, 0, 1] for two texts of image 0 and one text of image 1."
        )
    owners = np.arange(m) if owners is None else to_numpy(owners)
    if owners.shape != (m,) or owners.dtype.kind not in "iu":
        raise InputError(
            f"owners has the shape {owners.shape} and dtype {owners.dtype}, but must have one"
            f" row number per text ({m}). Pass a list of {m} whole numbers."
        )
    for row in np.flatnonzero((owners < 0) | (owners >= n))[:1]:
        raise InputError(
            f"owners[{row}] is {owners[row]}, but the rows of the images are numbered from 0 to {n - 1}. Correct this"
            " number."
        )
    return owners


def _count(blocks: Mapping[str, Block]) -> int:
    return row_count(next(iter(blocks.values())))


@dataclass(frozen=True)
class Distinct:
    """Groups of equal rows of a matrix.

    `first` has the number of the first row of each group, in ascending order, and `digests` the SHA-256 of this row.
    `groups` has the group number of each row.
    """

    first: np.ndarray
    digests: list[str]
    groups: np.ndarray

    @classmethod
    def group_rows(cls, blocks: Mapping[str, Block]) -> "Distinct":
        """Group the rows of `blocks`. Two rows are equal if the vectors of all encoders are equal."""
        digests = [hashlib.sha256() for _ in range(_count(blocks))]
        for block in blocks.values():
            for digest, row in zip(digests, _row_bytes(block), strict=True):
                digest.update(row)
        numbers: dict[str, int] = {}
        groups = np.array([numbers.setdefault(digest.hexdigest(), len(numbers)) for digest in digests], np.int64)
        return cls(np.unique(groups, return_index=True)[1], list(numbers), groups)


def _row_bytes(block: Block) -> Iterator[bytes]:
    """Yield bytes for each row. Equal rows have equal bytes, also if one row has 0 where the other row has -0."""
    if isinstance(block, np.ndarray):
        yield from ((row + 0).tobytes() for row in block)
        return
    plain = sparse.csr_array(block, copy=True)
    plain.sum_duplicates()  # This method also sorts the column numbers of each row.
    plain.eliminate_zeros()
    indices = plain.indices.astype(np.int64)
    for first, last in pairwise(plain.indptr):
        yield indices[first:last].tobytes() + plain.data[first:last].tobytes()


def _moments(view: ImageView, text: TextView, pairs: Pairs) -> Moments:
    total = MomentsAccumulator(view.dim, text.dim, runtime.threads())
    for start in range(0, pairs.count, BLOCK_ROWS):
        first, last = np.searchsorted(pairs.owners, [start, start + BLOCK_ROWS])
        block = pairs.rows(slice(start, start + BLOCK_ROWS), pairs.owners - start, slice(first, last))
        total.add(view.stack(block.images), text.stack(block.texts), block.owners)
    return total.result()
