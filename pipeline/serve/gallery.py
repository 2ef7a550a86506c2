"""The indexes of a server with their photos and example queries, and the thread pools of the server.

An index that is replaced on disk is opened again while the server runs.
"""

import asyncio
import hashlib
import io
import logging
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import pyarrow.compute as pc
from PIL import Image

from pipeline.compute.multivectors import Items, several_vectors_each
from pipeline.errors import InputError, JointspaceError, UsageError
from pipeline.index.gallery import with_regions
from pipeline.index.search import Answer, Photograph, Searcher
from pipeline.serve.border import Limits, Metrics
from pipeline.storage.card import Card, Modality
from pipeline.storage.index_shard import MODALITIES

if TYPE_CHECKING:
    from pipeline.generate.generator import Generator, Sources

IDENTITY_COLUMNS = ("path", "sha256")
"""Columns of the table of images that identify an image: two indexes of a collection contain the same image if both
values are equal."""
MAX_EXAMPLES = 3
"""Maximum number of example queries."""
JPEG_QUALITY = 82
"""Quality of the JPEG files that the server makes, as Pillow counts it (0 to 95)."""
LARGE_SIDE = 1600
"""Maximum length in pixels of the longer side of a large JPEG."""
WARM_UP_SIDE = 64
"""Side in pixels of the black image that is encoded to load the encoders."""
MAX_THUMBNAILS = 2000
"""Maximum number of thumbnails that are kept in memory, about 10 KB each. If there are more, the oldest thumbnail is
dropped."""
MAX_CHOICES = 20
"""Maximum number of different values of a text or truth column that a filter lists. If a column has more values, the
list is empty."""


