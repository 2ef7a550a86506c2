"""Matching of the precomputed vectors that a configuration names with the images or captions of a run."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pipeline.collections.files import CollectionFolder
from pipeline.collections.formats.vectors import FORMAT, nameless, sources
from pipeline.collections.intake import unescape
from pipeline.collections.records import Options
from pipeline.compute.workers import Failure
from pipeline.errors import InputError
from pipeline.foreign.image_names import relative_name
from pipeline.foreign.matching import Matching, match_names, match_sentences, some
from pipeline.foreign.vectors import BLOCK_ROWS, NOT_FINITE, ForeignFeatures, Source, foreign_files, open_foreign
from pipeline.images.decode import Inspection
from pipeline.run import Outside, Run
from pipeline.storage.features import to_stored

if TYPE_CHECKING:
    from pipeline.config.encoders import EncoderEntry
    from pipeline.config.names import Config

log = logging.getLogger(__name__)

MAX_RELATIVE_DIFFERENCE = 0.01
"""Largest accepted difference of two vectors for the same name or words, divided by the length of the longer vector.
Half precision and another batch size can cause a difference of this size."""


@dataclass(frozen=True)
class MatchedFeatures:
    """The precomputed vectors of n images or captions of a run.

    `labels` are the names of the images or captions, and `rows` (n,) are their rows in `source`.
    """

    labels: Sequence[str]
    rows: np.ndarray
    source: ForeignFeatures

    def features(self, these: range) -> np.ndarray:
        """Read the vectors (k, dim) float32 of a range of k images or captions."""
        return self.source.take(self.rows[these.start : these.stop])

    def names(self, these: range) -> Sequence[str]:
        return self.labels[these.start : these.stop]

    def require_stored(self, storage: str, key: str) -> None:
        """Check that all vectors are finite and can be stored in the dtype `storage`.

        `key` is the key of the configuration that set `storage`, for the message. Raises InputError for the first
        vector that is not finite, or has too large or only too small values for the dtype.
        """
        n = len(self.labels)
        for start in range(0, n, BLOCK_ROWS):
            these = range(start, min(start + BLOCK_ROWS, n))
            features = self.features(these)
            for row in (start + np.flatnonzero(~np.isfinite(features).all(axis=1))[:1]).tolist():
                raise InputError(
                    f"{self.source.where(int(self.rows[row]))}: the vector of {self.labels[row]} is not finite (it"
                    f" contains NaN or infinity). Compute this vector again, or exclude {self.labels[row]} from the"
                    " collection."
                )
            to_stored(features, storage, self.names(these), key)


def given_source(config: "Config", entry: "EncoderEntry") -> Source:
    """Return the location of the precomputed vectors of an encoder, whose `entry` in the configuration names files
    relative to data_root."""
    from pipeline.config.encoders import PrecomputedKeys

    assert isinstance(entry, PrecomputedKeys)
    kind = "images" if entry.modality == "image" else "sentences"
    return Source(Path(config.data_root) / entry.path, entry.features, entry.names, kind)


def given_inputs(config: "Config", encoder: "EncoderEntry") -> list[Outside]:
    """Return the files with the precomputed vectors of an encoder's entry, as inputs of a stage."""
    return [Outside(f"source/{file.name}", file) for file in foreign_files(given_source(config, encoder))]


def match_precomputed(run: Run, entry: "EncoderEntry") -> MatchedFeatures:
    """Match the precomputed vectors of the encoder `entry` to all images, or to all captions, of the run.

    Raises InputError if an image or a caption has no vector, or if two rows for the same image or caption have
    different vectors.
    """
    source = given_source(run.config, entry)
    match = _match_images if entry.modality == "image" else _match_captions
    return match(run, source, getattr(entry, "path", ""))


def _match_images(run: Run, source: Source, path: str) -> MatchedFeatures:
    """Match precomputed features to all images of the run.

    Raises InputError if an image has no vector, or if two rows with the same name have different vectors.
    """
    features = open_foreign(source)
    images = _image_names(run)
    # A collection of vectors has no photos, and its manifest has relative names.
    without_photographs = run.config.collection.format == FORMAT
    assert features.names is not None  # `open_foreign` raises an error for images without names.
    names = list(map(relative_name, features.names)) if without_photographs else features.names
    with _naming(path):
        matching = match_names(names, images, run.layout.data_root)
    _require_alike(matching, features, path, "name")
    _require_all(matching, images, path, "image")
    return MatchedFeatures(images, matching.rows, features)


