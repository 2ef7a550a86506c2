"""One bundle as a server shows it: its searcher, its photographs and what is known of them, and example queries."""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.index.columns import asked_columns
from pipeline.index.search import Hit, Photograph, Searcher
from pipeline.serve.overview import Scale, facets, measure_scale, spread

EXAMPLES = 3
QUALITY = 82
LARGE_SIDE = 1600
"""Pixels of the longer side of a photograph that is looked at alone."""
WARM_SIDE = 64
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
        self.regions, self.ignored = searcher.regions, searcher.ignored
        self.features, self._searcher, self._read, self._decode, self._side = features, searcher, read, decode, side
        with suppress(InputError, UsageError):  # where it cannot be searched in words, each request is told so
            for sentence in self.examples[:1]:
                searcher.require_known(sentence)  # which loads the tokenizer
        self._rows = searcher.rows("images")
        self.columns = asked_columns(self._rows.schema.empty_table())
        self._ids = None
        if searcher.is_kept("images"):
            ids = searcher.table("images")["image_id"].to_numpy()
            self._order = np.argsort(ids, kind="stable")
            self._ids = ids[self._order]
        self._small: dict[int, bytes] = {}
        self._facets: dict[str, dict[str, Any]] | None = None

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

    @property
    def collection(self) -> str:
        """The name of its run, or of its folder where it is in none."""
        folder = self.bundle.folder.absolute()
        return folder.parent.parent.name if folder.parent.name == "index" else folder.name

    @cached_property
    def scale(self) -> Scale | None:
        """How scores compare with those of typical and of right pairs; None where the vectors cannot be had."""
        return measure_scale(self._searcher)

    def warm(self) -> None:
        """Load what encodes photographs, so that the first one need not wait for it."""
        if not self.has_regions:
            with suppress(JointspaceError):  # of imported features; a request is told so
                self.features(self._jpeg(Image.new("RGB", (WARM_SIDE, WARM_SIDE))))

    def images(self, sentence: str, top: int, where: str | None = None) -> list[Hit]:
        """As Searcher.images; of a multi-vector model each with the `box` of the region that fits the words best."""
        hits = self._searcher.images(sentence, top, where)
        if not self.has_regions:
            return hits
        words, gallery = self._searcher.embed_sentence(sentence).vectors.sum(axis=0), self._searcher.gallery("images")
        items = [gallery.item(int(self._row(hit.row["image_id"])[0])) for hit in hits]
        boxes = [item.boxes[(item.vectors @ words).argmax()].tolist() for item in items]
        return [replace(hit, row={**hit.row, "box": box}) for hit, box in zip(hits, boxes, strict=True)]

    def browse(self, top: int, where: str | None = None) -> tuple[int, list[tuple[Mapping[str, Any], str | None]]]:
        """How many images `where` allows, and the rows and captions of at most `top` of them, far from each other in
        the table; those for a smaller `top` come first."""
        if where is None or not where.strip():
            count, places = self.count("images"), spread(self._rows.num_rows, 2 * top)
        else:
            allowed = np.flatnonzero(self._searcher.allowed("images", where))
            count, places = len(allowed), allowed[spread(len(allowed), top)]
        found = [row for row in self._searcher.records("images", places) if row["path"] is not None][:top]
        return count, list(zip(found, self._captions([row["image_id"] for row in found]), strict=True))

    def facets(self) -> dict[str, dict[str, Any]]:
        """What a filter can offer of each column."""
        if self._facets is None:
            self._facets = facets(self._rows.schema, self._searcher.groups("images"))
        return self._facets

    def sentences_of(self, image_id: int) -> list[str]:
        """The image's own sentences."""
        return self._sentences([image_id]).get(image_id, [])

    def captions(self, hits: Sequence[Hit]) -> list[str | None]:
        """Of each hit, its image's first sentence."""
        return self._captions([hit.row["image_id"] for hit in hits])

    def _captions(self, image_ids: Sequence[int]) -> list[str | None]:
        found = self._sentences(image_ids)
        return [next(iter(found.get(image_id, ())), None) for image_id in image_ids]

    def _sentences(self, image_ids: Sequence[int]) -> dict[int, list[str]]:
        """The sentences of some images, by image_id."""
        if not self._searcher.has("sentences"):
            return {}
        if not self._searcher.is_kept("sentences"):
            rows = self._searcher.rows("sentences").find("image_id", np.array(image_ids, np.int64))
        else:
            owners, order = self._owned
            spans = np.searchsorted(owners, [[image_id, image_id + 1] for image_id in image_ids]).reshape(-1, 2)
            rows = np.concatenate([order[:0], *(order[first:last] for first, last in spans)])
        found: dict[int, list[str]] = {}
        for sentence in self._searcher.records("sentences", rows):
            if sentence["text"] is not None:
                found.setdefault(sentence["image_id"], []).append(sentence["text"])
        return found

    @cached_property
    def _owned(self) -> tuple[np.ndarray, np.ndarray]:
        """The image_ids of all sentences in ascending order, and the row of each."""
        owners = self._searcher.table("sentences")["image_id"].to_numpy()
        order = np.argsort(owners, kind="stable")
        return owners[order], order

    def count(self, modality: str) -> int:
        """Rows of `images` or `sentences` that were not removed."""
        if not self._searcher.has(modality):
            return 0
        if not self._searcher.is_kept(modality):
            return self.card[self.bundle.index_name(modality)]["count"]
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

    def row(self, image_id: int) -> Mapping[str, Any]:
        """The image's row. Raises InputError where the bundle has no such image, or no longer."""
        row = self._searcher.records("images", self._row(image_id))[0]
        if row["path"] is None:
            raise InputError(f"image {image_id} was removed; give the image_id of a result")
        return row

    def original(self, image_id: int) -> bytes:
        """The file of the bundle's image `image_id`. Raises InputError as `row`, and where the photograph cannot be
        read or is another one than was indexed."""
        row = self.row(image_id)
        data = self._read(row)
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(f"image {image_id} is no longer the photograph that was indexed; build the index again")
        return data

    def thumbnail(self, image_id: int) -> bytes:
        """A small JPEG of an image, made of its pixels alone. Raises InputError as `original`, which is read each time,
        so that a deleted photograph is never shown."""
        data = self.original(image_id)
        if image_id not in self._small:
            while len(self._small) >= CACHED:
                del self._small[next(iter(self._small))]
            self._small[image_id] = self._shrink(data, self._side)
        return self._small[image_id]

    def large(self, image_id: int) -> bytes:
        """The same of at most LARGE_SIDE pixels a side."""
        return self._shrink(self.original(image_id), LARGE_SIDE)

    def _row(self, image_id: int) -> np.ndarray:
        """(1,) the row of the table that is the image. Raises InputError where there is none."""
        if self._ids is None:
            found = self._rows.find("image_id", np.array([image_id]))
        else:
            first, last = np.searchsorted(self._ids, [image_id, image_id + 1])
            found = self._order[first:last]
        if not len(found):
            raise InputError(f"there is no image {image_id}; give the image_id of a result")
        return found[:1]

    def _shrink(self, data: bytes, side: int) -> bytes:
        image = self._decode(data)
        image.thumbnail((side, side))
        return self._jpeg(image)

    @staticmethod
    def _jpeg(image: Image.Image) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=QUALITY)
        return buffer.getvalue()
