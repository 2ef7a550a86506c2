"""Vectors made elsewhere, as the configuration names them, matched with the images or sentences of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config import Config
    from pipeline.config.schema.encoders import Encoder
    from pipeline.config.schema.text_encoders import TextEncoderEntry
    from pipeline.images.matching import Matching
    from pipeline.run import Inputs, Run
    from pipeline.storage.foreign import ForeignFeatures, Source

BLOCK = 1 << 14
"""Rows that are looked at together."""
SAME = 0.01
"""Largest difference of two vectors of the same words, of the longer one's length: what half precision and another
batch may change."""


@dataclass(frozen=True)
class MatchedFeatures:
    """The images or sentences of a run by their `labels`, and the row (n,) of each in the `source`."""

    labels: Sequence[str]
    rows: "np.ndarray"
    source: Any

    def features(self, these: range) -> "np.ndarray":
        """(n, dim) float32 of some of them."""
        return self.source.take(self.rows[these.start : these.stop])

    def names(self, these: range) -> Sequence[str]:
        return self.labels[these.start : these.stop]

    def blocks(self) -> Iterator[range]:
        """All of them, some at a time."""
        n = len(self.labels)
        return (range(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))

    def require_stored(self, storage: str, key: str) -> None:
        """Raises InputError for the first one whose vector is not finite, or does not fit the dtype `storage`, which
        `key` has chosen."""
        import numpy as np

        from pipeline.errors import InputError
        from pipeline.storage.features import to_stored

        for these in self.blocks():
            features = self.features(these)
            if len(bad := np.flatnonzero(~np.isfinite(features).all(axis=1))):
                image = these.start + int(bad[0])
                raise InputError(
                    f"{self.source.where(self.rows[image])}: the row of {self.labels[image]} is not finite (NaN or"
                    " infinity); make it again, or leave it out of the collection"
                )
            to_stored(features, storage, self.names(these), key)


def given_source(config: "Config", encoder: "Encoder | TextEncoderEntry") -> "Source":
    """Where the vectors of an imported encoder are."""
    from pipeline.remote.paths import below, place
    from pipeline.storage.foreign import Source

    own, of = (encoder.own, "sentences") if hasattr(encoder, "own") else (encoder, "images")
    return Source(below(place(config.data_root), own.path), own.features, own.names, of)


def given_inputs(config: "Config", encoder: "Encoder | TextEncoderEntry") -> "Inputs":
    """The files that hold them."""
    from pipeline.run import Outside
    from pipeline.storage.foreign import foreign_files

    return {f"source/{file.name}": Outside(file) for file in foreign_files(given_source(config, encoder))}


def _opened(run: "Run", encoder: "Encoder | TextEncoderEntry") -> "ForeignFeatures":
    """The vectors; what is remote is copied first."""
    from dataclasses import replace

    from pipeline.storage.foreign import foreign_files, open_foreign

    source = given_source(run.config, encoder)
    for file in [] if isinstance(source.path, Path) else foreign_files(source):
        run.scratch.local(file)  # the names' beside the features'
    return open_foreign(replace(source, path=run.scratch.local(source.path)))


def match_given(run: "Run", encoder: "Encoder") -> MatchedFeatures:
    """The features of an imported encoder for all images of the run. Raises InputError where some have none."""
    from pipeline.images.matching import match_names

    found, images = _opened(run, encoder), _images(run)
    with _naming(encoder.path):
        matching = match_names(found.names, images, run.layout.data_root)
    _require_all(matching, images, encoder.path, "image")
    return MatchedFeatures(images, matching.rows, found)


def match_given_sentences(run: "Run", encoder: "TextEncoderEntry") -> MatchedFeatures:
    """The vectors of an imported text encoder for all sentences of the run. Raises InputError where some have none, and
    where two rows of the same words differ."""
    import numpy as np

    from pipeline.errors import InputError
    from pipeline.images.matching import match_sentences

    found, images, owners = _opened(run, encoder), _images(run), run.manifest.sentence_images
    place, numbers = encoder.own.path, np.arange(len(owners)) - np.searchsorted(owners, owners)
    labels = [f"{images[owner]}#{number}" for owner, number in zip(owners, numbers, strict=True)]
    if found.names is None:
        if len(found) != len(owners):
            raise InputError(
                f"{place} has {len(found)} rows and the run {len(owners)} sentences; give one row a sentence, in the"
                " order of the manifest, or list the rows' names in a text file beside it"
            )
        return MatchedFeatures(labels, np.arange(len(owners)), found)
    texts = run.manifest.sentences["text"].to_pylist()
    with _naming(place):
        matching = match_sentences(found.names, images, owners, texts, labels, run.layout.data_root)
    _require_all(matching, labels, place, "sentence")
    _require_alike(matching, found, place)
    return MatchedFeatures(labels, matching.rows, found)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """An InputError within becomes one of the file at `path`."""
    from pipeline.errors import InputError

    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _images(run: "Run") -> list[str]:
    return [row["member"] or row["path"] for row in run.manifest.images.select(["path", "member"]).to_pylist()]


def _require_all(matching: "Matching", labels: Sequence[str], place: str, what: str) -> None:
    """Warns of names that are of no image or sentence, and says which did not match exactly. Raises InputError where
    one of `labels` has no row in `place`."""
    import logging

    from pipeline.errors import InputError
    from pipeline.images.matching import some

    log = logging.getLogger(__name__)
    for line in matching.describe():
        log.warning("%s: %s", place, line)
    if matching.unmatched:
        count, named = len(matching.unmatched), some([repr(name) for name in matching.unmatched])
        log.warning("%s: %d names are of no %s in this run: %s", place, count, what, named)
    if missing := matching.missing(labels):
        raise InputError(
            f"{len(missing)} {what}s of the run have no row in {place}: {some(missing)}; add their rows, or ingest"
            f" fewer {what}s"
        )


def _require_alike(matching: "Matching", found: "ForeignFeatures", place: str) -> None:
    """Raises InputError for two rows of the same words whose vectors differ."""
    import numpy as np

    from pipeline.errors import InputError

    for start in range(0, len(matching.repeats), BLOCK):
        pairs = np.array(matching.repeats[start : start + BLOCK])
        one, other = found.take(pairs[:, 0]), found.take(pairs[:, 1])
        lengths = np.maximum(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1))
        if not (alike := np.linalg.norm(one - other, axis=1) <= SAME * lengths).all():
            first, second = pairs[alike.argmin()]
            raise InputError(
                f"{place}: rows {first} and {second} have the same words and different vectors; name the rows IMAGE#k,"
                " or remove one of them"
            )
