"""Features made elsewhere, as the configuration names them, matched with the images of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from pipeline.config import Config
    from pipeline.config.encoders import Encoder
    from pipeline.run import Run
    from pipeline.storage.foreign import Source

BLOCK = 1 << 14
"""Images whose features are looked at together."""


@dataclass(frozen=True)
class MatchedFeatures:
    """The `images` of a run by their paths, and the row (n,) of each in the `source`."""

    images: Sequence[str]
    rows: "np.ndarray"
    source: Any

    def features(self, images: range) -> "np.ndarray":
        """(n, dim) float32 of these images."""
        return self.source.take(self.rows[images.start : images.stop])

    def names(self, images: range) -> Sequence[str]:
        return self.images[images.start : images.stop]

    def blocks(self) -> Iterator[range]:
        """All images, some at a time."""
        n = len(self.images)
        return (range(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


def given_source(config: "Config", encoder: "Encoder") -> "Source":
    """Where the features of an imported encoder are."""
    from pipeline.storage.foreign import Source

    return Source(Path(config.data_root) / encoder.path, encoder.features, encoder.names)


def given_files(config: "Config", encoder: "Encoder") -> list[Path]:
    """The files that hold them."""
    from pipeline.storage.foreign import foreign_files

    return foreign_files(given_source(config, encoder))


def match_given(run: "Run", encoder: "Encoder") -> MatchedFeatures:
    """The features of an imported encoder for all images of the run. Raises InputError where some have none."""
    import logging

    from pipeline.errors import InputError
    from pipeline.images.matching import match_names, some
    from pipeline.storage.foreign import open_foreign

    source = open_foreign(given_source(run.config, encoder))
    images = [row["member"] or row["path"] for row in run.manifest.images.select(["path", "member"]).to_pylist()]
    matching = match_names(source.names, images)
    if matching.unmatched:
        count, named = len(matching.unmatched), some(matching.unmatched)
        logging.getLogger(__name__).warning("%s: %d rows match no image: %s", encoder.path, count, named)
    if missing := matching.missing(images):
        raise InputError(
            f"{len(missing)} images have no row in {encoder.path}: {some(missing)}; add them, or ingest fewer images"
        )
    return MatchedFeatures(images, matching.rows, source)