def inspect_vectors(root: Path, options: Options, paths: Iterable[str]) -> Iterator[Inspection | Failure]:
    """Inspect the images `paths` of a collection of precomputed vectors, for `ingest`.

    Yield an Inspection for each image, or a Failure if the vector of the image is not finite. The vector is the first
    vector with the name of the image. The SHA-256 of the Inspection is computed from this vector, because there is no
    photo.
    """
    source, _ = sources(CollectionFolder(root, options))
    features = open_foreign(source)
    rows: dict[str, int] = {}
    for row, name in enumerate(features.names or ()):
        rows.setdefault(relative_name(name), row)
    remaining = iter(paths)
    while block := list(islice(remaining, BLOCK_ROWS)):
        for vector in features.take(np.array([rows[path] for path in block])):
            if np.isfinite(vector).all():
                yield Inspection(None, None, hashlib.sha256(vector).hexdigest())
            else:
                yield Failure(NOT_FINITE)


def _match_captions(run: Run, source: Source, path: str) -> MatchedFeatures:
    """Match precomputed vectors to all captions of the run, by names, or by order if the vectors have no names.

    Raises InputError if a caption has no vector, or if two rows with the same words have different vectors. Vectors
    without names must be as many as the captions, or InputError is raised.
    """
    vectors = open_foreign(source)
    images = _image_names(run)
    owners = run.manifest.sentence_images
    numbers = np.arange(len(owners)) - np.searchsorted(owners, owners)
    labels = [f"{images[owner]}#{number}" for owner, number in zip(owners, numbers, strict=True)]
    names = vectors.names
    if run.config.collection.format == FORMAT:
        photos, _ = sources(CollectionFolder(run.layout.data_root, Options(run.config.collection.files, {}, "train")))
        names = names or nameless(open_foreign(photos).names or ())
        finite = vectors.finite()  # `ingest` has rejected captions with other vectors, so their rows get no name.
        names = [name if usable else "" for name, usable in zip(names, finite, strict=False)]
    if names is None:
        if len(vectors) != len(owners):
            raise InputError(
                f"{path} has {len(vectors)} rows, but the run has {len(owners)} captions. Write one row per caption, in"
                " the order of the manifest, or list the names of the rows in a text file next to this file."
            )
        return MatchedFeatures(labels, np.arange(len(owners)), vectors)
    texts = run.manifest.sentences["text"].to_pylist()
    with _naming(path):
        matching = match_sentences(list(map(unescape, names)), images, owners, texts, labels, run.layout.data_root)
    _require_all(matching, labels, path, "sentence")
    _require_alike(matching, vectors, path, "words")
    return MatchedFeatures(labels, matching.rows, vectors)


def _image_names(run: Run) -> list[str]:
    return [row["member"] or row["path"] for row in run.manifest.images.select(["path", "member"]).to_pylist()]


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Put `path`, the path of a file, before the message of an InputError that the block raises."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _require_all(matching: Matching, labels: Sequence[str], path: str, kind: str) -> None:
    """Check that every image or caption in `labels` has a row in the file at `path`.

    `matching` has the result of matching the names of the file's rows. `kind` is the noun for an image or a caption in
    messages. A warning is logged for names that match nothing, do not match exactly, or match several images. Raises
    InputError if a label has no row.
    """
    for line in matching.format_summary():
        log.warning("%s: %s", path, line)
    if matching.unmatched:
        names = some([repr(name) for name in matching.unmatched])
        log.warning(
            "%s: %d names do not match any %s of this run, so their vectors are not used: %s. Correct the names if"
            " they should match.",
            path,
            len(matching.unmatched),
            kind,
            names,
        )
    if missing := matching.missing(labels):
        raise InputError(
            f"{len(missing)} {kind}s of the run have no row in {path}: {some(missing)}. Add their rows, or exclude"
            f" these {kind}s from the collection."
        )


def _require_alike(matching: Matching, vectors: ForeignFeatures, path: str, what: str) -> None:
    """Raise InputError if two rows for the same image or caption have different vectors.

    `what` says in the message what the two rows have in common: `name` or `words`.
    """
    for start in range(0, len(matching.repeats), BLOCK_ROWS):
        pairs = np.array(matching.repeats[start : start + BLOCK_ROWS])
        first, second = (vectors.take(side).astype(np.float64) for side in pairs.T)
        lengths = np.maximum(np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1))
        for pair in pairs[np.linalg.norm(first - second, axis=1) > MAX_RELATIVE_DIFFERENCE * lengths][:1]:
            remedy = "Name the rows IMAGE#k, or remove" if what == "words" else "Remove"
            raise InputError(
                f"{path}: rows {pair[0]} and {pair[1]} have the same {what} but different vectors. {remedy} one of the"
                " two rows."
            )