class ServedGallery:
    """One index that answers queries and shows its photos.

    The constructor reads the model, the FAISS indexes and the tables that are kept in memory, and opens the full-text
    index. Afterwards, threads may share the object, but only one thread at a time may encode photos, because the first
    encoded photo loads the encoders.

    `features(data)` encodes the bytes of a photo for the `searcher`, as encoder -> (1, dim). `read(row)` returns the
    bytes of the photo that a row of the image table describes. `decode(data)` turns these bytes into an image. `side`
    is the maximum length in pixels of the longer side of a thumbnail.
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
        self.searcher = searcher
        self._read = read
        self._decode = decode
        self._side = side
        self.features = features
        with suppress(InputError, UsageError):  # A text query reports the error again.
            _ = searcher.text_index
            for sentence in self.examples[:1]:
                searcher.require_known(sentence)  # This call loads the tokenizer before the first request.
        self._table = searcher.rows("images")
        self.columns = searcher.columns
        self._sorted: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for modality in MODALITIES:
            if searcher.has(modality) and searcher.is_kept(modality):
                owners = searcher.table(modality)["image_id"].to_numpy()
                order = np.argsort(owners, kind="stable")
                self._sorted[modality] = owners[order], order
        self._thumbnails: dict[int, bytes] = {}

    @property
    def card(self) -> Card:
        """Card of the index, which describes its model and its contents."""
        return self.searcher.index.card

    @cached_property
    def examples(self) -> list[str]:
        """Captions of the index as example queries: at most MAX_EXAMPLES captions from evenly spaced rows of the table.
        The list is empty if the index has no captions."""
        if not self.searcher.has("sentences"):
            return []
        table = self.searcher.rows("sentences")
        rows = np.unique(np.linspace(0, table.num_rows - 1, MAX_EXAMPLES + 2).astype(int)[1:-1])
        return [record["text"] for record in self.searcher.records("sentences", rows) if record["text"]]

    @property
    def collection(self) -> str:
        """Name of the folder of the run that the index belongs to, or of the index folder if the index is outside a
        run."""
        folder = self.searcher.index.folder.absolute()
        return folder.parent.parent.name if folder.parent.name == "index" else folder.name

    @property
    def collection_id(self) -> str:
        """Identifier of the collection, which is equal for all indexes of one collection: the manifest's fingerprint on
        the card, or the path of the index folder if the card names no manifest."""
        return self.card.inputs.get("manifest", str(self.searcher.index.folder))

    def count(self, modality: Modality) -> int:
        """Return the number of `images` or `sentences` in the index, without removed images and their sentences. It is
        0 if the index has no items of the modality."""
        if not self.searcher.has(modality):
            return 0
        allowed = self.searcher.allowed(modality, None)
        return len(self.searcher.gallery(modality)) if allowed is None else int(allowed.sum())

    @cached_property
    def facets(self) -> dict[str, dict[str, Any]]:
        """Choices of the filters on the search page, as column -> choices, for the `columns` of the gallery.

        The choices of a column are a mapping with its `kind`. A column of texts or truth values also has the sorted
        `values`, which are empty if there are more than MAX_CHOICES. A column of numbers has its smallest value `least`
        and its largest value `most`. For a column of dates or times, these are the first and the last day, as texts
        like 2026-11-29. Columns are left out if they have no value, if their values have no order, or if their smallest
        or largest number is infinite or NaN.
        """
        kinds = {name: kind for name, kind in self.columns.items() if kind != "nothing"}
        values: dict[str, set[Any]] = {name: set() for name in kinds}
        for group in self.searcher.groups("images"):
            for name, kind in kinds.items():
                column = group[name].drop_null()
                if kind in ("text", "truth") and len(values[name]) <= MAX_CHOICES:
                    values[name].update(column.unique().to_pylist())
                elif kind not in ("text", "truth") and len(column):
                    ends = [*values[name], *pc.call_function("min_max", [column]).as_py().values()]
                    values[name] = {min(ends), max(ends)}
        offers = {name: _facet(values[name], kind) for name, kind in kinds.items() if values[name]}
        return {name: {"kind": kinds[name], **offer} for name, offer in offers.items() if offer}

    def warm(self) -> None:
        """Load the image encoders, so that the first uploaded photo does not wait for them. Nothing is loaded for a
        multi-vector model, because its query photos are in the index. Nothing happens if the index has no encoders."""
        if not self.searcher.multi_vector:
            with suppress(JointspaceError):  # Imported features have no encoder. A request reports the error again.
                self.features(_jpeg(Image.new("RGB", (WARM_UP_SIDE, WARM_UP_SIDE))))

    def images(
        self, sentence: str, top: int, where: str | None = None, match_text: bool = True, minus: Sequence[str] = (),
        sort: str | None = None,
    ) -> Answer:  # fmt: skip
        """Find the `top` images nearest to a text. The arguments have the meaning that Searcher.images describes.

        With a multi-vector model, the row of each hit has the additional key `box`: left, top, right, bottom of the
        region that matches the text best, in pixels of the original image. The key is missing if the model cannot embed
        the text, and the images were found by their texts alone.
        """
        hits = self.searcher.images(sentence, top, where, match_text, minus, sort=sort)
        if not self.searcher.multi_vector:
            return hits
        try:
            self.searcher.require_known(sentence)
        except (InputError, UsageError):  # The hits were found by their texts alone.
            return hits
        words = several_vectors_each(self.searcher.embed_sentence(sentence)).array.sum(axis=0)
        gallery = with_regions(self.searcher.gallery("images"))
        rows = self._find("images", [hit.row["image_id"] for hit in hits])
        boxes = {}
        for record, row in zip(self.searcher.records("images", rows), rows.tolist(), strict=True):
            item = gallery.item(row)
            boxes[record["image_id"]] = item.box_array[(item.array @ words).argmax()].tolist()
        hits[:] = (replace(hit, row={**hit.row, "box": boxes[hit.row["image_id"]]}) for hit in hits)
        return hits

    def see(self, photograph: "bytes | OfGallery") -> Photograph:
        """Return a query photo in a form that the searcher accepts. The photo is read and encoded during the search.

        `photograph` is the bytes of an uploaded file, or an image of this or another gallery. If the model has one
        vector per photo, the search raises UnreadableImage for bytes that are not an image. If an image of a gallery
        cannot be read or encoded, the vector that this gallery stores for the image is used, provided that both
        galleries have the same collection and image.
        """
        if isinstance(photograph, OfGallery):
            return partial(self._see_again, photograph)
        return photograph if self.searcher.multi_vector else partial(self.features, photograph)

    def _see_again(self, image: "OfGallery") -> Items:
        """Embed an image of a gallery from its file. If that fails, return the vector that this gallery stores for the
        image.

        Raises the JointspaceError of the first attempt if this gallery has no vector for the same image.
        """
        try:
            return self.searcher.embed_photograph(self.see(image.read()))
        except JointspaceError:
            row = image.gallery.row(image.image_id)  # This call raises InputError if the image was removed.
            rows = self._find("images", [image.image_id])
            index = self.searcher.gallery("images")
            # Images that were added to two indexes separately may have the same id in both.
            same = [
                all(record[key] == row[key] for key in IDENTITY_COLUMNS)
                for record in self.searcher.records("images", rows)
            ]
            if self.collection_id == image.gallery.collection_id and same == [True]:
                with suppress(RuntimeError):  # Some types of index cannot return their vectors.
                    if self.searcher.multi_vector:
                        return with_regions(index).item(int(rows[0]))
                    return index.reconstruct(rows)
            raise

    def browse(self, top: int, where: str | None = None) -> tuple[int, list[tuple[Mapping[str, Any], str | None]]]:
        """Return the number of images that satisfy `where`, and a sample of these images as (row, first caption or
        None).

        Without `where`, all images satisfy it. The sample has at most `top` images, spread over the table. The sample
        for a larger `top` begins with the same images.
        """
        allowed = self.searcher.allowed("images", where) if where and where.strip() else None
        if allowed is None:
            count = self.count("images")
            places = spread(self._table.num_rows, 2 * top)
        else:
            rows = np.flatnonzero(allowed)
            count = len(rows)
            places = rows[spread(count, top)]
        found = [row for row in self.searcher.records("images", places) if row["path"] is not None][:top]
        return count, list(zip(found, self.captions([row["image_id"] for row in found]), strict=True))

    def sentences_of(self, image_id: int) -> list[str]:
        """Return the captions of an image in the order of the table. The list is empty if the image has no captions or
        is not in the index."""
        return self._sentences([image_id]).get(image_id, [])

    def captions(self, image_ids: Sequence[int]) -> list[str | None]:
        """Return the first caption of each image, in the order of `image_ids`, or None for an image without a caption
        and for an id that is not in the index."""
        texts = self._sentences(image_ids)
        return [next(iter(texts.get(image_id, ())), None) for image_id in image_ids]

    def _sentences(self, image_ids: Sequence[int]) -> dict[int, list[str]]:
        """Return the captions of some images, as image_id -> captions in the order of the table. Images without a
        caption, and ids that are not in the index, are left out."""
        texts: dict[int, list[str]] = {}
        if self.searcher.has("sentences"):
            for record in self.searcher.records("sentences", self._find("sentences", image_ids)):
                if record["text"] is not None:
                    texts.setdefault(record["image_id"], []).append(record["text"])
        return texts

    def row(self, image_id: int) -> Mapping[str, Any]:
        """Return the row of an image. Raises InputError if the image is not in the index or was removed from it."""
        rows = self._find("images", [image_id])
        if not len(rows):
            raise InputError(f"There is no image {image_id} in this index. Use the image_id of a search result.")
        row = self.searcher.records("images", rows)[0]
        if row["path"] is None:
            raise InputError(f"Image {image_id} was removed from this index. Use the image_id of a search result.")
        return row

    def _find(self, modality: Modality, image_ids: Sequence[int]) -> np.ndarray:
        """Return the numbers (k,) of the rows that belong to some images in the table of the modality, in ascending
        order and without repetitions. Images that are not in the table are ignored."""
        if modality not in self._sorted:
            return self.searcher.rows(modality).find("image_id", np.array(image_ids, np.int64))
        owners, order = self._sorted[modality]
        firsts = np.searchsorted(owners, image_ids)
        lasts = np.searchsorted(owners, image_ids, "right")
        spans = zip(firsts, lasts, strict=True)
        return np.unique(np.concatenate([order[:0], *(order[first:last] for first, last in spans)]))

    def original(self, image_id: int) -> bytes:
        """Return the bytes of the file of an image, or of its member in a tar shard or Parquet file.

        Raises InputError if the image is not in the index or was removed from it, and if its file cannot be read or has
        changed since it was indexed.
        """
        row = self.row(image_id)
        data = self._read(row)
        if hashlib.sha256(data).hexdigest() != row["sha256"]:
            raise InputError(
                f"The file {row['path']} of image {image_id} has changed since it was indexed, so it is not shown."
                " Restore the file, or build the index again."
            )
        return data

    def thumbnail(self, image_id: int) -> bytes:
        """Return a small JPEG of an image, without the metadata of its file.

        The file is read and compared with the index at each call, so that a deleted photo is never shown. Only the
        small JPEG is cached in memory. Raises InputError if the image is not in the index or was removed from it, and
        if its file cannot be read or decoded, or has changed since it was indexed.
        """
        data = self.original(image_id)
        if image_id not in self._thumbnails:
            while len(self._thumbnails) >= MAX_THUMBNAILS:
                del self._thumbnails[next(iter(self._thumbnails))]
            self._thumbnails[image_id] = self._shrink(data, self._side)
        return self._thumbnails[image_id]

    def large(self, image_id: int) -> bytes:
        """Return a JPEG of an image with at most LARGE_SIDE pixels per side, without the metadata of its file. It is
        not cached. Raises InputError as `thumbnail` does."""
        return self._shrink(self.original(image_id), LARGE_SIDE)

    def _shrink(self, data: bytes, side: int) -> bytes:
        image = self._decode(data)
        image.thumbnail((side, side))
        return _jpeg(image)


class OfGallery(NamedTuple):
    """The image `image_id` of a gallery, used as a query in this or another gallery."""

    gallery: ServedGallery
    image_id: int

    def read(self) -> bytes:
        """Return the bytes of the image's file. Raises InputError as `ServedGallery.original` does."""
        return self.gallery.original(self.image_id)


