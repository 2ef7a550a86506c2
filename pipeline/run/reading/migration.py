"""Migrating vectors to a new encoder without photos and without a run: the rows of files are paired, two maps are
fitted, the recall that they keep is measured, and the mapped vectors are written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import scipy

from pipeline.compute.precision import scale_to_unit_length
from pipeline.errors import InputError
from pipeline.foreign import vectors as foreign
from pipeline.foreign.image_names import listed_name
from pipeline.foreign.matching import find_names, some
from pipeline.foreign.vectors import ForeignFeatures, Source, assemble, open_foreign, owner_names
from pipeline.index.exact import evenly_spaced
from pipeline.models.linear.ridge import FOLDS, MIN_PHOTOS, RIDGES, EncoderMap, fit_encoder_map
from pipeline.run.reading.exports import read_vectors
from pipeline.storage.batch import new_folder
from pipeline.storage.index_folder import is_index
from pipeline.storage.stored_index import open_index

MIN_ROWS = MIN_PHOTOS * FOLDS // (FOLDS - 1) + 1
"""Minimum number of rows with an old and a new vector, so that enough rows are left when a fold is held out."""
MAX_ROWS = 20_000
"""Maximum number of rows with an old and a new vector to which the maps are fitted. If there are more, MAX_ROWS of them
are drawn at random."""
MAX_CAPTIONS = 100_000
"""Maximum number of captions to which the maps are fitted. If there are more, MAX_CAPTIONS of them are drawn at
random."""
MAX_QUERIES = 2000
"""Maximum number of queries with which the kept recall is measured."""
CUTOFF = 10
"""Number of results per query for which recall is measured."""
BLOCK_ROWS = 1 << 14
"""Number of rows that are mapped at once."""


@dataclass(frozen=True)
class Migration:
    """Linear maps between the vectors of an old encoder and a new encoder. `migrate` returns a Migration.

    `gallery_map` maps old vectors to the new space by ridge regression. `query_mean` (d,) and `query_weight` (d, D) map
    queries, which are new vectors, to the old space.

    `kept` has two shares of recall@10. `kept["gallery"]` is the share that is kept if old vectors are mapped to the new
    space, and `kept["queries"]` is the share that is kept if queries are mapped to the old space. A share is NaN if the
    searches without a map find nothing. If `measured_with` is `captions`, each caption searches for its own row. If it
    is `neighbours`, each new vector searches for its 10 nearest new vectors. A search ranks `rows` rows, and uses maps
    that were not fitted to the row of the query (5 folds).
    """

    gallery_map: EncoderMap
    query_mean: np.ndarray
    query_weight: np.ndarray
    kept: Mapping[str, float]
    measured_with: str
    rows: int

    def map_gallery(self, vectors: np.ndarray) -> np.ndarray:
        """Map old vectors (n, D) to vectors (n, d) float32 of unit length in the new space."""
        return scale_to_unit_length(self.gallery_map(scale_to_unit_length(np.array(vectors, np.float32))))

    def adapt_queries(self, vectors: np.ndarray) -> np.ndarray:
        """Map vectors (m, d) of the new encoder to vectors (m, D) float32 of unit length, with which a user can search
        old vectors."""
        centred = scale_to_unit_length(np.array(vectors, np.float32)) - self.query_mean
        return scale_to_unit_length(centred @ self.query_weight)

    def save(self, path: str | Path) -> None:
        """Save the arrays gallery_mean, gallery_weight, gallery_offset, query_mean and query_weight as an .npz file."""
        gallery = self.gallery_map
        arrays = {"gallery_mean": gallery.mean_x, "gallery_weight": gallery.weight, "gallery_offset": gallery.mean_y}
        arrays |= {"query_mean": self.query_mean, "query_weight": self.query_weight}
        np.savez(path, allow_pickle=False, **arrays)


@dataclass(frozen=True)
class MigrationTask:
    """Old vectors, new vectors of some of their rows, and optionally vectors of captions by the new encoder.

    Row i of `new` is of the same photo as row `rows[i]` of `old`, and row j of `texts` is of a caption of the photo of
    row `owners[j]` of `old`.
    """

    old: ForeignFeatures
    new: ForeignFeatures
    rows: np.ndarray
    texts: ForeignFeatures | None = None
    owners: np.ndarray | None = None

    @classmethod
    def open(cls, old: Path, new: Path, texts: Path | None) -> "MigrationTask":
        """Open files of vectors, and pair the rows of `new` and `texts` with rows of `old`.

        The rows are paired by names, or by order if the file has no names. `old` may be the folder of an index. Raises
        InputError if a row of `new` or `texts` has no row in `old`.
        """
        gallery = _open(old)
        sample = _open(new)
        rows = _pair(sample, sample.names, gallery)
        if texts is None:
            return cls(gallery, sample, rows)
        captions = _open(texts, "sentences")
        names = captions.names and [name.rpartition("#")[0] or name for name in captions.names]
        owners = names and owner_names(Source(texts, None, None, "sentences"))
        return cls(gallery, sample, rows, captions, _pair(captions, owners or names, gallery))

    def fit(self, seed: int) -> Migration:
        """Fit the maps, and measure the recall that they keep. `seed` decides which rows and captions are drawn.

        Raises InputError for fewer than MIN_ROWS rows, and for vectors that are not finite, zero, constant,
        uncorrelated, or of the wrong length.
        """
        rng = np.random.default_rng(seed)
        sample = rng.permutation(len(self.new))[:MAX_ROWS]
        if len(sample) < MIN_ROWS:
            raise InputError(
                f"A migration needs at least {MIN_ROWS} rows with both vectors, but {self.new.files[0]} has"
                f" {len(sample)}. Encode more photos with the new encoder."
            )
        rows = self.rows[sample]
        x = _read(self.old, rows)
        y = _read(self.new, sample)
        if self.texts is None or self.owners is None:
            return _fit_and_measure(x, y, None, y.mean(axis=0))
        if self.texts.dim != self.new.dim:
            raise InputError(
                f"{self.texts.files[0]} has vectors of {self.texts.dim} numbers, but {self.new.files[0]} has"
                f" vectors of {self.new.dim} numbers. Encode the captions with the text encoder that belongs to the"
                " new encoder."
            )
        drawn = rng.permutation(len(self.texts))[:MAX_CAPTIONS]
        texts = _read(self.texts, drawn)
        position = np.full(len(self.old), -1)  # The position of each old row in the sample, or -1, is filled in below.
        position[rows] = np.arange(len(rows))
        owners = position[self.owners[drawn]]
        described, places = np.unique(self.owners[drawn][owners < 0], return_inverse=True)
        means = np.zeros((len(described), self.texts.dim), np.float32)
        np.add.at(means, places, texts[owners < 0])
        means /= np.bincount(places)[:, None]
        captioned = (_read(self.old, described), means) if len(described) else None
        return _fit_and_measure(x, y, captioned, texts.mean(axis=0), texts[owners >= 0], owners[owners >= 0])

    def write(self, migration: Migration, folder: Path) -> None:
        """Write a new folder with images.npy (a vector for each old row), images.txt (the row names) and maps.npz.

        Rows that have a new vector keep this vector. The old vectors of all other rows are mapped. If the old vectors
        have no names, the names are the row numbers, from 0. Raises UsageError if the folder exists, and InputError if
        a name contains a line break.
        """
        names = _gallery_names(self.old)
        for name in names:
            if "\n" in name or "\r" in name:
                raise InputError(
                    f"{self.old.files[0]} has a row with the name {name!r}. The line break in this name would split"
                    " a line of images.txt. Give the row another name."
                )
        given = np.full(len(self.old), -1)
        given[self.rows] = np.arange(len(self.rows))
        with new_folder(folder) as temporary:
            with open(temporary / "images.npy", "wb") as file:
                header = {"descr": "<f4", "fortran_order": False, "shape": (len(self.old), self.new.dim)}
                np.lib.format.write_array_header_1_0(file, header)
                for numbers in np.split(np.arange(len(self.old)), range(BLOCK_ROWS, len(self.old), BLOCK_ROWS)):
                    block = migration.map_gallery(_read(self.old, numbers))
                    encoded = given[numbers] >= 0
                    block[encoded] = _read(self.new, given[numbers][encoded])
                    file.write(block.data)
            (temporary / "images.txt").write_text("".join(f"{name}\n" for name in names), "utf-8")
            migration.save(temporary / "maps.npz")


def migrate(
    old: np.ndarray, new: np.ndarray, rows: np.ndarray | None = None, texts: np.ndarray | None = None,
    owners: np.ndarray | None = None, *, seed: int = 0,
) -> Migration:  # fmt: skip
    """Fit maps between old vectors (n, D) and new vectors (k, d) of some of the same photos, compared by cosine.

    `new[i]` belongs to `old[rows[i]]`. Without `rows`, `new` must have a vector for each of `old`, in the same order.
    `texts` (m, d) are vectors of captions in the space of `new`. They make both maps better. `texts[j]` belongs to
    `old[owners[j]]`. Without `owners`, `texts` must have one vector for each of `old`. The arrays may be memory maps.
    At most 20,000 rows and 100,000 captions are used, and `seed` decides which.

    >>> rng = np.random.default_rng(0)
    >>> new = rng.normal(size=(500, 8))
    >>> old = new @ rng.normal(size=(8, 12))
    >>> migration = migrate(old, new[:100], rows=np.arange(100))
    >>> migration.map_gallery(old).shape, migration.adapt_queries(new).shape, migration.kept["gallery"] > 0.8
    ((500, 8), (500, 12), True)

    Raises InputError for fewer than 63 pairs, for row numbers that are missing or do not fit, and for vectors that are
    not finite, zero, constant, uncorrelated, or of the wrong length.
    """
    given = {"old": old, "new": new} | ({} if texts is None else {"texts": texts})
    opened = {name: assemble([(Path(name), np.asarray(array), None)]) for name, array in given.items()}
    pairing: dict[str, np.ndarray] = {}
    for name, numbers in {"new": rows, "texts": owners}.items():
        if name in opened:
            argument = "rows" if name == "new" else "owners"
            found = np.arange(len(opened[name])) if numbers is None else np.asarray(numbers)
            if numbers is None and len(found) != len(old):
                raise InputError(
                    f"{name} has {len(found)} vectors, but old has {len(old)} vectors. Pass {argument}, with the"
                    f" number of a row of old for each of the vectors in {name}."
                )
            if found.shape != (len(opened[name]),) or not np.isin(found, np.arange(len(old))).all():
                raise InputError(
                    f"{argument} must have the number of a row of old, from 0 to {len(old) - 1}, for each of the"
                    f" {len(opened[name])} vectors in {name}. Correct the numbers."
                )
            pairing[name] = found
    task = MigrationTask(opened["old"], opened["new"], pairing["new"], opened.get("texts"), pairing.get("texts"))
    return task.fit(seed)


def _open(path: Path, of: Literal["images", "sentences"] = "images") -> ForeignFeatures:
    """Open a file of vectors, or the vectors of the images of an index.

    `of` says whether the rows of a file are images or sentences. If the format of the file cannot contain names of
    rows, the names are read from a text file next to the file of vectors. Without this text file, the rows have no
    names.
    """
    if is_index(path):
        vectors, table = read_vectors(open_index(path), "images")
        names = [listed_name(image) for image in table.select(["path", "member"]).to_pylist()]
        return ForeignFeatures(names, [vectors], [path])
    source = Source(path, None, None, of)
    if path.suffix in foreign.NAMELESS_SUFFIXES and not all(file.exists() for file in foreign.foreign_files(source)):
        source = replace(source, of="sentences")  # For images, `open_foreign` would require names.
    return open_foreign(source)


def _pair(vectors: ForeignFeatures, names: Sequence[str] | None, gallery: ForeignFeatures) -> np.ndarray:
    """Return the row (n,) of the `gallery` to which each of n `vectors` belongs.

    The vectors are paired by their `names`, or by order if `names` is None. If the gallery has no names, its row
    numbers are used as names. Raises InputError if one of the vectors has no row in the gallery, or if names repeat in
    the gallery.
    """
    counts = f"{vectors.files[0]} has {len(vectors):,} rows, and {gallery.files[0]} has {len(gallery):,}"
    if names is None:
        if len(vectors) != len(gallery):
            known = "name" if gallery.names else "row number (from 0)"
            raise InputError(
                f"{counts}, so the rows cannot be paired by order. Next to {vectors.files[0]}, write a text file that"
                f" has, for each of its rows, the {known} of the same photo in {gallery.files[0]}."
            )
        return np.arange(len(vectors))
    known = _gallery_names(gallery)
    if (different := len(set(known))) < len(known):
        raise InputError(
            f"{gallery.files[0]} has {len(known):,} rows, but {different:,} different names. Give each row its own"
            " name."
        )
    found = find_names(names, known).images
    if missing := [name for name, row in zip(names, found, strict=True) if row is None]:
        lacking = "that {} does not have" if gallery.names else "that are not row numbers of {}, which has no names"
        raise InputError(
            f"{counts}, but {len(missing):,} rows have names {lacking.format(gallery.files[0])}: {some(missing)}."
            " Correct the names, or remove the rows."
        )
    return np.array(found, np.int64)


def _gallery_names(gallery: ForeignFeatures) -> list[str]:
    """Return the names of n old vectors. If their file has no names, these are the row numbers as texts, from 0."""
    return gallery.names or list(map(str, range(len(gallery))))


def _read(vectors: ForeignFeatures, rows: np.ndarray) -> np.ndarray:
    """Read the `rows` (k,) of some vectors, and scale them to unit length. Return (k, d) float32.

    Raises InputError if a row is not finite or has only zeros.
    """
    block = vectors.take(rows)
    for row in rows[~(np.isfinite(block).all(axis=1) & block.any(axis=1))]:
        fault = "contains NaN or infinity" if vectors.take(np.array([row])).any() else "contains only zeros"
        raise InputError(f"{vectors.where(row)} (from 0) {fault}. Remove the row, or compute its vector again.")
    return scale_to_unit_length(block)


Captioned = tuple[np.ndarray, np.ndarray]
"""Old vectors (k, D) of rows without a new vector, and the means (k, d) of the vectors of their captions."""


def _fit(
    x: np.ndarray, y: np.ndarray, captioned: Captioned | None, query_mean: np.ndarray, ridges: Sequence[float]
) -> Migration:
    """Fit the maps to old vectors x (n, D) and new vectors y (n, d), and to `captioned` rows, but measure no recall.

    Old vectors are mapped by ridge regression, with the best of `ridges`. Queries, from which `query_mean` (d,) is
    subtracted, are mapped by the orthogonal map U V', where U S V' is the singular value decomposition of Y'X
    (Schönemann 1966). This map does not scale, because old vectors cannot be scaled after a query is mapped.
    """
    gallery = fit_encoder_map(x, y, use_roots=False, captioned=captioned, ridges=ridges)
    views = [(x, y), captioned] if captioned else [(x, y)]
    cross = sum((new - new.mean(axis=0)).T @ (old - old.mean(axis=0)) for old, new in views)
    left, _, right = scipy.linalg.svd(cross, full_matrices=False, check_finite=False)
    return Migration(gallery, query_mean, left @ right, {}, "", len(x))


def _fit_and_measure(
    x: np.ndarray, y: np.ndarray, captioned: Captioned | None, query_mean: np.ndarray, *captions: np.ndarray
) -> Migration:
    """Fit the maps to all rows, and measure by cross-validation how much recall the maps keep.

    `x`, `y`, `captioned` and `query_mean` are as in `_fit`. `captions` are two arrays: the vectors (m, d) of the
    captions by which recall is measured, and for each caption the number (m,) of its row in x. If `captions` is empty,
    the new vectors search for their neighbours.
    """
    has_captions = bool(captions and len(captions[0]))
    queries, owners = captions if has_captions else (y, np.arange(len(y)))
    chosen = evenly_spaced(len(queries), MAX_QUERIES)
    queries = queries[chosen]
    owners = owners[chosen]
    complete = _fit(x, y, captioned, query_mean, RIDGES)
    folds = np.arange(len(x)) % FOLDS  # The caller has put the rows into random order, so the folds are random.
    mapped = np.empty_like(y)
    adapted = np.empty((len(queries), x.shape[1]), np.float32)
    for fold in range(FOLDS):
        held_out = folds == fold
        asked = folds[owners] == fold
        partial = _fit(x[~held_out], y[~held_out], captioned, query_mean, [complete.gallery_map.ridge])
        mapped[held_out] = partial.map_gallery(x[held_out])
        adapted[asked] = partial.adapt_queries(queries[asked])

    def search(asked: np.ndarray, gallery: np.ndarray) -> np.ndarray:
        scores = asked @ gallery.T
        if not has_captions:
            scores[np.arange(len(owners)), owners] = -np.inf  # A row is not its own neighbour.
        return np.argpartition(-scores, CUTOFF)[:, :CUTOFF]

    right = owners[:, None] if has_captions else search(queries, y)

    def recall(asked: np.ndarray, gallery: np.ndarray) -> float:
        return float((search(asked, gallery)[:, :, None] == right[:, None]).any(axis=1).mean())

    reference = recall(queries, y) or np.nan
    kept = {"gallery": recall(queries, mapped) / reference, "queries": recall(adapted, x) / reference}
    return replace(complete, kept=kept, measured_with="captions" if has_captions else "neighbours")
