"""One bundle as a server shows it: its searcher, thumbnails of its photographs, and example queries."""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from pipeline.errors import InputError, UsageError
from pipeline.index.columns import asked_columns
from pipeline.index.search import Hit, Photograph, Searcher

EXAMPLES = 3
QUALITY = 82
REMOVED = {"images": "path", "sentences": "text"}
"""The column that is null in the rows of removed items."""
CACHED = 2000
"""Thumbnails that are kept in memory, about 10 KB each."""


class ServedGallery:
    """Answers from one bundle. Its parts are all read at once, and threads may share it from then on.

    `features(data)` encodes a photograph's bytes as `Searcher.sentences` takes it, and `read(path, offset, size)` gives
    the bytes of one in the bundle's table, of which `decode(data)` makes an image. Encoders are loaded for the first
    photograph: have `sentences`, `similar`, `analogy` and `thumbnail` called by one thread at a time.
    """

    def __init__(
        self,
        searcher: Searcher,
        features: Callable[[bytes], Mapping[str, np.ndarray]],
        read: Callable[..., bytes],
        decode: Callable[[bytes], Image.Image],
        side: int,
    ) -> None:
        searcher.open()
        self.images, self.regions, self.ignored = searcher.images, searcher.regions, searcher.ignored
        self.features, self._searcher, self._read, self._decode, self._side = features, searcher, read, decode, side
        with suppress(InputError, UsageError):  # where it cannot be searched in words, each request is told so
            for sentence in self.examples[:1]:
                searcher.require_known(sentence)  # which loads the tokenizer
        self._rows = searcher.rows("images")
        self.columns = asked_columns(self._rows.schema.empty_table())
        self._ids = None
        if not self.bundle.pieces("images"):
            ids = searcher.table("images")["image_id"].to_numpy()
            self._order = np.argsort(ids, kind="stable")
            self._ids = ids[self._order]
        self._small: dict[int, bytes] = {}

    @property
    def bundle(self) -> Any:
        return self._searcher.bundle

    @property
    def card(self) -> Mapping[str, Any]:
        return self.bundle.card

    @cached_property
    def examples(self) -> list[str]:
        """Some of the bundle's own sentences, evenly spaced."""
        if not self._searcher.has("sentences"):
            return []
        table = self._searcher.rows("sentences")
        rows = np.unique(np.linspace(0, table.num_rows - 1, EXAMPLES + 2).astype(int)[1:-1])
        return [one["text"] for one in table.records(rows) if one["text"]]

    @property
    def has_regions(self) -> bool:
        """Whether its model compares regions with words."""
        return self._searcher.multi_vector

    def count(self, modality: str) -> int:
        """Rows of `images` or `sentences` that were not removed."""
        if not self._searcher.has(modality):
            return 0
        if self.bundle.pieces(modality):
            return self.card[modality]["count"]
        return len(self._searcher.table(modality)) - self._searcher.table(modality)[REMOVED[modality]].null_count

    def sentences(self, photograph: bytes, top: int, where: str | None = None) -> list[Hit]:
        """The `top` sentences nearest to an encoded image. Raises UnreadableImage."""
        self._searcher.require_condition(where)  # before the photograph is encoded, which takes longer
        return self._searcher.sentences(self._see(photograph), top, where)

    def similar(
        self, photograph: bytes, top: int, sentence: str | None, weight: float, where: str | None = None
    ) -> list[Hit]:
        """The `top` images nearest to an encoded image, and to a sentence if there is one; see Searcher.similar."""
        self._searcher.require_condition(where)
        if sentence is not None:
            self._searcher.require_known(sentence)
            self._searcher.require_sums()
        return self._searcher.similar(self._see(photograph), top, sentence, weight, where)

    def analogy(
        self, photograph: bytes, minus: Sequence[str], plus: Sequence[str], top: int, among: int,
        where: str | None = None,
    ) -> list[Hit]:  # fmt: skip
        """The `top` images for an encoded image less some words plus others; see Searcher.analogy."""
        self._searcher.require_condition(where)
        self._searcher.require_words(minus, plus)
        self._searcher.require_sums()
        return self._searcher.analogy(self._see(photograph), minus, plus, top, among, where)

    def _see(self, photograph: bytes) -> Photograph:
        return photograph if self.has_regions else self.features(photograph)

    def thumbnail(self, image_id: int) -> bytes:
        """A small JPEG of the bundle's image `image_id`, made of its pixels alone.

        Raises InputError where the bundle has no such image, or its photograph cannot be read or is another one than
        was indexed. It is checked each time, so that a deleted photograph is never shown.
        """
        found = self._find(image_id)
        if not len(found):
            raise InputError(f"there is no image {image_id}; give the image_id of a result")
        row = self._searcher.records("images", found[:1])[0]
        if row["path"] is None:
            raise InputError(f"image {image_id} was removed; give the image_id of a result")
        data = self._read(row)
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(f"image {image_id} is no longer the photograph that was indexed; build the index again")
        if image_id not in self._small:
            while len(self._small) >= CACHED:
                del self._small[next(iter(self._small))]
            self._small[image_id] = self._shrink(data)
        return self._small[image_id]

    def _find(self, image_id: int) -> np.ndarray:
        """(k,) the rows of the table that are the image `image_id`: one, or none."""
        if self._ids is None:
            return self._rows.find("image_id", np.array([image_id]))
        first, last = np.searchsorted(self._ids, [image_id, image_id + 1])
        return self._order[first:last]

    def _shrink(self, data: bytes) -> bytes:
        image = self._decode(data)
        image.thumbnail((self._side, self._side))
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
        return buffer.getvalue()