def _jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def spread(count: int, top: int) -> np.ndarray:
    """Return at most `top` different row numbers below `count` that are far from each other.

    A larger `top` begins with the same rows. The step between rows is about `count` divided by the golden ratio. Step
    and `count` have no common divisor, so that all rows are different.
    """
    step = max(1, round(count * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, count) > 1:
        step += 1
    return np.arange(min(top, count), dtype=np.int64) * step % max(count, 1)


# The type of the values is Any, because they are texts, truth values, numbers or dates, as the column has them.
def _facet(values: set[Any], kind: str) -> dict[str, Any]:
    """Return the choices of the filter for a column of this `kind`, as `ServedGallery.facets` describes them.

    `values` are the different values of the column, or only its smallest and largest value if it has numbers or dates.
    The set is not empty. The result is empty if one of these numbers is infinite or NaN.
    """
    if kind in ("text", "truth"):
        return {"values": sorted(values) if len(values) <= MAX_CHOICES else []}
    least = min(values)
    most = max(values)
    if kind == "dates":
        return {"least": least.isoformat()[:10], "most": most.isoformat()[:10]}
    return {"least": least, "most": most} if math.isfinite(least) and math.isfinite(most) else {}


P = ParamSpec("P")
R = TypeVar("R")
CHECK_SECONDS = 1.0
"""Minimum number of seconds between two checks whether an index was replaced."""


class ServedIndex:
    """An index of the server that is opened again after it was replaced on disk.

    `open()` opens the gallery of the index `name`. `stamp()` returns a value that changes if the index is replaced, or
    None if the folder contains no index at the moment. Without `stamp`, the index is never opened again. The stamp is
    checked when a request asks for the gallery and the last check was more than CHECK_SECONDS ago. The check runs in a
    thread, and requests for the gallery wait for it.
    """

    def __init__(
        self, name: str, open: Callable[[], ServedGallery], stamp: Callable[[], Hashable | None] = lambda: None
    ) -> None:
        self._name = name
        self._open = open
        self._stamp = stamp
        self._shown = stamp()
        self.gallery = open()
        self._looked = time.monotonic()
        self._lock = asyncio.Lock()
        self._warning = ""

    async def renewed(self) -> ServedGallery:
        """Return the gallery of the index. If the index was replaced on disk, it is first opened again (see the
        class)."""
        async with self._lock:
            if time.monotonic() - self._looked > CHECK_SECONDS:
                await asyncio.to_thread(self._renew)
                self._looked = time.monotonic()
            return self.gallery

    def _renew(self) -> None:
        """Open the index again if its stamp has changed. If that fails, log a warning, keep the previous gallery, and
        let the next check try again. A repeated failure with the same message is not logged again."""
        stamp = self._stamp()
        if stamp is None or stamp == self._shown:
            return
        log = logging.getLogger(__name__)
        try:
            self.gallery = self._open()
        except Exception as error:  # The old index keeps answering, whatever is wrong with the new index.
            if str(error) != self._warning:
                log.warning(
                    "The index %s was replaced, but the new index cannot be opened (%s). The server keeps using the"
                    " previous index. Correct the new index, and the server opens it at one of the next requests.",
                    self._name,
                    error,
                )
            self._warning = str(error)
        else:
            self._shown = stamp
            log.info("The index %s was replaced. The server has opened the new index and uses it now.", self._name)


@dataclass(frozen=True)
class Describer:
    """A caption generator with the data that it needs.

    `registered` is the registered name of the generator class, and `top` is the number of captions if a request does
    not ask for a number. `features(data)` encodes the bytes of a photo with at least the generator's encoders, as
    encoder -> (1, dim). `sources` has the other inputs of the generator. Only the thread of Service.encoding may call
    `features`, and only one thread at a time may call `generate_captions`.
    """

    registered: str
    generator: "Generator"
    sources: "Sources"
    features: Callable[[bytes], Mapping[str, np.ndarray]]
    top: int

    def generate_captions(self, features: Mapping[str, np.ndarray], top: int) -> Sequence[Mapping[str, Any]]:
        """Generate at most `top` captions, best first, for one photo with these `features`, as encoder -> (1, dim).

        Each caption is a mapping with the fields of a DescriptionAnswer except `rank`.
        """
        from pipeline.generate.generator import describe_images  # Searches do not need this import of torch.

        return describe_images(self.generator, features, self.sources, top)[0]


@dataclass(frozen=True)
class Service:
    """Everything that requests share: `indexes` and caption generators (`describers`) by name, limits, metrics, and
    thread pools.

    Each kind of work has its own thread pool with a queue, so that uploads do not delay thumbnails. `searching` may
    have several threads. The other pools have one thread each: `checking` checks uploads, `encoding` encodes photos,
    `describing` generates captions, and `showing` reads photos of the indexes.
    """

    indexes: Mapping[str, ServedIndex]
    describers: Mapping[str, Describer]
    limits: Limits
    metrics: Metrics
    check: Callable[[bytes], None]
    """Function that raises InputError if the bytes of an upload are not an image or if the image has too many
    pixels."""
    originals: bool
    """Whether visitors may request original files, which contain the metadata that a camera wrote."""
    searching: ThreadPoolExecutor
    checking: ThreadPoolExecutor
    encoding: ThreadPoolExecutor
    describing: ThreadPoolExecutor
    showing: ThreadPoolExecutor
    turns: asyncio.Semaphore
    """Semaphore that limits the number of photos that are being captioned or wait to be captioned."""

    async def run(
        self, pool: Executor, function: Callable[P, R], *arguments: P.args, **named: P.kwargs
    ) -> tuple[R, float]:
        """Call `function` in a thread of `pool`, and return its result and the seconds that it took there, without the
        time in the queue."""
        return await asyncio.get_running_loop().run_in_executor(pool, _timed, partial(function, *arguments, **named))


def _timed(function: Callable[[], R]) -> tuple[R, float]:
    """Call a function, and return its result and its duration in seconds."""
    start = time.perf_counter()
    return function(), time.perf_counter() - start
